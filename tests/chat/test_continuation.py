"""A conversation goes on in its tokens: only what is new is rendered, after the end of the turn."""

import json
import shutil
from pathlib import Path

import pytest
from vocabulary import END, token_id

from legos.builtin import builtin_path
from legos.chat.load import load_tokenizer
from legos.chat.tokenizer import ChatTokenizer
from legos.records.message import Completion, Continuation, Message, ToolCall

STRIPS = (  # as Qwen3's: thinking of former turns is left out, and a line ends every turn
    "{%- for m in messages %}"
    "{{- '<|' + m['role'] + '|>' + m['content'].split('</think>')[-1] + '<|end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|><think>' }}{%- endif %}"
)
LAST_ONLY = "{{- '<|user|>' + messages[-1]['content'] + '<|end|><|assistant|>' }}"
ASKED, NEW = Message("user", "Q"), Message("user", f"N{END}")


def tokenizer_of(folder: Path, template: str | None) -> ChatTokenizer:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(builtin_path() / name, folder / name)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    return load_tokenizer(folder)


def said(tokenizer: ChatTokenizer, text: str) -> Completion:
    ids = tokenizer.encode(text)
    return Completion(
        text=text,
        prompt_ids=tokenizer.render([ASKED]),
        token_ids=ids,
        logprobs=(-1.0,) * len(ids),
        versions=(0,) * len(ids),
    )


def next_prompt(tokenizer: ChatTokenizer, text: str, *new: Message) -> str:
    """What stands after the tokens of an answer in the next prompt."""
    last = said(tokenizer, text)
    answer = Message("assistant", text.partition("</think>")[2])
    messages = (ASKED, answer, *(new or (NEW,)))
    num_new = len(messages) - 2
    going_on = Continuation(last=last, messages=messages, num_new=num_new)
    ids = tokenizer.render(going_on)
    so_far = last.prompt_ids + last.token_ids
    assert ids[: len(so_far)] == so_far
    return tokenizer.decode(ids[len(so_far) :], controls=True)


@pytest.mark.parametrize("text", ["so</think>A", " A ", "cut at the lim", "A\n"])
def test_an_answer_that_was_cut_gets_the_end_of_its_turn(tmp_path: Path, text: str) -> None:
    tokenizer = tokenizer_of(tmp_path, STRIPS)
    expected = "\n<|user|>N< |end|><|end|>\n<|assistant|><think>"
    assert next_prompt(tokenizer, text) == END + expected
    assert next_prompt(tokenizer, text + END) == expected


def test_several_messages_are_rendered_together(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, STRIPS)
    new = (Message("system", "S"), NEW)
    expected = "\n<|system|>S<|end|>\n<|user|>N< |end|><|end|>\n<|assistant|><think>"
    assert next_prompt(tokenizer, "A" + END, *new) == expected


def test_without_a_template_a_line_ends_the_turn(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, None)
    expected = "\nuser: N< |end|>\nassistant:"
    assert next_prompt(tokenizer, " A" + END) == expected
    assert next_prompt(tokenizer, " A") == expected


def test_the_built_in_models_conversations_are_what_is_rendered() -> None:
    tokenizer = load_tokenizer(builtin_path())
    assert tokenizer.continues
    last = said(tokenizer, "A" + END)
    messages = (ASKED, Message("assistant", "A"), NEW)
    going_on = Continuation(last=last, messages=messages, num_new=1)
    assert tokenizer.render(going_on) == tokenizer.render(messages)


@pytest.mark.parametrize("template", [LAST_ONLY, "{{ raise_exception('one message') }}"])
def test_a_template_that_cannot_be_continued_is_named_and_renders_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, template: str
) -> None:
    tokenizer = tokenizer_of(tmp_path, template)
    assert not tokenizer.continues
    assert "chat template cannot go on after the tokens of an answer" in caplog.text
    if template == LAST_ONLY:
        last = Completion(
            text="A", prompt_ids=(7,), token_ids=(8,), logprobs=(-1.0,), versions=(0,)
        )
        messages = (ASKED, Message("assistant", "A"), NEW)
        going_on = Continuation(last=last, messages=messages, num_new=1)
        assert tokenizer.render(going_on) == tokenizer.render(messages)


def test_a_call_and_its_result_are_rendered(tmp_path: Path) -> None:
    call = ToolCall("add", '{"a": 1}', id="c1")
    chat = [ASKED, Message("assistant", "", (call,)), Message("tool", "3", tool_call_id="c1")]
    template = (
        "{{- tools or '' }}{%- for m in messages %}{{- '[' + m['role'] + ':' + m['content'] }}"
        "{%- for c in m['tool_calls'] %}{{- c['function']['name'] }}"
        "{{- c['function']['arguments']['a'] }}{%- endfor %}"
        "{{- m['tool_call_id'] + ']' if m['tool_call_id'] else ']' }}{%- endfor %}"
    )
    tokenizer = tokenizer_of(tmp_path, template)
    assert tokenizer.decode(tokenizer.render(chat)) == "[user:Q][assistant:add1][tool:3c1]"
    plain = load_tokenizer(builtin_path())
    shown = plain.decode(plain.render(chat), controls=True)
    assert '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|end|>' in shown
    assert "<|user|><tool_response>3</tool_response><|end|>" in shown


def test_the_end_of_a_turn_is_in_no_vocabulary_twice() -> None:
    tokenizer = load_tokenizer(builtin_path())
    assert tokenizer.end_ids == (token_id(END),)
