"""Questions with tools: rounds of calls, results that are never trained on, mistakes of a model."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from here_and_http import here_and_http
from misbehaving import hang
from msgspec.structs import replace
from pydantic import Field

from legos import Arena, GRPOCredit, OpenAIClient, Task
from legos.errors import ArenaError, EndpointError
from legos.fakes import Asked, ScriptedClient
from legos.play.step import play_all
from legos.play.table import Table
from legos.play.tools import LONGEST_RESULT, Toolbox
from legos.protocols import Client
from legos.records.episode import Episode
from legos.records.group import Group
from legos.records.message import Completion, Prompt, Sampling, ToolCall
from legos.run.episodes import stored_episode


def add(a: int, b: Annotated[int, Field(description="second")] = 2) -> int:
    """Add two numbers."""
    return a + b


async def look_up(names: list[str]) -> dict[str, int]:
    return {name: len(name) for name in names}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Ask(Arena):
    """One play that is given as a coroutine."""

    tasks_per_step = 1
    group_size = 2

    def __init__(
        self, play: Callable[[Table], Awaitable[Any]], client: Client, **attributes: Any
    ) -> None:
        super().__init__(client, credit_assigner=GRPOCredit())
        self._play = play
        for name, value in attributes.items():
            setattr(self, name, value)

    def tasks(self, rng: Any) -> Iterable[Task]:
        yield Task(id="a")

    async def play(self, t: Table) -> Any:
        return await self._play(t) or {"player": 1.0}

    def go(self, plays: int = 1, *, slots: int = 1) -> list[Episode]:
        tasks = [(Task(id=f"{n}"), n) for n in range(plays)]
        return asyncio.run(play_all(self, tasks, asyncio.Semaphore(slots)))


def asked(*answers: str, **options: Any) -> tuple[Any, Episode, list[Asked]]:
    """The reply to one question that is answered with these texts, its episode, the requests."""
    replies: list[Any] = []
    given: dict[str, Any] = {"tools": [add, look_up], **options}

    async def play(t: Table) -> None:
        replies.append(await t.ask("player", "sum?", **given))

    client = ScriptedClient(answers)
    [episode] = Ask(play, client).go()
    return replies[0] if replies else None, episode, client.asked


def test_tools_are_described_by_their_signatures() -> None:
    first, second = json.loads(Toolbox([add, look_up], "r").described)
    assert first == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer"},
                    "b": {"type": "integer", "default": 2, "description": "second"},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    assert second["function"]["parameters"]["properties"] == {
        "names": {"type": "array", "items": {"type": "string"}}
    }


def test_calls_are_carried_out_until_an_answer_comes() -> None:
    both = f"let me see {call('add', a=3)}{call('look_up', names=['abc'])}"
    reply, episode, requests = asked(both, call("add", a="7", b=1), "[9]", parse=str.strip)
    assert reply.parsed == "[9]"
    assert [(made.name, json.loads(made.arguments)) for made in reply.tool_calls] == [
        ("add", {"a": 3}),
        ("look_up", {"names": ["abc"]}),
        ("add", {"a": "7", "b": 1}),
    ]
    [rollout] = episode.rollouts
    assert [turn.legal for turn in rollout.turns] == [None, None, True]
    said, *results = requests[1].messages[-3:]
    assert (said.role, said.content) == ("assistant", "let me see")
    assert [(r.role, r.content) for r in results] == [("tool", "5"), ("tool", '{"abc":3}')]
    assert [r.tool_call_id for r in results] == [made.id for made in said.tool_calls]
    assert len({made.id for made in said.tool_calls}) == 2
    assert requests[2].messages[-1].content == "8"
    turns = stored_episode(episode).seats[0].turns
    assert turns[1].tool_calls == [["add", '{"a": "7", "b": 1}']]
    assert (turns[1].asked, turns[2].asked) == ('{"abc":3}', "8")


def test_results_are_never_trained_on_and_the_rounds_are_one_sample() -> None:
    async def play(t: Table) -> Any:
        await t.ask("player", "sum?", tools=[add])
        await t.ask("player", "and now?", tools=[add])
        return {"player": float(t.rng.random())}

    answers = [call("add", a=40), "42", call("add", a=1, b=1), "2"]
    said = ScriptedClient(lambda asked: answers[len(asked.messages) // 2])
    batch = asyncio.run(Ask(play, said).step())
    assert len(batch.samples) == 2
    assert batch.metrics["arena/token_breaks"] == 0.0
    for sample in batch.samples:
        chosen = "".join(chr(sample.token_ids[p]) for p in sample.positions)
        assert chosen == "\0".join([*answers, ""])
        whole = "".join(map(chr, sample.token_ids))
        assert whole == f"sum?{answers[0]}\x0042{answers[1]}\0and now?{answers[2]}\x0022\0"


@pytest.mark.parametrize(
    ("made", "result"),
    [
        (call("ad", a=1), "error: no tool 'ad'; did you mean 'add'?"),
        (call("add", a="x"), "error: a: Input should be a valid integer, unable to parse string"),
        (call("add"), "error: a: Missing required argument"),
        (call("add", a=1, c=2), "error: c: Unexpected keyword argument"),
        ('<tool_call>{"name": "add", "arguments": "{"}</tool_call>', "error: Invalid JSON: EOF"),
        ('<tool_call>{"name": "add", "arguments": 3}</tool_call>', "error: Arguments must be an "),
    ],
)
def test_mistakes_in_a_call_are_said_to_the_model(made: str, result: str) -> None:
    _, episode, requests = asked(made, "sorry")
    assert episode.error is None
    assert requests[1].messages[-1].content.startswith(result)


def test_what_is_no_call_is_the_answer() -> None:
    reply, _, _ = asked("<tool_call>add(1, 2)</tool_call>")
    assert reply.answer == "<tool_call>add(1, 2)</tool_call>"
    assert reply.tool_calls == ()


def test_rounds_are_limited() -> None:
    answers = [call("add", a=n) for n in range(4)]
    reply, episode, requests = asked(*answers, tool_rounds=2)
    assert len(requests) == 3
    assert len(reply.tool_calls) == 2
    assert reply.completion.tool_calls[0].name == "add"
    _, episode, _ = asked(*answers, tool_rounds=2, parse=str)
    assert episode.rewards == {"player": -1.0}
    assert episode.notes == (
        "player forfeits: The answer is a tool call, and no more than 2 replies may call tools.",
    )
    assert episode.rollouts[0].turns[-1].legal is False


def one_tool(function: Any) -> str:
    """The result of calling a tool without arguments."""
    _, episode, requests = asked(call(function.__name__), "done", tools=[function])
    return requests[1].messages[-1].content if len(requests) > 1 else episode.error or ""


def test_errors_of_a_tool() -> None:
    def divide() -> float:
        return 1 / 0

    def broken() -> str:
        return undefined  # pyrefly: ignore[unknown-name]  # noqa: F821

    def outside() -> str:
        raise EndpointError("no server answers")

    assert one_tool(divide) == "error: ZeroDivisionError: division by zero"
    assert "NameError: name 'undefined' is not defined" in one_tool(broken)
    assert one_tool(outside).startswith("EndpointError: no server answers")


def test_a_result_that_no_json_can_hold_names_its_tool() -> None:
    def picture() -> bytes:
        return b"\xff"

    _, episode, _ = asked(call("picture"), tools=[picture])
    assert "tool 'picture' returned b'\\xff', a bytes" in (episode.error or "")
    assert "return a text" in (episode.error or "")


def test_long_results_are_cut_and_others_are_json() -> None:
    def much() -> str:
        return "x" * (LONGEST_RESULT + 5)

    def nothing() -> None:
        return None

    def some() -> Any:
        return {"path": Path("a"), "set": [1, None]}

    assert one_tool(much) == "x" * LONGEST_RESULT + f"... ({LONGEST_RESULT + 5} characters, cut)"
    assert one_tool(nothing) == "null"
    assert json.loads(one_tool(some)) == {"path": "a", "set": [1, None]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": []}, "the tools for 'player' are an empty list; leave tools out"),
        ({"tools": [3]}, "a tool is 3, an int; expected a function with typed parameters"),
        ({"tools": [lambda a: a]}, "parameter 'a' of tool '<lambda>' has no type; write a: str"),
        ({"tools": [add, add]}, "the tools for 'player' are add, add; expected different names"),
        ({"choices": ["a"]}, "ask('player', ...) has choices and tools; give parse for the answer"),
    ],
)
def test_bad_tools_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ArenaError) as raised:
        asked("a", **options)
    assert str(raised.value) == message


def test_an_arena_that_remembers_nothing_keeps_the_calls_of_one_question() -> None:
    async def play(t: Table) -> None:
        for _ in range(2):
            await t.ask("player", "sum?", tools=[add])

    client = ScriptedClient([call("add", a=1), "3"] * 2)
    [episode] = Ask(play, client, remember=False).go()
    assert episode.error is None
    assert [len(request.messages) for request in client.asked] == [1, 3, 1, 3]
    assert len(episode.rollouts[0].turns) == 4
    assert len({request.sampling.seed for request in client.asked}) == 4


def test_a_slow_tool_gives_the_place_back_but_counts_as_time_of_the_play() -> None:
    order: list[str] = []

    async def play(t: Table) -> None:
        order.append(t.task.id)

        def slow() -> str:
            deadline = time.monotonic() + 60
            while len(order) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            return "done" if len(order) == 2 else "alone"

        reply = await t.ask("player", "?", tools=[slow])
        assert reply.answer == "ok"

    def answer(request: Asked) -> str:
        last = request.messages[-1]
        return "ok" if last.role == "tool" and last.content == "done" else call("slow")

    assert [e.error for e in Ask(play, ScriptedClient(answer)).go(2)] == [None, None]
    assert order == ["0", "1"]


def test_a_tool_that_hangs_ends_with_the_time_limit_of_the_play() -> None:
    async def forever() -> str:
        await asyncio.sleep(3600)
        return "never"

    async def play(t: Table) -> None:
        await t.ask("player", "?", tools=[forever])

    [episode] = Ask(play, ScriptedClient([call("forever")]), play_timeout_s=0.4).go()
    assert episode.failure == "timed_out"


def test_a_function_that_hangs_keeps_no_thread_from_other_tools() -> None:
    ended = threading.Event()

    def wait() -> bool:
        return ended.wait()

    async def result() -> str:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        tools = Toolbox([wait, add], "r")
        hangs = asyncio.create_task(tools.call(ToolCall("wait", "{}")))
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(tools.call(ToolCall("add", '{"a": 1}')), 20)
        finally:
            ended.set()
            await hangs

    assert asyncio.run(result()) == "3"


def test_a_tool_in_another_process_may_hang() -> None:
    async def play(t: Table) -> None:
        async def check(text: str) -> bool:
            """Check an answer."""
            await t.run(hang, timeout_s=0.3)
            return True

        reply = await t.ask("player", "?", tools=[check])
        assert reply.answer == "gave up"

    client = ScriptedClient([call("check", text="x"), "gave up"])
    [episode] = Ask(play, client).go()
    assert episode.error is None
    assert client.asked[1].messages[-1].content == (
        "error: run(hang): it took longer than 0.3 s and was stopped"
    )


HERMES = (  # as Qwen2.5's: tools in the system message, results in a user's message
    "{%- if tools %}{{- '<|system|>' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}"
    "{{- '<|end|>\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}{{- '<|user|><r>' + m.content + '</r><|end|>\n' }}"
    "{%- else %}{{- '<|' + m.role + '|>' + m.content }}"
    "{%- for c in m.tool_calls or [] %}{{- '<tool_call>' + (c.function | tojson) }}"
    "{{- '</tool_call>' }}{%- endfor %}{{- '<|end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
PLAIN = HERMES.replace("{%- if tools %}", "{%- if false %}").replace("tools", "others")
SCRIPT = ("hi", call("add", a=20, b=22), "42", call("add", a=1), "3")


class Scripted:
    """Makes a real client sample exactly the texts of a script."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._texts = iter(SCRIPT)

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = "policy"
    ) -> Completion:
        text = next(self._texts)
        sampling = replace(sampling, choices=(text,), restrict=True, max_tokens=None)
        return await self._client.complete(prompt, sampling, adapter=adapter)


@pytest.fixture(scope="module", params=[HERMES, PLAIN], ids=["knows_tools", "plain"])
def clients(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Client]]:
    """One engine, asked in this process and over HTTP."""
    with here_and_http(tmp_path_factory.mktemp("caller"), request.param) as found:
        yield found


def talked(client: Client) -> Group:
    async def play(t: Table) -> Any:
        await t.ask("player", "hello?")
        first = await t.ask("player", "20 + 22?", tools=[add])
        second = await t.ask("player", "1 + 2?", tools=[add])
        assert [first.answer, second.answer] == ["42", "3"]
        return {"player": 1.0}

    async def go() -> Group:
        batch = await Ask(play, Scripted(client), group_size=1).step(concurrency=1)
        if isinstance(client, OpenAIClient):
            await client.aclose()
        return batch

    return asyncio.run(go())


def test_a_real_model_calls_tools_in_one_sample(clients: Mapping[str, Client]) -> None:
    batch = talked(clients["engine"])
    assert [episode.error for episode in batch.episodes] == [None]
    before, sample = batch.samples  # tools come into the conversation with a new prompt, once
    said = [turn.completion for turn in batch.episodes[0].rollouts[0].turns]
    assert len(said) == 5
    assert before.token_ids == said[0].prompt_ids + said[0].token_ids
    chosen = tuple(sample.token_ids[p] for p in sample.positions)
    assert chosen == sum((one.token_ids for one in said[1:]), ())
    assert sample.token_ids == said[-1].prompt_ids + said[-1].token_ids
    assert batch.metrics["arena/token_breaks"] == 1.0


def test_over_http_the_same_is_asked_as_in_this_process(clients: Mapping[str, Client]) -> None:
    here, there = (talked(clients[way]).samples for way in ("engine", "http"))
    assert [(s.token_ids, s.positions) for s in here] == [(s.token_ids, s.positions) for s in there]
