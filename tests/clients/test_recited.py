"""An answer that is recited has the version whose log-probabilities it has."""

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from legos.builtin import builtin_path
from legos.chat.load import load_tokenizer
from legos.chat.reply import split_thinking
from legos.chat.tokenizer import ChatTokenizer
from legos.clients.engine import EngineClient
from legos.clients.recited import RecitedClient
from legos.errors import ModelError, RequestError
from legos.records.message import Completion, Sampling

ANSWER = (5, 6)


class Scores:
    """An engine whose adapter is replaced before it accepts a score, and again after that."""

    def __init__(self) -> None:
        self.live, self.early = 2, True
        self.asked: list[str] = []

    def versions(self) -> Mapping[str, int]:
        return {"policy": self.live}

    def score(
        self, prompts: Sequence[Any], *, adapter: str, **_: object
    ) -> "Future[list[list[float]]]":
        self.asked.append(adapter)
        found: Future[list[list[float]]] = Future()
        if adapter == "policy@2" and self.early:  # it was replaced before the engine read this
            self.early, self.live = False, 3
            found.set_exception(RequestError("adapter 'policy@2' is not live"))
        else:
            found.set_result([[-float(adapter.partition("@")[2])] * len(ANSWER)])
            self.live = 4  # a later one, which this score does not have
        return found


def said(engine: Any, adapter: str) -> Completion:
    client = EngineClient(engine, load_tokenizer(builtin_path()))
    seat = RecitedClient(client, (1, 2), ANSWER)
    return asyncio.run(seat.complete((), Sampling(), adapter=adapter))


def test_an_answer_is_scored_once_by_the_version_that_it_was_given_to() -> None:
    engine = Scores()
    found = said(engine, "policy")
    assert engine.asked == ["policy@2", "policy@3"]
    assert found.versions == (3,) * len(ANSWER)
    assert found.logprobs == (-3.0,) * len(ANSWER)


def test_a_version_that_is_asked_for_and_gone_is_refused() -> None:
    with pytest.raises(RequestError, match="policy@2"):
        said(Scores(), "policy@2")


CALLS = (
    "{% for t in tools or [] %}<|system|>{{ t | tojson }}<|end|>{% endfor %}"
    "{% for m in messages %}{{ '<|' ~ ('user' if m.role == 'tool' else m.role) ~ '|>' }}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CHAT: list[Any] = [{"role": "user", "content": "1 + 1?"}]


def tokenizer_with(folder: Path, template: str, **generation: object) -> ChatTokenizer:
    """The built-in tokenizer with another template."""
    shutil.copytree(builtin_path(), folder / "model")
    file = folder / "model" / "tokenizer_config.json"
    (folder / "model" / "chat_template.jinja").unlink(missing_ok=True)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    (folder / "model" / "generation_config.json").write_text(json.dumps(generation))
    return load_tokenizer(folder / "model")


def recited(tokenizer: ChatTokenizer, answer: Mapping[str, Any], tools: Any = ()) -> str:
    ids = tokenizer.answer_ids(CHAT, answer, tools)
    return tokenizer.decode(ids, controls=True)


def test_an_answer_is_said_as_the_template_writes_it(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, CALLS, eos_token_id=[1, 2])
    calls: Any = {"role": "assistant", "content": "So", "tool_calls": [CALL, CALL]}
    assert tokenizer.end_ids == (1, 2)
    end = tokenizer.decode((2,), controls=True)  # of a turn; 1 ends a text
    assert recited(tokenizer, {"role": "assistant", "content": " 2 "}, TOOLS) == f" 2 {end}"
    call = '<tool_call>add{"a": 1}</tool_call>'
    assert recited(tokenizer, calls, TOOLS) == f"So{call}{call}{end}"
    thought = {"role": "assistant", "content": "2", "reasoning_content": "1 + 1"}
    assert recited(tokenizer, thought) == f"<think>1 + 1</think>2{end}"


@pytest.mark.parametrize(
    ("text", "said"),
    [("2", "\n</think>\n\n2"), ("<think>1 + 1</think>2", "1 + 1</think>2")],
)
def test_an_answer_is_not_said_inside_the_thinking_that_its_prompt_opens(
    tmp_path: Path, text: str, said: str
) -> None:
    opening = CALLS.replace("<|assistant|>{% endif", "<|assistant|><think>{% endif")
    tokenizer = tokenizer_with(tmp_path, opening)
    assert recited(tokenizer, {"role": "assistant", "content": text}) == f"{said}<|end|>"
    assert split_thinking(said)[1] == "2"


def test_calls_of_a_template_without_tools_are_those_that_its_prompt_describes() -> None:
    tokenizer = load_tokenizer(builtin_path())
    calls: Any = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert recited(tokenizer, calls, TOOLS) == f"{call}<|end|>"
    assert "<tool_call>" in tokenizer.decode(tokenizer.render_chat(CHAT, TOOLS))


def test_thinking_that_a_template_does_not_write_is_refused() -> None:
    with pytest.raises(ModelError, match=r"does not write an answer with .*reasoning_content"):
        recited(
            load_tokenizer(builtin_path()),
            {"role": "assistant", "content": "2", "reasoning_content": "1 + 1"},
        )
