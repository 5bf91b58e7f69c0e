"""Environments of an OpenEnv server as arenas, and arenas as servers with several seats."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from legos import Arena, make_arena
from legos.arena.registry import find_arena
from legos.config.schema import PlayConfig
from legos.errors import ArenaError
from legos.fakes import Asked, ScriptedClient
from legos.play.step import play_all
from legos.records.episode import Episode

openenv: Any = pytest.importorskip("openenv")
pytestmark = [pytest.mark.optional, pytest.mark.filterwarnings("ignore")]

GUESS = '''
"""Guess a number in three steps; a step earns -1 for each by which it is off, modulo the seed."""
from openenv.core.env_server import Action, Environment, Observation, State, create_app

class Guess(Action):
    number: int

class Hint(Observation):
    hint: str = ""

class Numbers(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    left = 0

    def reset(self, seed=0, episode_id=None, largest=9, **_):
        self.secret, self.left = seed % largest, 3
        return Hint(hint=f"0 to {largest - 1}?")

    def step(self, action, timeout_s=None, **_):
        self.left -= 1
        off = self.secret - action.number
        hint = "right" if not off else "larger" if off > 0 else "smaller"
        done = not (self.left and off)
        return Hint(hint=hint, done=done, reward=-float(abs(off)))

    @property
    def state(self):
        return State(step_count=3 - self.left)

app = create_app(Numbers, Guess, Hint, max_concurrent_envs=64)
'''

NIM = """
from arenas.worlds.as_openenv import make_app

app = make_app("nim")
"""

VOID = """
from arenas.worlds.as_openenv import make_app
from legos import Arena, Task, Void

class Nothing(Arena):
    def tasks(self, rng):
        yield Task(id="t")

    async def play(self, t):
        await t.ask("player", "?")
        raise Void("no result")

app = make_app(Nothing())
"""

STRANGE = '''
"""One step; who is asked and rewarded is as ``reset`` says."""
from openenv.core.env_server import Action, Environment, Observation, State, create_app

class Say(Action):
    text: str

class Seen(Observation):
    seat: str | None = None
    legal_actions: list[str] = []
    rewards: dict[str, float] = {}

class Strange(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=0, episode_id=None, seat="one", rewarded=("one", "two"), **_):
        self.rewarded = rewarded
        return Seen(seat=seat, legal_actions=["a", " b", "a", " "])

    def step(self, action, timeout_s=None, **_):
        return Seen(done=True, rewards=dict.fromkeys(self.rewarded, float(action.text == "b")))

    @property
    def state(self):
        return State(step_count=0)

app = create_app(Strange, Say, Seen, max_concurrent_envs=64)
'''


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Starts a server in a process of its own, and returns its address."""
    folder = tmp_path_factory.mktemp("servers")
    started: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def start(code: str) -> str:
        if code not in started:
            name = f"server{len(started)}"
            (folder / f"{name}.py").write_text(code)
            uvicorn = [sys.executable, "-m", "uvicorn", f"{name}:app", "--port", "0"]
            paths = f"{folder}{os.pathsep}{Path.cwd()}"
            process = subprocess.Popen(
                uvicorn,
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
            )
            assert process.stderr is not None
            seen = b""
            for line in process.stderr:
                seen += line
                if b"running on" in line:
                    break
            assert b"running on" in seen, seen.decode()
            started[code] = process, seen.split(b"running on ")[1].split()[0].decode()
        return started[code][1]

    yield start
    for process, _ in started.values():
        process.kill()
        process.communicate()


def digit(asked: Asked) -> str:
    return str(asked.sampling.seed % 9)


def played(arena: Arena, number: int) -> list[Episode]:
    plays = [play for _ in range(number) for play in arena.cursor.next_group("id").plays][:number]
    return asyncio.run(play_all(arena, plays, asyncio.Semaphore(16)))


def test_a_hundred_episodes_of_a_server(serve: Callable[[str], str]) -> None:
    arena = make_arena(f"openenv:{serve(GUESS)}", ScriptedClient(digit))
    for episode in played(arena, 100):
        assert episode.error is None
        [rollout] = episode.rollouts
        secret, number, total = episode.task.seed % 9, -1, 0
        for turn, hint in zip(rollout.turns, ["0 to 8?", *[None] * 2], strict=False):
            assert hint in (None, turn.messages[-1].content)
            number = int(turn.completion.text)
            assert turn.completion.token_ids == (ord(str(number)), 0)
            total -= abs(secret - number)
        assert number == secret or len(rollout.turns) == 3
        assert episode.rewards == {"player": total}


def test_a_play_that_ends_at_its_last_step_counts(serve: Callable[[str], str]) -> None:
    play = PlayConfig(options={"steps": 3})
    episodes = played(make_arena(f"openenv:{serve(GUESS)}", ScriptedClient(digit), play=play), 20)
    assert not any(episode.error or episode.void for episode in episodes)
    assert max(len(episode.rollouts[0].turns) for episode in episodes) == 3


def test_settings_of_a_reset_and_answers_that_are_no_actions(serve: Callable[[str], str]) -> None:
    play = PlayConfig(options={"largest": 5})
    client = ScriptedClient(lambda asked: '```json\n{"number": 2}\n```')
    arena = make_arena(f"openenv:{serve(GUESS)}", client, play=play)
    episode = played(arena, 1)[0]
    assert client.asked[0].prompt == "0 to 4?"
    assert episode.rewards["player"] <= 0
    for answer in ("seven", '{"number": "x"}'):
        arena = make_arena(f"openenv:{serve(GUESS)}", ScriptedClient([answer] * 9))
        episode = played(arena, 1)[0]
        assert (episode.rewards, episode.metrics) == ({"player": -1.0}, {"forfeit": 1.0})


def test_fields_of_an_observation_keep_their_letters() -> None:
    from arenas.worlds.openenv import _text

    assert _text({"seat": "x", "options": ["Zürich"], "left": 2}) == 'options: ["Zürich"]\nleft: 2'


def test_an_arena_of_ours_has_a_client_in_each_seat(serve: Callable[[str], str]) -> None:
    url = serve(NIM)

    async def seat(name: str, role: str, number: int) -> tuple[float, dict[str, float], list[str]]:
        draws, said = random.Random(f"{number}/{role}"), list[str]()
        async with openenv.GenericEnvClient(base_url=url) as client:
            seen = await client.reset(seed=number, episode_id=name, seats=[role])
            while not seen.done:
                assert seen.observation["seat"] == role
                said.append(draws.choice(seen.observation["legal_actions"]))
                assert said[-1] in seen.observation["messages"][-1]["content"]
                seen = await client.step({"text": said[-1]})
        return seen.reward, seen.observation["rewards"], said

    async def episode(number: int) -> None:
        roles = ("first", "second") if number % 2 else ("second", "first")
        seats = [seat(f"game {number}", role, number) for role in roles]
        results = dict(zip(roles, await asyncio.gather(*seats), strict=True))
        first, second = results["first"], results["second"]
        assert first[1] == second[1] == {"first": first[0], "second": second[0]}
        last = "first" if len(first[2]) > len(second[2]) else "second"
        assert results[last][0] == 1.0  # who takes the last one wins
        assert first[0] + second[0] == 0.0

    async def all_of_them() -> None:
        for start in range(0, 100, 20):
            await asyncio.gather(*map(episode, range(start, start + 20)))

    asyncio.run(all_of_them())


def test_one_session_may_hold_all_seats(serve: Callable[[str], str]) -> None:
    def move(asked: Asked) -> str:
        return asked.sampling.choices[asked.sampling.seed % len(asked.sampling.choices)]

    play = PlayConfig(options={"roles": "first,second"})
    arena = make_arena(f"openenv:{serve(NIM)}", ScriptedClient(move), play=play)
    episodes = played(arena, 100)
    for episode in episodes:
        assert episode.error is None
        first, second = (len(rollout.turns) for rollout in episode.rollouts)
        won = 1.0 if first > second else -1.0
        assert episode.rewards == {"first": won, "second": -won}
    assert len({str(episode.rewards) for episode in episodes}) == 2


def test_a_play_that_is_void_at_the_server_is_void_here(serve: Callable[[str], str]) -> None:
    [episode] = played(make_arena(f"openenv:{serve(VOID)}", ScriptedClient(["a"])), 1)
    assert (episode.error, episode.void) == (None, True)
    assert "no result" in episode.notes[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, ""),
        ({"seat": "three"}, "asks seat 'three'; the arena has one, two"),
        ({"rewarded": ["one"]}, "rewards {'one': 1.0}; expected a reward for each"),
    ],
)
def test_a_strange_observation_fails_its_play_alone(
    options: dict[str, Any], reason: str, serve: Callable[[str], str]
) -> None:
    play = PlayConfig(options={"roles": "one,two", **options})
    arena = make_arena(f"openenv:{serve(STRANGE)}", ScriptedClient(lambda asked: "b"), play=play)
    error = played(arena, 1)[0].error or ""
    assert reason in error
    assert bool(error) is bool(reason)


def test_who_leaves_or_takes_a_seat_that_is_taken(serve: Callable[[str], str]) -> None:
    url = serve(NIM)

    async def story() -> None:
        async with openenv.GenericEnvClient(base_url=url) as one:
            with pytest.raises(RuntimeError, match=r"has no seat 'third'; it has first, second"):
                await one.reset(seats=["third"])
            waits = asyncio.create_task(one.reset(episode_id="a", seats=["second"]))
            async with openenv.GenericEnvClient(base_url=url) as other:
                await asyncio.sleep(1)  # until the server has read the other reset
                with pytest.raises(RuntimeError, match="seat 'second' of episode 'a' is taken"):
                    await other.reset(episode_id="a", seats=["second"])
                seen = await other.reset(episode_id="a", seats=["first"])
                assert seen.observation["seat"] == "first"
            end = await waits
        assert end.done
        assert (end.reward, end.observation["rewards"]) == (0.0, {"first": -1.5, "second": 0.0})
        [note] = end.observation["metadata"]["notes"]
        assert note == "first forfeits: the client that held seat 'first' has left"

    asyncio.run(story())


def test_seeds_of_evaluations_are_never_trained_on(serve: Callable[[str], str]) -> None:
    arena = make_arena(f"openenv:{serve(GUESS)}", ScriptedClient(digit))
    evaluated = {task.seed for task in arena.held_out(random.Random(1)) or ()}
    trained = {task.seed for task in islice(arena.tasks(random.Random(0)), 10_000)}
    assert len(evaluated) == 64
    assert min(trained) > max(evaluated)


def test_a_server_that_does_not_run() -> None:
    with pytest.raises(ArenaError, match=r"openenv has no game 'http://127.0.0.1:9': ConnectError"):
        find_arena("openenv:http://127.0.0.1:9")
