"""Programs in the seats of plays: what they ask is what is trained on, and when it is refused."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fakes import FakeEngine

from legos import Arena, GRPOCredit, Task
from legos.arena.matchmaker import SeatOverride
from legos.chat.tokenizer import ChatTokenizer
from legos.clients.engine import EngineClient
from legos.clients.transport import server_root
from legos.credit.merging import samples_of_rollout
from legos.errors import ArenaError, EngineError
from legos.fakes import ScriptedClient
from legos.play.endpoint import Endpoint
from legos.play.step import play_all
from legos.play.table import Table
from legos.records.episode import Episode
from legos.records.message import Message, Sampling
from legos.records.request import Request
from legos.server.app import make_app
from legos.server.matches import MatchQueue, SeatKeys
from legos.server.options import ServerOptions
from legos.server.seats import SeatHost
from legos.server.service import Service

Json = Mapping[str, Any]
Agent = Callable[["Program"], Awaitable[object]]
CHAT = "chat/completions"
MISSING = object()


class Program:
    """A program in a seat, which sees only the address and the key."""

    def __init__(self, http: httpx.AsyncClient, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._http = http

    async def post(self, path: str = CHAT, key: str = "", **body: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key or self.endpoint.api_key}"}
        return await self._http.post(f"{self.endpoint.base_url}/{path}", json=body, headers=headers)

    async def get(self, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.endpoint.api_key}"}
        return await self._http.get(server_root(self.endpoint.base_url) + path, headers=headers)

    async def say(self, messages: Sequence[Json], **body: Any) -> Json:
        """The first answer to a chat."""
        answer = await self.post(messages=messages, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]


class Hosted(Arena):
    """A program plays the only seat; it ends with the block."""

    max_tokens = 128
    play_timeout_s = 20

    def __init__(self, agent: Agent, *, required: bool = True, **settings: Any) -> None:
        super().__init__(credit_assigner=GRPOCredit(), **settings)
        self._agent = agent
        self._required = required

    def tasks(self, rng: Any) -> Iterable[Task]:
        yield Task(id="a")

    async def play(self, t: Table) -> Json:
        http = httpx.AsyncClient(timeout=20, trust_env=False, verify=False)
        async with http, t.endpoint("player", required=self._required) as endpoint:
            await self._agent(Program(http, endpoint))
        return {"player": 1.0}


@pytest.fixture
def play(tokenizer: ChatTokenizer) -> Callable[..., tuple[Episode, FakeEngine]]:
    """Plays one program against a scripted engine, ``plays`` times at once."""

    def run(
        agent: Agent, *answers: str, plays: int = 1, hold: bool = False, **settings: Any
    ) -> tuple[Any, FakeEngine]:
        said = iter([(*tokenizer.encode(text), tokenizer.end_ids[0]) for text in answers])

        def answer(request: Request) -> Sequence[int]:
            found = next(said, None)
            if found is None:
                raise EngineError("the script has ended")
            return found

        engine = FakeEngine(answer, hold=hold)
        matches = MatchQueue(SeatKeys())

        def app() -> Any:
            return make_app(
                Service(
                    client,
                    engine,
                    tokenizer,
                    model="small",
                    context=512,
                    options=ServerOptions.for_host("127.0.0.1", api_key=None),
                    seats=matches.keys,
                    seats_only=True,
                )
            )

        host = SeatHost(matches, app)
        client = EngineClient(engine, tokenizer, endpoints=lambda: host)
        arena = Hosted(agent, **settings)
        arena.client = client
        tasks = [(Task(id="a"), seed) for seed in range(plays)]
        episodes = asyncio.run(play_all(arena, tasks, asyncio.Semaphore(plays)))
        return (episodes if plays > 1 else episodes[0]), engine

    return run


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def samples(episode: Episode) -> tuple[list[tuple[int, ...]], int]:
    """The tokens of an episode's samples, and the number of breaks."""
    assert episode.error is None, episode.error
    [rollout] = episode.rollouts
    made = samples_of_rollout(rollout, [1.0] * len(rollout.turns), group="g")
    return [sample.token_ids for sample in made], len(made) - 1


def test_a_conversation_continues_in_tokens(play: Any, tokenizer: ChatTokenizer) -> None:
    async def agent(program: Program) -> None:
        chat = [user("nim 5")]
        for text in ("again", "more"):
            said = await program.say(chat)
            chat += [{"role": "assistant", "content": f" {said['content']}\n"}, user(text)]
        await program.say(chat)

    episode, engine = play(agent, "3", "two", "1")
    [tokens], breaks = samples(episode)
    assert breaks == 0
    first, second, third = (request.prompt_ids for request in engine.requests)
    assert first == tokenizer.render([Message("user", "nim 5")])
    assert second[: len(first) + 2] == (*first, *tokenizer.encode("3"), tokenizer.end_ids[0])
    assert tokens[: len(third)] == third
    assert [turn.messages[-1].content for turn in episode.rollouts[0].turns] == [
        "nim 5",
        "again",
        "more",
    ]


def test_a_rewritten_conversation_is_a_further_sample(play: Any) -> None:
    async def agent(program: Program) -> None:
        said = (await program.say([user("nim 5")]))["content"]
        await program.say([user("nim 5"), {"role": "assistant", "content": f"{said}!"}, user("go")])

    made, breaks = samples(play(agent, "3", "2")[0])
    assert (len(made), breaks) == (2, 1)


def test_no_answer_has_the_stop_text_of_the_seat(play: Any) -> None:
    async def agent(program: Program) -> None:
        said = (await program.say([user("nim 5")]))["content"]
        assert said == "3"
        await program.say([user("nim 5"), {"role": "assistant", "content": said}, user("go")])

    stopping = SeatOverride(lambda seat: replace(seat, sampling=Sampling(stop=("!",))))
    made, breaks = samples(play(agent, "3! go", "2", matchmaker=stopping)[0])
    assert (len(made), breaks) == (1, 0)


def test_several_conversations_and_answers_are_one_sample_each(play: Any) -> None:
    async def one(program: Program, start: str) -> None:
        said = (await program.say([user(start)]))["content"]
        await program.say([user(start), {"role": "assistant", "content": said}, user("go")])

    async def agent(program: Program) -> None:
        await asyncio.gather(one(program, "nim 5"), one(program, "kuhn"))
        answer = await program.post(messages=[user("two")], n=2)
        assert [c["message"]["content"] for c in answer.json()["choices"]] == ["5", "6"]

    made, breaks = samples(play(agent, "1", "2", "3", "4", "5", "6")[0])
    assert (len(made), breaks) == (4, 3)


def test_a_streamed_conversation_is_recorded_alike(play: Any) -> None:
    async def agent(program: Program) -> None:
        answer = await program.post(messages=[user("nim 5")], stream=True)
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
        said = "".join(delta.get("content", "") for delta in deltas)
        assert said == "three"
        await program.say([user("nim 5"), {"role": "assistant", "content": said}, user("go")])

    made, breaks = samples(play(agent, "three", "2")[0])
    assert (len(made), breaks) == (1, 0)


@pytest.mark.parametrize(
    ("made", "back", "num"),  # num: calls of the answer, of which the program gets the first
    [('{"a": 2, "b": 3}', ' {"b": 3,\n"a": 2}', 1), ("null", "", 2), ('""', "null", 1)],
)
def test_tool_calls_and_their_results_continue_in_tokens(
    play: Any, made: str, back: str, num: int
) -> None:
    one = {"parallel_tool_calls": False} if num > 1 else {}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

    async def agent(program: Program) -> None:
        chat: list[Json] = [user("2 + 3?")]
        said = await program.say(chat, tools=tools, **one)
        [call] = said["tool_calls"]
        call = {**call, "function": {"name": "add", "arguments": back}}
        chat += [
            {"role": "assistant", "content": said["content"], "tool_calls": [call]},
            {"role": "tool", "content": "5", "tool_call_id": call["id"]},
        ]
        assert (await program.say(chat, tools=tools))["content"] == "5"

    call = f'<tool_call>{{"name": "add", "arguments": {made}}}</tool_call>'
    episode, _ = play(agent, f"I add. {call * num}", "5")
    assert samples(episode)[1] == 0
    [first, _] = episode.rollouts[0].turns
    assert [each.name for each in first.completion.tool_calls] == ["add"] * num


def test_the_seat_decides_how_answers_are_sampled(play: Any) -> None:
    async def agent(program: Program) -> None:
        await program.say([user("nim")], temperature=0.2, top_p=0.5, seed=1, max_tokens=9)
        await program.say([user("nim")], temperature=0.2, top_p=0.5, seed=1, max_tokens=999)
        await program.say([user("nim")], stop=["x"])

    episode, engine = play(agent, "1", "2", "3", temperature=0.7)
    made, _ = samples(episode)
    assert len(made) == 3
    assert [request.temperature for request in engine.requests] == [0.7] * 3
    assert all(request.filters is None for request in engine.requests)
    assert len({request.seed for request in engine.requests}) == 3
    assert [request.max_tokens for request in engine.requests] == [9, 128, 128]
    assert [request.stops is not None for request in engine.requests] == [False, False, True]
    assert episode.metrics["endpoint_replaced"] == 2
    [note] = episode.notes
    assert "temperature 0.2 (the seat has 0.7), penalties" in note


async def nothing(program: Program) -> None:
    pass


async def garbage(program: Program) -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"messages": [user("a")], "temprature": 1},
        {"messages": "a"},
    ]
    for body in bodies:
        assert (await program.post(**body)).status_code == 400


async def raises(program: Program) -> None:
    raise LookupError("its own")


def test_a_program_that_may_send_no_request(play: Any) -> None:
    episode, _ = play(nothing, required=False)
    assert (episode.error, episode.rewards) == (None, {"player": 1.0})
    assert "the last error: " in play(garbage, required=False)[0].error


@pytest.mark.parametrize(
    ("agent", "error", "failure"),
    [
        (nothing, "no request came to the endpoint of 'player'; give its base_url", "endpoint"),
        (garbage, "'player' was answered; the last error: 400: messages", "endpoint"),
        (raises, "LookupError: its own", "failed"),
    ],
)
def test_a_program_that_is_never_answered_fails_the_play(
    play: Any, agent: Agent, error: str, failure: str
) -> None:
    episode, _ = play(agent)
    assert error in episode.error
    assert episode.failure == failure
    assert not episode.rollouts[0].turns


def test_a_program_may_ask_for_the_health_of_a_dead_engine(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stats(_: FakeEngine) -> Any:
        raise EngineError("its thread has died")

    async def agent(program: Program) -> None:
        monkeypatch.setattr(FakeEngine, "stats", stats)
        assert (await program.get("/health")).status_code == 503
        monkeypatch.undo()

    episode, _ = play(agent)
    assert "its thread has died" in episode.error


def test_refused_requests_are_counted(play: Any) -> None:
    async def agent(program: Program) -> None:
        await garbage(program)
        refused = await program.post(prompt_token_ids=[1])
        assert refused.json()["error"]["message"] == "a seat takes messages, no token ids"
        call = {"function": {"name": "f", "arguments": "[" * 5_000}}
        deep = await program.post(messages=[{"role": "assistant", "tool_calls": [call]}])
        assert deep.status_code == 400
        await program.say([user("nim")])

    episode, _ = play(agent, "1")
    assert episode.error is None
    assert episode.metrics["endpoint_refused"] == 5


def test_a_key_opens_its_seat_alone_and_ends_with_the_play(play: Any) -> None:
    seen: list[httpx.Response] = []

    async def agent(program: Program) -> None:
        programs.append(program)
        await program.say([user("nim")])
        if program is programs[0]:
            return
        await asyncio.sleep(0.05)  # the first play has ended
        keys = (programs[0].endpoint.api_key, "seat-wrong", "sk-other")
        seen.extend([await program.post(key=key, messages=[user("nim")]) for key in keys])
        seen.append(await program.post("score", prompts=[]))

    programs: list[Program] = []
    first, second = play(agent, "1", "2", plays=2)[0]
    assert [len(episode.rollouts[0].turns) for episode in (first, second)] == [1, 1]
    assert [answer.status_code for answer in seen] == [401, 401, 401, 403]
    errors = [answer.json()["error"] for answer in seen]
    assert [error["code"] for error in errors[:3]] == [
        "play_ended",
        "play_ended",
        "invalid_api_key",
    ]
    assert errors[0]["message"].startswith("the play of this key has ended; nothing more is")
    assert programs[0].endpoint.api_key != programs[1].endpoint.api_key


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_runs_at_the_end_is_ended_and_not_recorded(play: Any, stream: bool) -> None:
    running: list[asyncio.Task[httpx.Response]] = []

    async def agent(program: Program) -> None:
        ask = program.post(messages=[user("nim")], stream=stream)
        running.append(asyncio.create_task(ask))
        await asyncio.sleep(0.3)

    episode, engine = play(agent, "1", hold=True)
    assert episode.failure == "endpoint"
    assert "was closed before a request of 'player' was answered; leave" in episode.error
    assert engine.cancelled == [1]
    assert episode.notes[0].endswith("were running when its endpoint was closed: 1")
    answer = running[0].result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "play_ended")


def test_a_bot_has_no_endpoint() -> None:
    arena = Hosted(nothing)
    arena.client = ScriptedClient(["a"])
    with pytest.raises(ArenaError, match=r"a ScriptedClient, which offers .* trainer\.client\(\)"):
        asyncio.run(play_all(arena, [(Task(id="a"), 0)], asyncio.Semaphore(1)))
