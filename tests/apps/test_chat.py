"""The terminal chat: what it sends, what it shows, and how it ends."""

import asyncio
import io
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving
from tiny_folders import write_tiny_model

from legos.apps.adapters import loaded
from legos.apps.chat import Chat, chat
from legos.builtin import EXAMPLE
from legos.cli.process import main
from legos.errors import RecordError, RequestError
from legos.records.limits import EngineLimits
from legos.records.message import Sampling
from legos.run.folder import RunFolder
from legos.wiring.model import apply_lora, load_model

MODELS = {"data": [{"id": "policy", "owned_by": "legos"}]}


def said(text: str, finish_reason: str = "stop") -> HttpAnswer:
    tokens = {"token_ids": [], "token_logprobs": [], "versions": []}
    choice = {"message": {"content": text}, "finish_reason": finish_reason, **tokens}
    return HttpAnswer({"choices": [choice]})


def talk(url: str, text: str, **options: Any) -> int:
    given: dict[str, Any] = {
        "model": None,
        "api_key": None,
        "adapter": "policy",
        "system": "",
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 4,
        **options,
    }
    return chat(url=f"{url}/v1", source=io.StringIO(text), **given)


def test_a_pipe_is_answered_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    server = ScriptedServer(lambda asked: said("it [is] it"), models=MODELS)
    with serving(server) as url:
        code = talk(url, "one\n\ntwo\n/adapter rival@3\n/reset\nthree\n/quit\nfour\n", api_key="k")
    assert code == 0
    assert capsys.readouterr().out == "it [is] it\n" * 3
    asked_for = [[m["content"] for m in asked.body["messages"]] for asked in server.asked]
    assert asked_for == [["one"], ["one", "it [is] it", "two"], ["three"]]
    assert [asked.body["model"] for asked in server.asked] == ["policy", "policy", "rival@3"]
    first = server.asked[0]
    assert first.headers["authorization"] == "Bearer k"
    assert (first.body["temperature"], first.body["max_tokens"]) == (0.5, 9)
    assert len({asked.body["seed"] for asked in server.asked}) == 3


def test_a_seed_repeats_the_chat_and_a_system_message_comes_first() -> None:
    server = ScriptedServer(lambda asked: said("x"), models=MODELS)
    with serving(server) as url:
        talk(url, "one\n", system="be brief")
        talk(url, "one\n", system="be brief")
        talk(url, "one\n", seed=5)
    first, again, other = (asked.body for asked in server.asked)
    assert first == again
    assert first["seed"] != other["seed"]
    assert first["messages"][0] == {"role": "system", "content": "be brief"}


def test_what_goes_wrong_in_a_pipe_ends_it() -> None:
    refusal = HttpAnswer({"error": {"message": "too long"}}, 400)
    with (
        serving(ScriptedServer(lambda asked: refusal, models=MODELS)) as url,
        pytest.raises(RequestError, match="too long"),
    ):
        talk(url, "one\n")


def test_a_limit_of_no_token_is_refused() -> None:
    with pytest.raises(RecordError, match="max_tokens is 0; expected at least 1"):
        talk("http://127.0.0.1:9", "", max_tokens=0)


def test_without_a_url_a_model_of_this_process_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Nim: 5 left, last one wins. Moves: 1 2 3\n"))
    assert main(["chat", "--temperature", "0", "--max-tokens", "1"]) == 0
    (answer,) = capsys.readouterr().out.splitlines()
    assert len(answer) <= 8


def test_an_engine_in_this_process_shows_an_answer_as_it_is_sampled() -> None:
    async def pieces() -> tuple[list[str], str]:
        with loaded("builtin", [], EngineLimits()) as live:
            talk = Chat(
                client=live.client(),
                adapter="policy",
                sampling=Sampling(temperature=1.0, max_tokens=40),
                rng=random.Random(3),
            )
            shown: list[str] = []
            answer = await talk.answer("Hello, how are you today?", shown.append)
            return shown, answer.text

    shown, text = asyncio.run(pieces())
    assert "".join(shown) == text
    assert len([piece for piece in shown if piece]) > 1


def test_a_position_is_asked_as_games_ask_it_and_by_itself() -> None:
    server = ScriptedServer(lambda asked: said("2"), models=MODELS)
    with serving(server) as url:
        talk(url, "Hello\nNim: 5 left, last one wins. Moves: 1 2 3\nMoves: none\n")
    first, second, third = (asked.body for asked in server.asked)
    assert second["messages"] == [{"role": "user", "content": EXAMPLE}]
    assert (second["choices"], second["restrict"]) == (["1", "2", "3"], True)
    assert "max_tokens" not in second
    assert ["choices" in body for body in (first, third)] == [False, False]
    assert [m["content"] for m in third["messages"]] == ["Hello", "2", "Moves: none"]


def test_a_trained_policy_is_found_by_its_run_and_answers_with_moves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    model = load_model(inline=True)
    apply_lora(model)
    with run.new_run('model = "builtin"\n'):
        run.write_adapters([replace(model.base_adapter(), version=7, base_model="builtin")])
    asked = f"{EXAMPLE.replace(chr(10), ' ')}\n" * 5
    monkeypatch.setattr(sys, "stdin", io.StringIO(asked))
    assert main(["chat", "--adapter", f"{run.path}@v7", "--temperature", "1.5"]) == 0
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) == 5
    assert {1} <= {len(answer) for answer in answers} <= {0, 1}  # some may end at once
    other = write_tiny_model(tmp_path / "other")
    assert main(["chat", "--adapter", str(run.path), "--model", str(other)]) == 2
    assert f"trained on model 'builtin' and cannot be put on '{other}'" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_built_in_model_says_what_it_can_do() -> None:
    terminal = Terminal()
    terminal.wait_for("plays games")
    terminal.wait_for("Nim: 5 left, last one wins. Moves: 1 2 3")
    terminal.wait_for("> ")
    terminal.type("Nim: 5 left, last one wins. Moves: 1 2 3\n")
    terminal.wait_for("Moves: 1 2 3")
    terminal.wait_for("> ")
    terminal.type("/quit\n")
    assert terminal.close() == 0


class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, url: str | None = None) -> None:
        self.end, theirs = pty.openpty()
        command = [sys.executable, "-m", "legos", "chat"]
        command += [] if url is None else ["--url", f"{url}/v1"]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str, seconds: float = 30.0) -> None:
        """Read until the text is shown after all that was waited for before."""
        until = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < until, self.shown
            if select.select([self.end], [], [], 0.1)[0]:
                shown = os.read(self.end, 4096).decode()
                self.shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
        self.shown = self.shown.split(text, 1)[1]

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def interrupt(self) -> int:
        """Press Ctrl-C until the chat ends: Python may miss it just before it waits for a line."""
        for _ in range(10):
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=3)
                break
        return self.close()

    def close(self) -> int:
        code = self.process.wait(timeout=30)
        os.close(self.end)
        return code


def answering(pieces: Callable[[str], HttpAnswer | None]) -> ScriptedServer:
    def reply(asked: HttpAsked) -> HttpAnswer | None:
        return pieces(asked.body["messages"][-1]["content"])

    return ScriptedServer(reply, models=MODELS)


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_and_at_the_prompt_ends_the_chat() -> None:
    def reply(question: str) -> HttpAnswer | None:
        if question == "refuse":
            return HttpAnswer({"error": {"message": "too long"}}, 400)
        if question == "hello":
            return said("well", finish_reason="length")
        return None if question == "hang" else said("well")

    server = answering(reply)
    with serving(server) as url:
        terminal = Terminal(url)
        terminal.wait_for("> ")
        terminal.type("hello\n")
        terminal.wait_for("well")
        terminal.wait_for("cut off after 512 tokens")
        terminal.wait_for("> ")
        terminal.type("refuse\n")
        terminal.wait_for("too long")
        terminal.wait_for("> ")
        terminal.type("hang\n")
        while len(server.asked) < 3:
            time.sleep(0.02)
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("> ")
        assert server.left.wait(5)
        terminal.type("/reset\n")
        terminal.wait_for("forgotten")
        terminal.wait_for("> ")
        terminal.type("again\n")
        terminal.wait_for("well")
        terminal.wait_for("> ")
        assert terminal.interrupt() == 0
    assert [len(asked.body["messages"]) for asked in server.asked] == [1, 3, 3, 1]
