"""Programs start episodes at a run's server, ask with their keys, and post rewards."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from arenas.programs import Programs
from legos import GRPOCredit, Trainer, load_model
from legos.apps.served_run import ServedRun
from legos.arena.cursor import plays_from
from legos.errors import ArenaError
from legos.play.step import play_all
from legos.records.episode import Episode, Task

PAGE = Path(__file__).parents[2] / "docs" / "arenas" / "agents.md"
CHAT = {"messages": [{"role": "user", "content": "nim 5"}], "max_tokens": 4}


class Server:
    """The server of a run, as a program sees it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.url = str(http.base_url).rstrip("/")
        self._http = http

    async def post(self, path: str, key: str = "", **body: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await self._http.post(f"/v1/{path}", json=body, headers=headers)

    async def start(self) -> Any:
        answer = await self.post("episodes", wait_s=20)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def reward(self, episode: Any, key: str = "", **body: Any) -> httpx.Response:
        return await self.post(f"episodes/{episode['id']}/reward", key, **body)


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    made = Trainer(model=load_model("builtin"))
    yield made
    made.close()


def played(
    trainer: Trainer,
    program: Callable[[Server], Awaitable[object]],
    plays: int = 1,
    **options: Any,
) -> tuple[list[Episode], int]:
    """The episodes of a program, and the tokens that count as asked by others."""
    arena = Programs(trainer.client(), credit_assigner=GRPOCredit(), **options)
    served = ServedRun(trainer, name="tiny", host="127.0.0.1", port=0)
    said: list[str] = []
    tasks = [(Task(id=str(number), data={"n": number}), number) for number in range(plays)]

    async def run() -> list[Episode]:
        def say(*lines: str) -> None:
            said.extend(lines)

        async with served.open(say):
            [url] = re.findall(r"http://[^/]+", said[0])
            async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
                async with asyncio.TaskGroup() as group:
                    playing = group.create_task(play_all(arena, tasks, asyncio.Semaphore(plays)))
                    group.create_task(_awaited(program(Server(http))))
                return playing.result()

    episodes = asyncio.run(run())
    return episodes, served.tokens_generated


async def _awaited(work: Awaitable[object]) -> None:
    await work


def test_episodes_are_asked_with_their_keys_and_rewarded(trainer: Trainer) -> None:
    async def program(server: Server) -> None:
        first, second = await server.start(), await server.start()
        assert [one["task"]["data"] for one in (first, second)] == [{"n": 0}, {"n": 1}]
        assert (await server.post("episodes", wait_s=0)).status_code == 503
        for key in (first["api_key"], first["api_keys"]["player"], second["api_key"]):
            assert (await server.post("chat/completions", key, **CHAT)).status_code == 200
        assert (await server.post("chat/completions", **CHAT)).status_code == 200  # nobody's
        refused = await server.reward(second, first["api_key"], reward=9)
        assert (refused.status_code, "of another play" in refused.text) == (403, True)
        ended = await server.reward(second, second["api_key"], reward=0.5)
        assert ended.json() == {"id": second["id"], "rewards": {"player": 0.5}}
        assert (await server.reward(first, rewards={"player": 1})).status_code == 200

    episodes, others = played(trainer, program, plays=2)
    assert [episode.rewards for episode in episodes] == [{"player": 1.0}, {"player": 0.5}]
    assert [len(episode.rollouts[0].turns) for episode in episodes] == [2, 1]
    assert all(t.completion.trainable for e in episodes for t in e.rollouts[0].turns)
    assert others > 0  # those of the request without a key alone
    assert others <= CHAT["max_tokens"]


def test_what_cannot_be_a_reward_is_refused(trainer: Trainer) -> None:
    async def program(server: Server) -> None:
        episode = await server.start()
        early = await server.reward(episode, reward=1)
        assert early.status_code == 400
        assert "no request of this episode was answered" in early.text
        await server.post("chat/completions", episode["api_key"], **CHAT)
        bodies: tuple[tuple[Any, str], ...] = (
            ({}, "give one of reward, rewards and error"),
            ({"reward": 1, "error": "x"}, "give one of reward, rewards and error"),
            ({"rewards": {"writer": 1}}, "writer"),
            ({"reward": {"style": 1}}, "style"),
            ({"reward": "much"}, "reward"),
            ({"reward": 1e200}, "expected a finite number from -1e+06 to 1e+06"),
            ({"rewards": {"player": -1e7}}, "expected a finite number from -1e+06 to 1e+06"),
            ({"reward": 10**400}, "reward"),
        )
        for body, why in bodies:
            answer = await server.reward(episode, **body)
            assert (answer.status_code, why in answer.text) == (400, True), answer.text
        assert (await server.reward({"id": "other"}, reward=1)).status_code == 404
        assert (await server.reward(episode, reward=1)).status_code == 200
        await asyncio.sleep(0.1)
        late = await server.reward(episode, reward=2)
        assert (late.status_code, late.json()["error"]["code"]) == (404, "episode_ended")
        after = await server.post("chat/completions", episode["api_key"], **CHAT)
        assert (after.status_code, after.json()["error"]["code"]) == (401, "play_ended")

    [episode], _ = played(trainer, program)
    assert episode.rewards == {"player": 1.0}


def test_an_episode_without_a_reward_fails_with_the_reason(trainer: Trainer) -> None:
    async def program(server: Server) -> None:
        first, _ = await server.start(), await server.start()
        await server.reward(first, error="the sandbox broke")

    episodes, _ = played(trainer, program, plays=2, timeout_s=0.3)
    assert [episode.failure for episode in episodes] == ["endpoint", "endpoint"]
    assert "the program of this episode reports: the sandbox broke" in (episodes[0].error or "")
    assert "no reward was posted within 0.3 s" in (episodes[1].error or "")


def test_several_seats_have_a_key_each(trainer: Trainer) -> None:
    async def program(server: Server) -> None:
        episode = await server.start()
        for role in ("writer", "critic"):
            await server.post("chat/completions", episode["api_keys"][role], **CHAT)
        await server.reward(episode, rewards={"writer": 1, "critic": 0})

    [episode], _ = played(trainer, program, roles="writer, critic")
    assert episode.rewards == {"writer": 1.0, "critic": 0.0}
    assert [len(rollout.turns) for rollout in episode.rollouts] == [1, 1]


def test_the_program_of_the_page_plays_and_rewards_its_episode(trainer: Trainer) -> None:
    _, page = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(page, names)

    async def program(server: Server) -> None:
        await asyncio.to_thread(names["play"], f"{server.url}/v1")

    [episode], _ = played(trainer, program)
    assert episode.rewards["player"] in (0.0, 1.0)
    assert len(episode.rollouts[0].turns) == 1


def test_a_run_without_a_server_says_so(trainer: Trainer) -> None:
    arena = Programs(trainer.client(), credit_assigner=GRPOCredit())
    with pytest.raises(ArenaError, match="the run has no server where one could start"):
        asyncio.run(arena.step())


def test_nothing_is_evaluated() -> None:
    assert plays_from(Programs(), 0, 64) == []
