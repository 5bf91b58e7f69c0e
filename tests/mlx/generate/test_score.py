"""Scores: exact, in blocks between the steps of others, under the weights they began with."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from legos.errors import EngineError, RequestError
from legos.mlx.generate import score
from legos.records.batch import pad_rows
from legos.records.request import Generated, Request

Room = Callable[..., Any]
Prompts = list[tuple[tuple[int, ...], list[tuple[int, ...]]]]
END = 2
BOTH_WAYS = pytest.mark.parametrize("decode_ahead", ["off", "on"])


@pytest.fixture
def decode_ahead() -> str:
    """Scores alone are computed without decoding."""
    return "off"


def expected(tree: Any, prompts: Prompts) -> list[list[float]]:
    """From a forward pass per answer; an answer that begins another one is followed by the end."""

    def score(prompt: tuple[int, ...], answer: tuple[int, ...], ended: bool) -> float:
        whole = prompt + answer + (END,) * ended
        chosen = list(whole[len(prompt) :])
        logits = tree(mx.array([list(whole)]))[0, len(prompt) - 1 : -1].astype(mx.float32)
        exact = np.array(logits, np.float64)
        logprobs = exact[np.arange(len(chosen)), chosen] - np.logaddexp.reduce(exact, axis=1)
        return float(logprobs.sum())

    return [
        [
            score(prompt, answer, any(o != answer and o[: len(answer)] == answer for o in answers))
            for answer in answers
        ]
        for prompt, answers in prompts
    ]


def some_prompts(count: int, *, length: int = 9) -> Prompts:
    rng = np.random.default_rng(0)
    return [
        (
            tuple(rng.integers(3, 350, length).tolist()),
            [(5,), (5, 6), tuple(rng.integers(3, 350, 3).tolist())],
        )
        for _ in range(count)
    ]


def check(found: list[list[float]], wanted: list[list[float]]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("chunk", [4, 30, 512])
def test_scores_are_those_of_forward_passes(room: Room, chunk: int) -> None:
    """However small the blocks are, and where one row is longer than a block."""
    one = room("llama", chunk_tokens=chunk, prefill_tokens=max(chunk, 60))
    prompts: Prompts = [*some_prompts(4), *some_prompts(1, length=40), ((7,), [()])]
    scores = one.engine.score(prompts, end_ids=(END,))
    base = one.engine.score(prompts[:1], end_ids=(END,), adapter="base")
    one.finish()
    check(scores.result(timeout=0), expected(one.tree, prompts))
    assert base.result(timeout=0)[0] != pytest.approx(scores.result()[0], abs=1e-3)
    assert one.engine.stats()["scores_running"] == 0


@pytest.mark.parametrize("chunk", [4, 512])
def test_scores_by_token_are_those_of_forward_passes(room: Room, chunk: int) -> None:
    """Equal answers, answers of one token, and a row that is longer than a block."""
    one = room("llama", chunk_tokens=chunk, prefill_tokens=max(chunk, 60))
    whole = [*some_prompts(3), *some_prompts(1, length=40)]
    prompts = [(prompt, [answers[-1]]) for prompt, answers in whole for _ in range(2)]
    prompts += [((7,), [(8,)]), ((7,), [(9,)])]
    scores = one.engine.score(prompts, end_ids=(END,), by_token=True)
    one.finish()
    wanted = [
        [
            expected(one.tree, [((*prompt, *answer[:at]), [answer[at : at + 1]])])[0][0]
            for at in range(len(answer))
        ]
        for prompt, (answer,) in prompts
    ]
    check(scores.result(timeout=0), wanted)


@pytest.mark.parametrize("answers", [[], [()], [(5,), (6,)]])
def test_a_score_by_token_needs_one_answer(room: Room, answers: list[tuple[int, ...]]) -> None:
    one = room("llama")
    scores = one.engine.score([((7,), answers)], end_ids=(), by_token=True)
    one.finish()
    with pytest.raises(
        RequestError, match=r"cannot score by token: .* give each prompt one answer"
    ):
        scores.result(timeout=0)


@BOTH_WAYS
def test_decoding_goes_on_beside_a_long_score(room: Room) -> None:
    """Everybody else gets a token in every step, and scores have as much of its time."""
    one = room("llama", chunk_tokens=40)
    scores = one.engine.score(some_prompts(300), end_ids=(END,))
    one.tick()
    ask = {n: Request(prompt_ids=(n,), max_tokens=20, seed=n, stream=True) for n in range(5, 9)}
    one.submit(ask)
    for step in range(1, 21):
        before = len(one.engine._scheduler.scores._scores[0]._found)
        one.tick()
        assert all(len(one.answers[n]) >= step for n in ask)
        planned = len(one.engine._scheduler.scores._scores[0]._found)
        assert planned - before <= 2  # one block of 40 tokens: two prompts of 20 or 21
    assert not scores.done()
    one.finish()
    assert all(isinstance(one.answers[n][-1], Generated) for n in ask)
    check(scores.result(timeout=0)[:3], expected(one.tree, some_prompts(300)[:3]))


def test_scores_have_their_blocks_in_turn(room: Room) -> None:
    one = room("llama", prefill_tokens=512)
    long = one.engine.score(some_prompts(300), end_ids=(END,))
    one.tick(2)
    short = one.engine.score(some_prompts(2), end_ids=(END,))
    one.tick(2)
    assert short.done()
    assert not long.done()


def test_equal_prompts_are_computed_once_and_every_answer_in_one_row(room: Room) -> None:
    one = room("llama", chunk_tokens=64, prefill_tokens=64)
    prompt, answers = tuple(range(3, 23)), [tuple(range(30, 60)), (5, 6)]
    forward, seen = one.engine._scheduler.scores._forward, []
    trunk = forward.trunk
    forward.trunk = lambda ids, **given: seen.append(ids.size) or trunk(ids, **given)
    prompts: Prompts = [(prompt, list(answers))] * 50
    scores = one.engine.score(prompts, end_ids=(END,))
    one.finish()
    forward.trunk = trunk
    assert sum(seen) == 20 + 29 + 20 + 1  # each answer but its last token, after the prompt
    check(scores.result(timeout=0), expected(one.tree, prompts[:1]) * 50)


@pytest.mark.parametrize("shared", [False, True], ids=["different rows", "one row"])
def test_a_prompt_of_many_long_answers_is_computed_block_by_block(
    room: Room, *, shared: bool
) -> None:
    """No block computes more than its tokens, and what answers have in common is read once."""
    one = room("llama", chunk_tokens=512, prefill_tokens=512)
    forward, seen = one.engine._scheduler.scores._forward, []
    trunk = forward.trunk
    forward.trunk = lambda ids, **given: seen.append(ids.size) or trunk(ids, **given)
    long = tuple(number % 350 for number in range(79))
    answers = [(*long, last) if shared else (last, *long) for last in range(40)]
    prompts: Prompts = [((5, 6), [*answers, *answers, *answers])]
    scores = one.engine.score(prompts, end_ids=(END,))
    one.finish()
    forward.trunk = trunk
    assert max(seen) <= 512
    assert sum(seen) == 81 * (1 if shared else 40)
    found = scores.result(timeout=0)
    check([found[0][:2]], expected(one.tree, [(prompts[0][0], prompts[0][1][:2])]))
    assert found[0] == 3 * found[0][:40]


def test_a_long_prompt_is_computed_once_for_all_its_short_answers(room: Room) -> None:
    one = room("llama", chunk_tokens=16, prefill_tokens=16)
    forward, seen = one.engine._scheduler.scores._forward, []
    trunk = forward.trunk
    forward.trunk = lambda ids, **given: seen.append(ids.size) or trunk(ids, **given)
    answers: list[tuple[int, ...]] = [*((n,) for n in range(100)), (5, 6), (5, 7), (8, 9)]
    prompts: Prompts = [(tuple(range(3, 103)), answers)]
    scores = one.engine.score(prompts, end_ids=(END,))
    one.finish()
    forward.trunk = trunk
    assert sum(seen) == 100 + 101 + 101  # the prompt, and with 5 and 8 after it
    check(scores.result(timeout=0), expected(one.tree, prompts))


@pytest.mark.parametrize("end_ids", [(10**30,), (END, 100_000), (-7,)])
def test_an_end_outside_the_vocabulary_is_refused(room: Room, end_ids: tuple[int, ...]) -> None:
    one = room("llama")
    scores = one.engine.score([((5,), [(6,), (6, 7)])], end_ids=end_ids)
    one.finish()
    with pytest.raises(RequestError, match=rf"token {end_ids[-1]} cannot end an answer"):
        scores.result(timeout=0)


def test_an_end_that_is_given_twice_counts_once(room: Room) -> None:
    one, prompts = room("llama"), some_prompts(1)
    scores = one.engine.score(prompts, end_ids=(END, END))
    one.finish()
    check(scores.result(timeout=0), expected(one.tree, prompts))


def test_a_cancelled_score_ends(room: Room) -> None:
    one = room("llama", prefill_tokens=512)
    scores = one.engine.score(some_prompts(300), end_ids=(END,))
    one.tick(2)
    assert scores.cancel()
    assert one.worker.tick() is False
    assert one.engine.stats()["scores_running"] == 0


def test_a_score_ends_under_the_weights_it_began_with(room: Room) -> None:
    one = room("llama", chunk_tokens=40, prefill_tokens=60)
    prompts = some_prompts(60)
    before = expected(one.tree, prompts)
    scores = one.engine.score(prompts, end_ids=(END,))
    one.tick()
    for version in (7, 8):
        one.load(version)
        one.tick()
    assert not scores.done()
    one.finish()
    check(scores.result(timeout=0), before)
    again = one.engine.score(prompts[:2], end_ids=(END,))
    one.finish()
    check(again.result(timeout=0), expected(one.tree, prompts[:2]))
    assert len(one.engine._scheduler._slots._slots) == 2  # the base and the policy


@BOTH_WAYS
def test_a_score_that_fails_harms_nobody_else(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    one = room("llama")
    one.submit({0: Request(prompt_ids=(4,), max_tokens=3)})
    bad = one.engine.score([((1,), [(400,)])], end_ids=(END,))
    nobody = one.engine.score([((1,), [(4,)])], end_ids=(END,), adapter="nobody")
    forward = one.engine._scheduler.scores._forward
    one.engine._scheduler.scores._forward = None
    broken = one.engine.score([((1,), [(4,)])], end_ids=(END,))
    one.tick(2)
    one.engine._scheduler.scores._forward = forward
    fine = one.engine.score(some_prompts(1), end_ids=(END,))
    one.finish()
    assert isinstance(bad.exception(timeout=0), RequestError)
    assert "adapter 'nobody' is not live" in str(nobody.exception(timeout=0))
    assert isinstance(broken.exception(timeout=0), AttributeError)
    check(fine.result(timeout=0), expected(one.tree, some_prompts(1)))
    assert len(one.answer(0).token_ids) == 3
    assert "a step of the engine failed" not in caplog.text


@BOTH_WAYS
def test_a_failing_step_leaves_scores_alone(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    one = room("llama", prefill_tokens=512)
    scores = one.engine.score(some_prompts(60), end_ids=(END,))
    one.tick()
    one.submit({0: Request(prompt_ids=(4,), max_tokens=3)})
    draw = one.engine._scheduler.sampler.draw
    one.engine._scheduler.sampler.draw = lambda *_: 1 / 0
    with caplog.at_level(logging.ERROR):
        one.tick()
    one.engine._scheduler.sampler.draw = draw
    assert isinstance(one.error(0), EngineError)
    one.finish()
    check(scores.result(timeout=0)[:2], expected(one.tree, some_prompts(60)[:2]))


def test_scores_at_the_end_are_answered(room: Room) -> None:
    one = room("llama", prefill_tokens=512)
    running = one.engine.score(some_prompts(60), end_ids=(END,))
    one.tick()
    waiting = one.engine.score(some_prompts(60), end_ids=(END,))
    one.engine.close()
    late = one.engine.score(some_prompts(1), end_ids=(END,))
    for scores in (running, waiting, late):
        assert "the engine was closed" in str(scores.exception(timeout=0))


def test_weights_that_give_no_numbers_are_an_error(room: Room) -> None:
    one = room("llama")
    one.engine.load_adapter(one.adapter(1, size=1e25)).result()
    scores = one.engine.score(some_prompts(1), end_ids=(END,))
    one.finish()
    with pytest.raises(EngineError, match="logits are not numbers"):
        scores.result()


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_prompts_that_begin_alike_have_the_same_scores(room: Room, architecture: str) -> None:
    one = room(architecture, chunk_tokens=512, prefill_tokens=512)
    rules = tuple(range(3, 93))
    prompts = [(rules + prompt, answers[:2]) for prompt, answers in some_prompts(5, length=4)]
    scores = one.engine.score(prompts, end_ids=(END,))
    one.finish()
    check(scores.result(timeout=0), expected(one.tree, prompts))


def test_what_prompts_begin_with_is_computed_once(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = room("llama", chunk_tokens=2048, prefill_tokens=2048)
    lengths: list[int] = []

    def padded(rows: Sequence[tuple[int, ...]]) -> Any:
        lengths.extend(map(len, rows))
        return pad_rows(rows)

    monkeypatch.setattr(score, "pad_rows", padded)
    rules = tuple(range(3, 203))
    prompts = [((*rules, 5 + n, 20 + n), [(6,), (7,)]) for n in range(8)]
    scores = one.engine.score(prompts, end_ids=(END,))
    one.finish()
    assert len(scores.result(timeout=0)) == len(prompts)
    assert lengths == [2] * len(prompts)
