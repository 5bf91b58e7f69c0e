"""Prompts that ask a model to think, or not to, in the variables of its chat template."""

from pathlib import Path

import pytest
from tiny_folders import builtin_with_template

from legos.chat.load import load_tokenizer
from legos.errors import ModelError
from legos.records.message import Message, Thinking

ENDS = "{{ messages[-1]['content'] }}{% if add_generation_prompt %}A:{% endif %}"


@pytest.mark.parametrize(
    ("template", "thinking", "prompt"),
    [  # as Qwen3 writes it, DeepSeek, and gpt-oss
        (ENDS + "{% if enable_thinking is defined and not enable_thinking %}-{% endif %}", *pair)
        for pair in (("off", "QA:-"), ("on", "QA:"), ("default", "QA:"))
    ]
    + [
        (ENDS + "{% if thinking is defined and thinking %}+{% endif %}", *pair)
        for pair in (("off", "QA:"), ("on", "QA:+"))
    ]
    + [("{{ reasoning_effort or 'medium' }}: " + ENDS, "low", "low: QA:")],
)
def test_prompts_ask_for_thinking_as_the_template_can(
    template: str, thinking: Thinking, prompt: str, tmp_path: Path
) -> None:
    loaded = load_tokenizer(builtin_with_template(tmp_path / "model", template))
    assert loaded.thinks == template.endswith("-{% endif %}")
    tokenizer = loaded.with_thinking(thinking)
    assert tokenizer.decode(tokenizer.render([Message("user", "Q")])) == prompt
    given = {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}
    own = tokenizer.render_chat([{"role": "user", "content": "Q"}], options=given)
    assert own == loaded.render_chat([{"role": "user", "content": "Q"}], options=given)


@pytest.mark.parametrize(
    ("template", "thinking", "message"),
    [
        (ENDS, "off", "no variable enable_thinking or thinking; leave it out"),
        ("{{ reasoning_effort }}" + ENDS, "on", "give low, medium or high"),
        ("{{ enable_thinking }}" + ENDS, "high", "no variable reasoning_effort; give off or on"),
        (None, "off", "thinking is 'off', but the model's chat template reads no variable"),
    ],
)
def test_thinking_that_a_template_cannot_ask_for_is_refused(
    template: str | None, thinking: Thinking, message: str, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(builtin_with_template(tmp_path / "model", template))
    with pytest.raises(ModelError, match=message):
        tokenizer.with_thinking(thinking)
