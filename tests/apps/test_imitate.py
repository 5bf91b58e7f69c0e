"""``legos imitate``: what is read, and a loss that is the negative log-likelihood and falls."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import made_run
from metric_lines import read_steps
from short_runs import NIM

from legos import Message, load_model
from legos.apps.imitate import Imitation, model_of
from legos.cli.process import main
from legos.config.resolve import ResolvedConfig
from legos.errors import ArenaError
from legos.run.episodes import parse_episode
from legos.run.play_files import NewPlays

QUESTION, ANSWER = "Nim: 5 left, last one wins.\nMoves: 1 2 3", "1"
ROW = {"prompt": QUESTION, "completion": ANSWER}


def written(folder: Path, *rows: Any) -> str:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(file)


def pairs(data: str, **options: Any) -> list[tuple[Any, Any]]:
    return [task.data for task in Imitation(data=data, held_out=0.0, **options).answers]


def imitated(data: str, out: Path, *options: str) -> Sequence[Any]:
    assert main(["imitate", data, "--out", str(out), "--loop.deterministic", *options]) == 0
    return read_steps(out / "metrics.jsonl")


@pytest.mark.slow
def test_the_loss_is_the_negative_log_likelihood_of_the_answer(tmp_path: Path) -> None:
    few = ("--play.tasks-per-step", "8", "--training.min-samples-per-step", "8")
    steps = imitated(written(tmp_path, ROW), tmp_path / "run", "--steps", "15", *few)
    model = load_model()
    prompt_ids = model.tokenizer.render((Message("user", QUESTION),))
    said = (*model.tokenizer.encode(ANSWER), *model.tokenizer.end_ids)
    logits = model((*prompt_ids, *said))[len(prompt_ids) - 1 : -1].astype(np.float64)
    model.close()
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    likelihood = np.mean([row[token] for row, token in zip(logprobs, said, strict=True)])
    assert steps[0]["loss"] == pytest.approx(-likelihood, abs=1e-4)
    assert steps[0]["reward_mean"] == pytest.approx(likelihood, abs=1e-4)
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    assert steps[-1]["logprob_gap"] < 1e-3


def test_the_forms_of_a_row(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    talk = {"prompt": chat[:2], "completion": chat[2:3]}
    system, user = ["system", "s"], ["user", "a"]
    assert pairs(written(tmp_path, ROW, {"messages": chat}, talk)) == [
        ([["user", QUESTION]], ANSWER),
        ([system, user], "b"),
        ([system, user, ["assistant", "b"], ["user", "c"]], "d"),
        ([system, user], "b"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x"}, r":1: the row has text; expected messages, or prompt and completion"),
        ({"messages": 5}, r":1: messages: Expected `str \| array`, got `int`; expected a text,"),
        (
            {"messages": [{"role": "user"}]},
            r"missing required field `content` - at `\$\[0\]`; expected a text, or",
        ),
        (
            {"prompt": "a", "completion": None},
            r":1: completion: Expected `str \| array`, got `null`; expected a",
        ),
        ({"messages": [{"role": "user", "content": "a"}]}, "has no answer to imitate; a row needs"),
        ("[1", "the row is no JSON"),
    ],
)
def test_a_row_of_another_form_is_named(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match=message):
        Imitation(data=written(tmp_path, row))


@pytest.mark.slow
def test_the_best_plays_of_a_run_are_imitated_token_by_token(tmp_path: Path) -> None:
    run = tmp_path / "nim"
    kept = ("--loop.plays-kept", "1", "--loop.evaluate-every", "0")
    assert main(["train", "--out", str(run), "--steps", "2", "--deterministic", *NIM, *kept]) == 0
    plays = [parse_episode(line) for _, line in NewPlays(run / "episodes.jsonl").read()]
    trained = [play for play in plays if play.evaluation is not True]
    won = [seat for play in trained for seat in play.seats if play.rewards[seat.role] >= 1]
    found = pairs(str(run))
    assert len(found) == sum(len(seat.turns) for seat in won) > 0
    assert [list(answer) for _, answer in found] == [t.token_ids for s in won for t in s.turns]
    assert len(pairs(str(run), min_reward=-1.0)) > len(found)
    steps = imitated(str(run), tmp_path / "run", "--epochs", "3")
    assert steps[0]["loss"] == pytest.approx(-steps[0]["reward_mean"], abs=0.2)  # by token, by play
    with pytest.raises(ArenaError, match=r"reward of at least 5 \(--play.options.min_reward\)"):
        pairs(str(run), min_reward=5.0)


def test_the_model_of_an_imitated_run_is_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "nim.v1"  # no file, though the name has a dot
    assert main(["train", "--out", str(run), "--steps", "1", "--deterministic", *NIM]) == 0
    assert model_of(str(run), None) == "builtin"
    assert model_of("rows.jsonl", None) is None
    assert main(["imitate", str(run), "--model", "org/other", "--out", str(tmp_path / "o")]) == 2
    assert "was played by 'builtin', and its answers are tokens" in capsys.readouterr().err
    assert main(["imitate", str(run), "--epochs", "nan", "--out", str(tmp_path / "o")]) == 2
    assert "--epochs is nan; expected a number above 0" in capsys.readouterr().err


@pytest.mark.slow
def test_an_epoch_has_the_answers_that_are_not_held_out(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}", "completion": "1"} for number in range(40)]
    data, options = written(tmp_path, *rows), ("--play.tasks-per-step", "2")
    found = len(Imitation(data=data, held_out=0.5).answers)
    assert 10 < found < 30
    steps = imitated(data, tmp_path / "run", "--play.options.held_out", "0.5", *options)
    assert len(steps) == round(found / 2)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("helf_out", "0.5"), "TypeError: Arena.__init__() got an unexpected keyword argument"),
        (("held_out", "half"), "held_out"),
    ],
)
def test_an_option_that_the_arena_does_not_take_is_named(
    option: tuple[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, value = option
    assert main(["imitate", written(tmp_path, ROW, ROW), f"--play.options.{name}", value]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_does_not_exist_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["imitate", "missing", "--out", "out"]) == 2
    assert "error: missing holds no run" in capsys.readouterr().err
    assert not Path("out").exists()


def test_settings_of_a_file_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(tmp_path, *({"prompt": f"{n}", "completion": "1"} for n in range(40)))
    config, found = tmp_path / "some.toml", list[ResolvedConfig]()
    monkeypatch.setattr(
        "legos.cli.imitate.start", lambda resolved, *_, **__: found.append(resolved)
    )
    for text in ("[play]\ntasks_per_step = 2\noptions = {held_out = 0.5}", "[loop]\nsteps = 7"):
        config.write_text(text)
        assert main(["imitate", data, "--config", str(config)]) == 0
    half, seven = (resolved.config for resolved in found)
    assert half.loop.steps == round(len(Imitation(data=data, held_out=0.5).answers) / 2)
    assert seven.loop.steps == 7


def test_a_file_names_no_other_model_than_that_of_the_imitated_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, config = made_run(tmp_path / "nim").path, tmp_path / "some.toml"
    config.write_text('model = "org/other"')
    assert main(["imitate", str(run), "--config", str(config), "--out", str(tmp_path / "o")]) == 2
    assert "model is 'org/other' but" in capsys.readouterr().err
