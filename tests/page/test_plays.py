"""The plays of a run: search, one play with its tokens, and the plays beside it."""

from pathlib import Path
from typing import Any

import pytest
from made_records import make_episode
from made_runs import add_play, answered, made_run, page_of
from msgspec.structs import replace
from starlette.testclient import TestClient

from legos.builtin import builtin_path
from legos.chat.load import load_tokenizer
from legos.run.folder import RunFolder

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
def folder(runs: Path) -> RunFolder:
    made = made_run(runs / "one")
    add_play(made, 0, "at first", reward=-1.0, evaluation=True)
    add_play(made, 1, "red fish", reward=0.25, advantage=-0.5)
    add_play(made, 1, "blue fish", reward=1.0, advantage=0.5)
    add_play(made, 2, "a longer answer", reward=0.5, task="other", question="Two?")
    add_play(made, 2, "", reward=0.0, task="third", error="ValueError: no cards\n")
    return made


@pytest.fixture
def page(folder: RunFolder) -> TestClient:
    return page_of(folder.path)


def numbers(page: TestClient, **query: Any) -> list[int]:
    return [row["number"] for row in answered(page, "plays", run="one", **query)["rows"]]


def test_the_newest_play_comes_first(page: TestClient) -> None:
    found = answered(page, "plays", run="one")
    assert [row["number"] for row in found["rows"]] == [5, 4, 3, 2, 1]
    assert (found["total"], found["waiting"], found["roles"]) == (5, 0, ["only"])
    row = found["rows"][2]
    assert (row["asked"], row["answer"], row["rewards"]) == ("One?", "blue fish", {"only": 1.0})
    assert (row["tokens"], row["advantages"], row["step"]) == (9, {"only": 0.5}, 1)
    assert found["rows"][0]["failure"] == "failed"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"text": "FISH"}, [3, 2]),
        ({"text": "fish blue"}, [3]),
        ({"text": "two?"}, [4]),
        ({"text": "no cards"}, [5]),
        ({"task": "other"}, [4]),
        ({"kind": "evaluation"}, [1]),
        ({"kind": "training", "step_max": 1}, [3, 2]),
        ({"failed": True}, [5]),
        ({"reward_min": 0.5}, [4, 3]),
        ({"reward_max": 0, "role": "only"}, [5, 1]),
        ({"role": "nobody"}, []),
        ({"step_min": 2}, [5, 4]),
        ({"sort": "reward"}, [3, 4, 2, 5, 1]),
        ({"sort": "tokens", "descending": False}, [5, 1, 2, 3, 4]),
        ({"limit": 2, "offset": 1}, [4, 3]),
    ],
)
def test_plays_are_searched(page: TestClient, query: dict[str, Any], expected: list[int]) -> None:
    assert numbers(page, **query) == expected


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"sort": "size"}, "sort"),
        ({"limit": 10**6}, "limit"),
        ({"colour": 1}, "colour"),
        ({"step_min": 1 << 64}, "step_min"),
        ({"step_max": -(1 << 64)}, "step_max"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(
    page: TestClient, query: dict[str, Any], told: str
) -> None:
    refused = page.get("/api/plays", params={"run": "one", **query})
    assert refused.status_code == 400
    assert told in refused.json()["error"]["message"]


def test_lines_that_are_no_play_are_named_and_the_rest_is_shown(folder: RunFolder) -> None:
    with folder.episodes.open("a") as file:
        file.write('{"step": 3}\n')
    add_play(folder, 3, "after it")
    with folder.episodes.open("a") as file:
        file.write('{"step": 4, "arena"')
    found = answered(page_of(folder.path), "plays", run="one")
    assert [row["number"] for row in found["rows"]] == [7, 5, 4, 3, 2, 1]
    assert found["damaged"] == [6]


def test_new_plays_are_seen_and_removed_ones_are_forgotten(
    folder: RunFolder, page: TestClient
) -> None:
    assert numbers(page)[0] == 5
    add_play(folder, 3, "new")
    assert numbers(page)[0] == 6
    folder.episodes.write_bytes(folder.episodes.read_bytes().split(b"\n")[0] + b"\n")
    assert numbers(page) == [1]


def test_older_plays_are_read_from_their_compressed_files(
    folder: RunFolder, page: TestClient
) -> None:
    assert numbers(page)[0] == 5
    folder.plays.append(b"", full_at=1)
    folder.plays.pack(1 << 20)
    add_play(folder, 3, "a new file")
    assert not folder.episodes.read_bytes().count(b"red fish")
    assert numbers(page) == numbers(page_of(folder.path)) == [6, 5, 4, 3, 2, 1]
    assert answered(page, "plays/2", run="one")["turns"][0]["said"] == "red fish"
    assert answered(page, "plays/6", run="one")["turns"][0]["said"] == "a new file"


def test_a_play_has_what_is_known_of_each_token(page: TestClient) -> None:
    play = answered(page, "plays/3", run="one")
    [turn] = play["turns"]
    assert turn["messages"] == [{"role": "user", "content": "One?"}]
    assert (turn["said"], turn["role"], turn["id"]) == ("blue fish", "only", 0)
    assert turn["token_ids"] == list(b"blue fish")
    assert turn["versions"] == [3] * 9
    assert turn["logprobs"] == [-0.5] * 9
    assert turn["trained"]["logprobs"] == [-0.25] * 9
    assert turn["trained"]["clipped"] == [0]
    assert turn["trained"]["advantage"] == 0.5
    [seat] = play["seats"]
    assert (seat["seat"], seat["versions"]) == ("policy", [3])
    assert answered(page, "plays/1", run="one")["turns"][0]["trained"] is None


def test_a_play_has_its_group_and_its_task_at_other_steps(page: TestClient) -> None:
    play = answered(page, "plays/3", run="one")
    assert [row["number"] for row in play["group"]] == [2, 3]
    assert [row["advantages"]["only"] for row in play["group"]] == [-0.5, 0.5]
    assert [row["number"] for row in play["same_task"]] == [1]
    beside = answered(page, "plays/1", run="one")["same_task"]
    assert [(row["number"], row["step"]) for row in beside] == [(2, 1)]


def test_a_play_that_is_not_there_is_said_so(page: TestClient) -> None:
    refused = page.get("/api/plays/9", params={"run": "one"})
    assert refused.status_code == 404
    assert "has no play 9" in refused.json()["error"]["message"]


def test_hostile_text_is_data(folder: RunFolder, page: TestClient) -> None:
    add_play(folder, 3, HOSTILE, question=HOSTILE)
    found = page.get("/api/plays", params={"run": "one", "text": "<script>alert(1)"})
    assert [row["answer"] for row in found.json()["rows"]] == [HOSTILE]
    assert found.headers["content-type"] == "application/json"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert "script-src 'self'" in found.headers["content-security-policy"]


def test_moves_of_a_solved_game_have_their_values(runs: Path) -> None:
    folder = made_run(runs / "one", play__options={"largest": 6})
    question = "Nim: 6 left, last one wins.\nMoves: 1 2 3"
    add_play(folder, 1, "1", question=question, arena="nim", role="first")
    add_play(folder, 1, "1", question="Hello?", arena="nim", role="first")
    add_play(folder, 1, "1", question=question, arena="other")
    page = page_of(folder.path)
    moves = answered(page, "plays/1/exact", run="one")["turns"]["0"]
    values = {each["move"]: (each["value"], each["optimal"]) for each in moves}
    assert values == {"1": (-1.0, 0.0), "2": (1.0, 1.0), "3": (-1.0, 0.0)}
    found = answered(page, "plays/2/exact", run="one")
    assert found == {"turns": {}, "why": None, "sampled": {}}
    why = answered(page, "plays/3/exact", run="one")["why"]
    assert why == "other is no game that is installed here under a name of its own"


def test_moves_have_the_probability_of_the_plays_of_their_step(runs: Path) -> None:
    folder = made_run(runs / "one", play__options={"largest": 6})
    question, choices = "Nim: 6 left, last one wins.\nMoves: 1 2 3", ("1", "2", "3")
    of_nim: dict[str, Any] = {"arena": "nim", "role": "first", "choices": choices}
    for step, move in ((1, "1"), (1, "2"), (2, "3")):
        add_play(folder, step, move, question=question, **of_nim)
    sampled = answered(page_of(folder.path), "plays/1/exact", run="one")["sampled"]["0"]
    assert sorted(sampled) == ["1", "2"]
    assert all(0 < chance < 1 for chance in sampled.values())


@pytest.mark.parametrize(
    ("arena", "options"), [("math", {"data": "x.jsonl"}), ("absolute_zero", {})]
)
def test_only_games_are_made_for_exact_values(
    arena: str, options: dict[str, str], runs: Path
) -> None:
    folder = made_run(runs / "one", arena=arena, play__options=options)
    add_play(folder, 1, "1", arena=arena.replace("_", ""))
    why = answered(page_of(folder.path), "plays/1/exact", run="one")["why"]
    assert why == f"{arena} is no game"


def test_a_game_that_is_too_large_says_so(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.page.exact.MAX_STATES", 10)
    folder = made_run(runs / "one")
    add_play(folder, 1, "1", arena="nim")
    why = answered(page_of(folder.path), "plays/1/exact", run="one")["why"]
    assert why == "nim has more than 10 states, and the page solves no larger game"


@pytest.mark.parametrize("named", [":Mine", ""])
def test_a_file_that_a_run_names_is_not_run(named: str, runs: Path, tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text("raise SystemExit('this was run')")
    arena = f"{code}{named}"
    folder = made_run(runs / "one", arena=arena)
    add_play(folder, 1, "1", question="Nim: 6 left, last one wins.\nMoves: 1 2 3", arena=arena)
    page = page_of(folder.path)
    found = answered(page, "plays/1/exact", run="one")
    assert found["turns"] == {}
    assert found["why"] == f"{arena} is no game that is installed here under a name of its own"


def test_tokens_without_their_tokenizer_are_shown_as_numbers(runs: Path) -> None:
    folder = made_run(runs / "one", model="nobody/has-this-model")
    add_play(folder, 1, "1")
    found = answered(page_of(folder.path), "plays/1/pieces", run="one")
    assert found["turns"] is None
    assert "the tokenizer of nobody/has-this-model is not on this machine" in found["why"]


@pytest.mark.slow
def test_answers_are_split_into_their_tokens(runs: Path) -> None:
    folder = made_run(runs / "one", model="builtin")
    tokenizer = load_tokenizer(builtin_path())
    episode = add_play(folder, 1, "Nim: 3")
    turn = episode.rollouts[0].turns[0]
    ids = tokenizer.encode("Nim: 3")
    zeros = {"logprobs": (0.0,) * len(ids), "versions": (0,) * len(ids)}
    said = replace(turn.completion, token_ids=ids, **zeros)
    again = replace(episode.rollouts[0], turns=(replace(turn, completion=said),))
    folder.add_episodes(1, [replace(episode, rollouts=(again,))])
    found = answered(page_of(folder.path), "plays/2/pieces", run="one")
    assert found == {"turns": [list("Nim: 3")], "why": None}


def test_rewards_of_a_row_stand_in_the_order_of_the_seats(runs: Path) -> None:
    folder = made_run(runs / "one")
    folder.add_episodes(1, [make_episode({"first": -1.0, "second": 1.0})])
    [row] = answered(page_of(folder.path), "plays", run="one")["rows"]
    assert [*row["rewards"].items()] == [("first", -1.0), ("second", 1.0)]
