"""A real chat model behind ``legos serve`` and ``legos chat``, asked as a user asks it."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from launched import announced
from openai import OpenAI
from real.conftest import ModelFolder

pytestmark = pytest.mark.real

LEGOS = (sys.executable, "-m", "legos")
QUESTION: Any = {"role": "user", "content": "Name three colours, and say a word about each. 🎨"}


@pytest.fixture(scope="module")
def address(model_folder: ModelFolder) -> Iterator[str]:
    command = [*LEGOS, "serve", "--model", str(model_folder("float32")), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield announced(process)
        finally:
            process.terminate()


@pytest.fixture
def client(address: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{address}/v1", api_key="none", timeout=120) as made:
        yield made


def test_the_streamed_text_is_the_whole_text(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "policy", "max_tokens": 48, "seed": 3, "temperature": 1.0}
    whole = client.chat.completions.create(messages=[QUESTION], **options)
    stream = client.chat.completions.create(messages=[QUESTION], stream=True, **options)
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 10
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_conversation_and_a_choice(client: OpenAI) -> None:
    said = client.chat.completions.create(
        model="policy",
        messages=[
            {"role": "system", "content": "Answer with one word."},
            {"role": "user", "content": "The capital of France?"},
            {"role": "assistant", "content": "Paris"},
            {"role": "user", "content": "The capital of Italy?"},
        ],
        temperature=0.0,
        max_tokens=16,
        extra_body={"choices": ["Rome", "Oslo"], "restrict": True},
    )
    assert said.choices[0].message.content == "Rome"


def test_chat_answers_line_by_line(address: str) -> None:
    command = [*LEGOS, "chat", "--url", f"{address}/v1", "--temperature", "0"]
    found = subprocess.run(
        [*command, "--max-tokens", "24"],
        input="What is the capital of France?\n/quit\n",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "Paris" in found.stdout
    assert "<|im_end|>" not in found.stdout
