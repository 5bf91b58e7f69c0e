"""The command line that repeats a run gives the same settings."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from legos.cli.process import main
from legos.cli.run_settings import resolve_run
from legos.config.command import train_command
from legos.config.resolve import ResolvedConfig, settings_of

CHOSEN: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "plain": {"arena": "kuhn", "seed": 3, "training.learning_rate": 1e-4},
    "switches": {"loop.deterministic": True, "loop.keep_awake": False},
    "less is better": {"loop.keep_best": "-exploitability", "out": Path("runs/x")},
    "options": {"play.options.largest": 7, "play.options.k": "3", "play.options.text": "a b"},
    "dashes": {"play.options.text": "-a", "play.options.low": -1, "track.tags": ("-x", "y")},
    "shares": {"play.opponents": {"self": 0.5, "past": 0.5}, "play.opponents_end": {}},
    "several": {"server": ("http://a:1", "http://b:2"), "generation.max_tokens": None},
    "mix": {"mix.nim.share": 0.25, "mix.kuhn.share": 0.75},
}


@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
def test_the_words_give_the_same_settings(
    chosen: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = resolve_run([], resume=None, overrides=chosen)
    words = train_command(settings_of(wanted.config), wanted.sources)
    found: list[ResolvedConfig] = []
    monkeypatch.setattr("legos.cli.train.start", lambda resolved, *_, **__: found.append(resolved))
    assert main(words[1:]) == 0
    [resolved] = found
    before, after = settings_of(wanted.config), settings_of(resolved.config)
    assert {**before, "out": None} == {**after, "out": None}


def test_settings_of_one_arena_of_a_mix_need_the_file() -> None:
    mix = {"mix.nim.share": 0.25, "mix.kuhn.share": 0.75, "mix.nim.max_tokens": 3}
    resolved = resolve_run([], resume=None, overrides=mix)
    words = train_command(settings_of(resolved.config), resolved.sources)
    assert words == ["legos", "train", "--config", "config.toml"]


@pytest.mark.parametrize("lacking", [("--resume", "runs/there"), ("--arena", "there.py:Game")])
def test_a_process_on_a_machine_without_the_run_follows_the_first_one(
    lacking: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    followed: list[str] = []
    device = SimpleNamespace(join=int, follow=followed.append)
    numbers = {"SIGINT": 2, "SIGTERM": 15, "SIGHUP": 1, "SIG_IGN": None}
    ignored = SimpleNamespace(**numbers, signal=lambda *_: None)
    monkeypatch.setattr("legos.wiring.model.mlx_device", lambda: device)
    monkeypatch.setattr("legos.wiring.model.signal", ignored)
    for rank, code in (("0", 2), ("1", 0)):
        monkeypatch.setenv("MLX_RANK", rank)
        assert main(["train", *lacking, "--model", "x/small"]) == code
    assert followed == ["x/small"]
