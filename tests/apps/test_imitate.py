"""``legos imitate``: what is read, and a loss that is the negative log-likelihood and falls."""

import asyncio
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import make_episode, make_turn
from made_runs import made_run
from metric_lines import read_steps
from msgspec.structs import replace
from short_runs import NIM
from starlette.testclient import TestClient

from legos import Message, Trainer, TrainingConfig, load_model
from legos.apps import imitate
from legos.apps.imitate import SETTINGS, Imitation, model_of, num_steps
from legos.cli.process import main
from legos.config.resolve import ResolvedConfig, resolve
from legos.credit.imitated import ImitationCredit
from legos.errors import ArenaError, ConfigError
from legos.run.episodes import StoredEpisode, numbered_episode, parse_episode
from legos.run.play_files import NewPlays, OldPlays, PlayFiles
from legos.server.options import ServerOptions
from legos.wiring.http import app_of

QUESTION, ANSWER = "Nim: 5 left, last one wins.\nMoves: 1 2 3", "1"
ROW = {"prompt": QUESTION, "completion": ANSWER}


def written(folder: Path, *rows: Any) -> str:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(file)


def pairs(data: str, **options: Any) -> list[tuple[Any, ...]]:
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_weight_corrects_for_a_policy_that_sampled_nothing(dtype: str) -> None:
    training = resolve(overrides=SETTINGS).config.training.anchored(dtype)
    assert training.objective(0, 10).anchor == "behaviour"


def test_the_forms_of_a_row(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    talk = {"prompt": chat[:2], "completion": chat[2:3]}
    system, user, said = chat[:3]
    assert pairs(written(tmp_path, ROW, {"messages": chat}, talk)) == [
        ([{"role": "user", "content": QUESTION}], {"role": "assistant", "content": ANSWER}, []),
        ([system, user], said, []),
        ([system, user, said, chat[3]], chat[4], []),
        ([system, user], said, []),
    ]


@pytest.mark.slow
def test_a_chat_with_tools_is_rendered_as_the_server_does(tmp_path: Path) -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    called = {"id": "call_1", "type": "function", "function": function}
    parts = [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [called], "refusal": None},
        {"role": "tool", "content": "", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "2"},
    ]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    data = written(tmp_path, {"messages": messages, "tools": tools})
    model = load_model()
    trainer = Trainer(model=model, config=TrainingConfig(min_samples_per_step=1))
    asyncio.run(trainer.publish_weights())
    options = ServerOptions.for_host("127.0.0.1", api_key=None)
    app = app_of(model, trainer.engine, name="builtin", options=options)
    arena = Imitation(trainer.client(), data=data, held_out=0.0, credit_assigner=ImitationCredit())
    arena.tasks_per_step = 2
    with TestClient(app, base_url="http://127.0.0.1") as http:
        batch = asyncio.run(arena.step())
        turns = [episode.rollouts[0].turns[0].completion for episode in batch.episodes]
        turns.sort(key=lambda turn: len(turn.prompt_ids))
        for before, turn in zip((2, 4), turns, strict=True):
            body = {"messages": messages[:before], "tools": tools}
            assert list(turn.prompt_ids) == http.post("/tokenize", json=body).json()["tokens"]
    trainer.close()
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert [turn.text for turn in turns] == [call, "2"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x"}, r":1: the row has text; expected messages, or prompt and completion"),
        ({"messages": 5}, r":1: messages: Input should be a valid list; expected a text, or a"),
        (
            {"messages": [{"content": "a"}]},
            r":1: messages.0.role: Field required; expected a text, or a list of messages",
        ),
        (
            {"prompt": "a", "completion": None},
            r":1: the roles of the row's messages are user; expected",
        ),
        (
            {"prompt": [{"role": "user", "content": "a", "mood": "b"}], "completion": "c"},
            r":1: prompt\.0\.mood is not known; known: .*; expected a text",
        ),
        ({**ROW, "tools": [{"name": "f"}]}, r":1: tools\.0\.type: Field required; .*; and tools"),
        (
            {"messages": [{"role": "user", "content": "a"}]},
            r":1: the roles of the row's messages are user; expected an assistant's message after",
        ),
        ({"prompt": [], "completion": "a"}, ":1: the roles of the row's messages are assistant;"),
        ({**ROW, "completion": ""}, ":1: the text of message 1 of the row, .*, is empty; write"),
        (
            {"prompt": "a", "completion": [{"role": "assistant", "content": None}]},
            ":1: the text of message 1 of the row",
        ),
        ({**ROW, "system": "a"}, ":1: the row has system, which is not read; make it the first"),
        ({**ROW, "chat_template_kwargs": {"a": 1}}, ":1: the row has chat_template_kwargs, which"),
        ("[1", "the row is no JSON"),
    ],
)
def test_a_row_of_another_form_is_named(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match=message):
        Imitation(data=written(tmp_path, row))
    with pytest.raises(ArenaError, match=message.replace(":1:", ":2:")):  # beside a good one too
        Imitation(data=written(tmp_path, ROW, row))


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
    assert [list(answer) for _, answer, *_ in found] == [t.token_ids for s in won for t in s.turns]
    assert len(pairs(str(run), min_reward=-1.0)) > len(found)
    steps = imitated(str(run), tmp_path / "run", "--epochs", "3")
    assert steps[0]["loss"] == pytest.approx(-steps[0]["reward_mean"], abs=0.2)  # by token, by play
    with pytest.raises(ArenaError, match=r"reward of at least 5 \(--play.options.min_reward\)"):
        pairs(str(run), min_reward=5.0)


def test_an_answer_that_was_not_legal_is_not_imitated(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    first, second = make_turn((1, 2), (3,)), make_turn((1, 2, 3, 4), (5,))
    turns = {"only": [replace(first, legal=False), replace(second, legal=True)]}
    run.add_episodes(1, [make_episode({"only": 1.0}, turns=turns)])
    assert pairs(str(run.path)) == [([1, 2, 3, 4], [5])]


def test_rewards_of_turns_count_in_what_a_seat_has_earned(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    for reward, of_turn in ((0.0, 1.0), (1.0, -3.0)):
        turns = {"only": [make_turn((1, 2), (3,), reward=of_turn)]}
        run.add_episodes(1, [make_episode({"only": reward}, turns=turns)])
    assert pairs(str(run.path)) == [([1, 2], [3])]


def test_one_file_of_a_run_is_in_memory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read = made_run(tmp_path / "run"), list[str]()
    for token in (3, 4):
        turns = {"only": [make_turn((1, 2), (token,))]}
        run.add_episodes(1, [make_episode({"only": 1.0}, turns=turns)])
        PlayFiles(run.episodes).append(b"", full_at=1)

    def lines(old: OldPlays) -> list[tuple[int, bytes]]:
        read.append("file")
        return list(enumerate(old.data().splitlines(), start=old.first))

    def parsed(path: Path, number: int, line: bytes) -> StoredEpisode:
        read.append("play")
        return numbered_episode(path, number, line)

    monkeypatch.setattr(OldPlays, "lines", lines)
    monkeypatch.setattr(imitate, "numbered_episode", parsed)
    assert pairs(str(run.path)) == [([1, 2], [3]), ([1, 2], [4])]
    assert read == ["file", "play", "file", "play"]


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, 2),  # of 32 answers
        ({"play.tasks_per_step": 8}, 4),  # a step waits for 16 samples
        ({"play.tasks_per_step": 8, "play.group_size": 2}, 8),
        ({"play.tasks_per_step": 8, "training.min_samples_per_step": 4}, 8),
        ({"play.tasks_per_step": 60}, 2),  # the four that are left in another step
    ],
)
def test_an_epoch_has_as_many_steps_as_train_on_every_answer_once(
    tmp_path: Path, given: dict[str, Any], steps: int
) -> None:
    options = {"play.options.data": written(tmp_path, *[ROW] * 64), "play.options.held_out": 0.0}
    assert num_steps(resolve(overrides={**options, **given}).config, 1.0) == steps
    with pytest.raises(ConfigError, match="tokens_per_step is 9, but --epochs counts answers"):
        num_steps(resolve(overrides={**options, "training.tokens_per_step": 9}).config, 1.0)


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
    refused = capsys.readouterr().err
    assert "--epochs" in refused
    assert "Expected a finite number" in refused


def test_a_run_whose_name_has_a_dot_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made_run(Path("runs/nim.v1"))
    assert model_of("nim.v1", None) == "builtin"


@pytest.mark.slow
def test_an_epoch_has_the_answers_that_are_not_held_out(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}", "completion": "1"} for number in range(40)]
    data = written(tmp_path, *rows)
    options = ("--play.tasks-per-step", "2", "--training.min-samples-per-step", "2")
    found = len(Imitation(data=data, held_out=0.5).answers)
    assert 10 < found < 30
    steps = imitated(data, tmp_path / "run", "--play.options.held_out", "0.5", *options)
    assert len(steps) == math.ceil(found / 2)


def test_answers_are_held_out_in_random_order(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}", "completion": "1"} for number in range(40)]
    arena = Imitation(data=written(tmp_path, *rows), held_out=0.5)
    orders = {tuple(task.id for task in arena.held_out(random.Random(n)) or ()) for n in range(9)}
    assert len(orders) > 1


def test_data_that_is_held_out_whole_is_named(tmp_path: Path) -> None:
    data = written(tmp_path, ROW)
    with pytest.raises(ArenaError, match=r"all 1 answers of .* give more, or .*held_out 0$"):
        Imitation(data=data, held_out=0.999)
    assert len(Imitation(data=data, held_out=0).answers) == 1


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


@pytest.mark.parametrize("length", [("--steps", "2"), ("--epochs", "2")])
def test_a_dry_run_reads_the_data(
    length: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["imitate", written(tmp_path, {"text": "a"}), "--dry-run", *length]) == 2
    assert ":1: the row has text" in capsys.readouterr().err


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
    two = "training.min_samples_per_step = 1\n[play]\ntasks_per_step = 2\noptions = {held_out=0.5}"
    for text in (two, "[loop]\nsteps = 7"):
        config.write_text(text)
        assert main(["imitate", data, "--config", str(config)]) == 0
    half, seven = (resolved.config for resolved in found)
    assert half.loop.steps == round(len(Imitation(data=data, held_out=0.5).answers) / 2)
    assert seven.loop.steps == 7


@pytest.mark.parametrize("thinking", [None, "low"])
def test_the_plays_of_a_run_are_imitated_with_its_thinking(
    thinking: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[ResolvedConfig]()
    monkeypatch.setattr(
        "legos.cli.imitate.start", lambda resolved, *_, **__: found.append(resolved)
    )
    run = made_run(tmp_path / "nim", generation__thinking=thinking).path
    assert main(["imitate", str(run), "--steps", "2"]) == 0
    assert [resolved.config.generation.thinking for resolved in found] == [thinking]


def test_a_file_names_no_other_model_than_that_of_the_imitated_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, config = made_run(tmp_path / "nim").path, tmp_path / "some.toml"
    config.write_text('model = "org/other"')
    assert main(["imitate", str(run), "--config", str(config), "--out", str(tmp_path / "o")]) == 2
    assert "model is 'org/other' but" in capsys.readouterr().err
