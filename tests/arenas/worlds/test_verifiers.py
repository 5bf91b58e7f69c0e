"""Environments of verifiers as arenas, and arenas as environments of verifiers."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launched import announced
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving

from legos import Arena, RunError, Task, Trainer, TrainingConfig, load_model, make_arena
from legos.arena.registry import find_arena
from legos.config.schema import PlayConfig
from legos.credit.merging import samples_of_rollout
from legos.fakes import ScriptedClient
from legos.play.endpoint import Endpoint
from legos.play.step import play_all
from legos.records.episode import Episode

pytest.importorskip("verifiers.v1")
pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]

SUMS = '''
"""A task set of one question each, with two rewards."""
import verifiers.v1 as vf

class Sum(vf.TaskData):
    answer: str

class SumTask(vf.Task[Sum]):
    @vf.reward(weight=0.5)
    async def length(self, trace):
        return float(len(trace.last_reply))

    @vf.reward(weight=-2.0)
    async def odd(self, trace):
        return float(len(trace.last_reply) % 2)

    @vf.metric
    async def spaces(self, trace):
        return float(trace.last_reply.count(" "))

class SumsConfig(vf.TasksetConfig):
    largest: int = 20
    split: str = "train"

class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for n in range(self.config.largest):
            prompt = f"{self.config.split} {n} + 1?"
            yield SumTask(Sum(prompt=prompt, answer=str(n + 1)), self.config.task)

__all__ = ["Sums"]
'''

TALK = '''
"""Two agents talk for three turns each; the second one earns what the first one loses."""
import verifiers.v1 as vf

class Start(vf.TaskData):
    word: str

class Starts(vf.Taskset[vf.Task[Start], vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        n = 0
        while True:
            yield vf.Task(Start(word=f"nim {n}", system_prompt="Talk."))
            n += 1

class TalkConfig(vf.EnvConfig):
    one: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    two: vf.AgentConfig = vf.AgentConfig()

class Talk(vf.Env[TalkConfig]):
    async def run(self, task, agents):
        said = task.data.word
        async with agents.one.interaction(task) as one, agents.two.interaction(task) as two:
            for _ in range(3):
                said = (await one.turn(said)).last_reply or "nothing"
                said = (await two.turn(said)).last_reply or "nothing"

    async def finalize(self, task, episode):
        for trace in episode.traces:
            sign = 1.0 if trace.agent.name == "one" else -1.0
            words = [n.message.content or "" for n in trace.nodes if n.sampled]
            trace.record_reward("letters", sign * len("".join(words)))

__all__ = ["Starts", "Talk"]
'''

PRICES = '''
"""A task set of one question, whose tool knows the answer."""
import verifiers.v1 as vf

class Shop(vf.Toolset[vf.SharedToolsetConfig]):
    @vf.tool
    def price(self, thing: str) -> int:
        """The price of a thing."""
        return {"tea": 3}[thing]

class PriceTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def right(self, trace):
        return float(trace.last_reply == "It costs 3.")

class Prices(vf.Taskset[PriceTask, vf.TasksetConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Shop(vf.SharedToolsetConfig())]

    def load(self):
        for n in range(4):
            yield PriceTask(vf.TaskData(prompt="What does tea cost?"), self.config.task)

__all__ = ["Prices"]
if __name__ == "__main__":
    Shop.run()
'''

FIXED = """    async def setup(self, agents):
        agents.two.trainable = False

    async def run"""


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    made = Trainer(model=load_model("builtin"), config=TrainingConfig())
    asyncio.run(made.publish_weights())
    yield made
    made.close()


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "vf_sums.py").write_text(SUMS)
    (tmp_path / "vf_talk.py").write_text(TALK)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("vf_prices", "vf_sums", "vf_talk"):
        sys.modules.pop(name, None)


def one() -> asyncio.Semaphore:
    return asyncio.Semaphore(1)


def played(arena: Arena, number: int) -> list[Episode]:
    arena.max_tokens = 8
    plays = [play for _ in range(number) for play in arena.cursor.next_group("id").plays][:number]
    episodes = asyncio.run(play_all(arena, plays, asyncio.Semaphore(16)))
    assert [episode.error for episode in episodes] == [None] * number
    return episodes


def test_a_task_set_plays_a_hundred_episodes_at_the_endpoint(trainer: Trainer) -> None:
    play = PlayConfig(options={"largest": 200})
    arena = make_arena("verifiers:vf_sums", trainer.client(), play=play)
    arena.group_size = 4
    episodes = played(arena, 100)
    for episode in episodes:
        [rollout] = episode.rollouts
        [turn] = rollout.turns
        assert [m.content for m in turn.messages] == [episode.task.data.data.prompt]
        text = turn.completion.text.strip()
        parts = {"length": 0.5 * len(text), "odd": -2.0 * (len(text) % 2)}
        assert episode.parts == {"agent": parts}
        assert episode.rewards["agent"] == pytest.approx(sum(parts.values()))
        assert episode.metrics["agent_spaces"] == text.count(" ")
        [sample] = samples_of_rollout(rollout, [1.0], group="g")
        assert sample.token_ids == (*turn.completion.prompt_ids, *turn.completion.token_ids)
    assert len({episode.rewards["agent"] for episode in episodes}) > 1


def test_the_tools_of_a_task_set_are_called(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (modules / "vf_prices.py").write_text(PRICES)
    monkeypatch.setenv("PYTHONPATH", str(modules))  # the tools run in a process of their own

    def reply(asked: HttpAsked) -> HttpAnswer:
        last = asked.body["messages"][-1]
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if last["role"] == "tool":
            message["content"] = f"It costs {last['content']}."
        else:
            [tool] = asked.body["tools"]
            call = {"name": tool["function"]["name"], "arguments": '{"thing": "tea"}'}
            message["tool_calls"] = [{"id": "call", "type": "function", "function": call}]
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        about = {"id": "answer", "object": "chat.completion", "created": 0, "model": "policy"}
        return HttpAnswer({**about, "choices": [choice], "usage": usage})

    class Elsewhere(ScriptedClient):
        """A seat whose endpoint is a server of this test."""

        def endpoints(self) -> "Elsewhere":
            return self

        @asynccontextmanager
        async def open(self, _: object) -> AsyncGenerator[Endpoint]:
            yield Endpoint(base_url=f"{url}/v1", api_key="key")

    with serving(ScriptedServer(reply)) as url:
        arena = make_arena("verifiers:vf_prices", Elsewhere([]))
        [episode] = asyncio.run(play_all(arena, arena.cursor.next_group("id").plays[:1], one()))
    assert (episode.error, episode.parts) == (None, {"agent": {"right": 1.0}})


def test_every_agent_of_an_environment_is_a_seat(trainer: Trainer) -> None:
    arena = make_arena("verifiers:vf_talk", trainer.client())
    arena.group_size = 1
    assert arena.roles == ("one", "two")
    breaks = 0
    for episode in played(arena, 100):
        one, two = episode.rollouts
        assert [turn.messages[-1].content for turn in one.turns[1:]] == [
            turn.completion.text.strip() or "nothing" for turn in two.turns[:2]
        ]
        for sign, rollout in zip((1.0, -1.0), (one, two), strict=True):
            assert len(rollout.turns) == 3
            assert rollout.turns[0].messages[0].content == "Talk."
            letters = sum(len(turn.completion.text) for turn in rollout.turns)
            assert episode.parts[rollout.role] == {"letters": sign * letters}
            breaks += len(samples_of_rollout(rollout, [1.0] * 3, group="g")) - 1
    assert breaks == 0


def test_metrics_are_means_over_the_traces_of_a_role() -> None:
    logged: dict[str, float] = {}
    agent = SimpleNamespace(trainable=True)
    t = SimpleNamespace(seats={"agent": agent}, metric=lambda **found: logged.update(found))
    traces = [
        SimpleNamespace(agent=agent, rewards={}, metrics={"spaces": spaces, "none": None})
        for spaces in (1.0, 0.0)
    ]
    arena: Any = find_arena("verifiers:vf_sums")()
    arena._rewards(t, "agent", SimpleNamespace(by_agent={"agent": traces}))
    assert logged == {"agent_spaces": 0.5}


def test_tasks_that_are_held_out_are_not_trained_on() -> None:
    kind = find_arena("verifiers:vf_sums")
    arena = kind(largest=40)
    trained = {task.data.data.prompt for task in arena.tasks(random.Random(0))}
    held_out = {task.data.data.prompt for task in arena.held_out(random.Random(0))}
    assert (len(trained), len(held_out)) == (30, 10)
    assert trained.isdisjoint(held_out)
    assert trained | held_out == {f"train {n} + 1?" for n in range(40)}
    assert held_out != {f"train {n} + 1?" for n in range(10)}  # a set may be sorted
    arena = kind(eval_split="test", held_out=5)
    assert len(list(arena.tasks(random.Random(0)))) == 20
    held_out = [task.data.data.prompt for task in arena.held_out(random.Random(0))]
    assert len({*held_out}) == 5
    assert {*held_out} < {f"test {n} + 1?" for n in range(20)}
    assert held_out != [f"test {n} + 1?" for n in range(5)]


def test_a_role_that_is_not_trained(trainer: Trainer, modules: Path) -> None:
    (modules / "vf_judged.py").write_text(TALK.replace("    async def run", FIXED))
    arena = make_arena("verifiers:vf_judged+vf_judged", trainer.client())
    [episode] = asyncio.run(play_all(arena, arena.cursor.next_group("id").plays[:1], one()))
    assert "give --play.options.fixed two" in str(episode.error)
    fixed = PlayConfig(options={"fixed": "two"})
    arena = make_arena("verifiers:vf_judged+vf_judged", trainer.client(), play=fixed)
    [episode] = played(arena, 1)
    assert [rollout.policy for rollout in episode.rollouts] == ["policy", None]


def test_an_error_of_the_environment_fails_its_play_alone(trainer: Trainer, modules: Path) -> None:
    broken = SUMS.replace(
        "return float(len(trace.last_reply))", "return 1 / (trace.task.data.idx % 2)"
    )
    (modules / "vf_broken.py").write_text(broken)
    arena = make_arena("verifiers:vf_broken", trainer.client())
    arena.group_size, arena.tasks_per_step = 1, 15
    plays = arena.cursor.next_group("round").plays
    episodes = asyncio.run(play_all(arena, plays, one()))
    odd = [bool(episode.task.data.data.idx % 2) for episode in episodes]
    assert [episode.error is None for episode in episodes] == odd
    assert "ZeroDivisionError" in next(e.error for e in episodes if e.error)


NIM = """
from arenas.worlds.as_verifiers import load_environment

Tasks, Env, Harness = load_environment("nim")
__all__ = ["Env", "Harness", "Tasks"]
"""


def test_an_arena_is_an_environment_of_verifiers(trainer: Trainer, modules: Path) -> None:
    (modules / "vf_nim.py").write_text(NIM)
    arena = make_arena("verifiers:vf_nim", trainer.client())
    arena.group_size = 1
    assert arena.roles == ("first", "second")
    won = 0
    for episode in played(arena, 100):
        assert sum(episode.rewards.values()) == 0.0
        won += episode.rewards["first"] > 0
    assert 0 < won < 100


def test_the_evaluation_of_verifiers_plays_an_arena_of_ours(modules: Path) -> None:
    (modules / "vf_nim.py").write_text(NIM)
    env = {**os.environ, "PYTHONPATH": f"{modules}{os.pathsep}{Path.cwd()}"}
    program = Path(sys.executable).parent
    serve = [program / "legos", "serve", "--model", "builtin", "--port", "0"]
    said = (modules / "serve.log").open("wb")
    with said, subprocess.Popen(serve, env=env, stdout=subprocess.PIPE, stderr=said) as server:
        try:
            seats = ["--model", "builtin", "--client.base-url", f"{announced(server)}/v1"]
            subprocess.run(
                [program / "vf-eval", "vf-nim", "-n", "20", "--no-push", *seats],
                cwd=modules,
                env=env,
                check=True,
                stdout=subprocess.DEVNULL,
            )
        finally:
            server.kill()
    [traces] = modules.glob("outputs/*/traces.jsonl")
    episodes = [json.loads(line) for line in traces.read_text().splitlines()]
    assert len(episodes) == 20
    ends = Counter[tuple[float, float]]()
    for episode in episodes:
        scores = {t["agent"]["name"]: t["rewards"]["reward"]["score"] for t in episode["traces"]}
        ends[scores["first"], scores["second"]] += 1
    assert ends.keys() <= {(1, -1), (-1, 1), (-1.5, 0), (0, -1.5)}  # the last two: illegal answers
    assert ends[1, -1] + ends[-1, 1] > 10


def test_an_arena_without_tasks_is_refused() -> None:
    class Bare(Arena):
        roles = ("player",)

        def tasks(self, rng: random.Random) -> Iterator[Task]:
            return iter(())

    from arenas.worlds.as_verifiers import TasksConfig, load_environment

    kind, _, _ = load_environment(Bare(None))
    with pytest.raises(RunError, match="Bare has no tasks to play here"):
        next(kind(TasksConfig()).load())


def test_a_role_without_a_part_of_its_reward_gets_none() -> None:
    class Parted(Arena):
        reward_weights: Mapping[str, float] = {"correct": 1.0}

        async def play(self, t: Any) -> Any:
            await t.ask("player", "?")
            return {"player": {}}

    from arenas.worlds.as_verifiers import ArenaEnv

    async def turn(_: object) -> Any:
        return SimpleNamespace(terminated=False, last_reply="a")

    given: list[Any] = []
    trace = SimpleNamespace(
        record_metric=lambda *_: None, record_reward=lambda *reward: given.append(reward)
    )
    talk = SimpleNamespace(trace=trace, turn=turn)
    agent = SimpleNamespace(interaction=lambda _: nullcontext(talk))
    env: Any = ArenaEnv()
    env.arena, env.clients, env.roles = Parted(), {}, ("player",)
    env.taskset = SimpleNamespace(drawn=lambda _: Task(id="t"))
    task = SimpleNamespace(data=SimpleNamespace(idx=0, play_seed=0))
    asyncio.run(env.run(task, SimpleNamespace(player=agent)))
    assert given == [("reward", 0.0, 1.0)]


def test_an_agent_is_asked_one_question_at_a_time() -> None:
    from arenas.worlds.as_verifiers import AgentSeat

    happened: list[str] = []

    async def turn(_: object) -> Any:
        happened.append("asked")
        await asyncio.sleep(0)
        happened.append("answered")
        return SimpleNamespace(terminated=False, last_reply="a")

    async def both() -> None:
        seat = AgentSeat("player", SimpleNamespace(turn=turn))
        await asyncio.gather(seat.complete((), None), seat.complete((), None))

    asyncio.run(both())
    assert happened == ["asked", "answered"] * 2
