"""What a step computed for the tokens of a play: each value at its turn, or why it has none."""

import numpy as np
import pytest
from made_records import make_episode, make_turn
from msgspec import json
from msgspec.structs import replace
from objectives import EVERY_OBJECTIVE
from random_samples import random_samples

from legos.credit.merging import samples_of_rollout
from legos.loop.select import Selection, without
from legos.loop.trained import PolicyPass, TrainedTurn, importance_ratios, trained_turns
from legos.losses.metrics import SUMS
from legos.losses.objective import Objective
from legos.losses.policy import LOSSES
from legos.losses.total import BatchArrays, token_loss
from legos.records.batch import make_batch
from legos.records.episode import Episode
from legos.records.group import Group
from legos.records.names import POLICY
from legos.records.sample import Sample
from legos.records.step import PassResult

TURNS = (
    make_turn((1, 2), (3, 4), logprob=-1.0),
    make_turn((9,), (5,), logprob=-0.5),  # another conversation
    make_turn((1, 2, 3, 4, 6), (7, 8, 9), logprob=-2.0),  # goes on from the first turn
)
ADVANTAGES = (1.0, 3.0, -2.0)
TOKEN_BY_TOKEN = [
    name
    for name, each in EVERY_OBJECTIVE.items()
    if LOSSES[each.loss].scope != "group" and each.kl_estimator != "exact"
]


def group_of(*episodes: Episode) -> Group:
    samples: list[Sample] = []
    for episode in episodes:
        for rollout in episode.rollouts:
            name = episode.rollout_name(rollout.role)
            samples += samples_of_rollout(rollout, ADVANTAGES, group="g", name=name)
    tokens = sum(len(sample.positions) for sample in samples)
    return Group(samples=tuple(samples), episodes=episodes, tokens_generated=tokens)


def a_pass(
    group: Group, gap: float = 0.0, objective: Objective | None = None, reason: str | None = None
) -> PolicyPass:
    """The trainer's log-probabilities exceed those of the samples by a gap."""
    logprobs = [np.array(s.logprobs, np.float32) + np.float32(gap) for s in group.samples]
    found = PassResult(
        loss=0.0,
        sums=(0.0,) * len(SUMS),
        grad_norm=0.0,
        logprobs=logprobs,
        entropies=[np.arange(len(each), dtype=np.float32) / np.float32(8) for each in logprobs],
    )
    return PolicyPass(POLICY, 7, objective or Objective(), group.samples, found, {}, reason)


def play(seed: int = 0) -> Episode:
    return replace(make_episode({"player": 1.0}, turns={"player": TURNS}), seed=seed)


def test_every_value_is_at_its_turn() -> None:
    episode = play()
    group = group_of(episode)
    objective = Objective(loss="ppo", clip_low=0.2, clip_high=0.2)
    turns = trained_turns([a_pass(group, 0.25, objective)], [group], [episode])
    assert turns == {
        "arena/task/0/player": [
            TrainedTurn(
                advantage=1.0,
                logprobs=[-0.75, -0.75],
                entropies=[0.0, 0.125],
                clipped=[0, 1],  # the ratio is above 1.2, and the advantage is positive
                version=7,
            ),
            TrainedTurn(advantage=3.0, logprobs=[-0.25], entropies=[0.0], clipped=[0], version=7),
            TrainedTurn(
                advantage=-2.0,
                logprobs=[-1.75] * 3,
                entropies=[0.25, 0.375, 0.5],
                version=7,
            ),
        ]
    }


def test_plays_that_nobody_wants_cost_nothing() -> None:
    group = group_of(play(0), play(1))
    assert trained_turns([a_pass(group)], [group], []) == {}
    assert list(trained_turns([a_pass(group)], [group], [group.episodes[1]])) == [
        "arena/task/1/player"
    ]


def test_turns_without_a_gradient_have_their_reason() -> None:
    episode = play()
    whole = group_of(episode)
    kept, _ = without(whole, lambda sample: None if sample.positions[0] == 1 else "stale")
    [turns] = trained_turns([a_pass(kept)], [kept], [episode]).values()
    assert [turn and turn.reason for turn in turns] == ["stale", None, "stale"]
    removed, _ = Selection(overlong=True)(
        replace(whole, samples=tuple(replace(s, truncated=True) for s in whole.samples))
    )
    [turns] = trained_turns([], [removed], [episode]).values()
    assert turns == [TrainedTurn(reason="overlong")] * 3
    [turns] = trained_turns([a_pass(whole, reason="clip_skip")], [whole], [episode]).values()
    assert {turn and (turn.reason, turn.logprobs != []) for turn in turns} == {("clip_skip", True)}
    failed = replace(episode, error="no", failure="timed_out")
    [turns] = trained_turns([], [], [failed]).values()
    assert turns == [TrainedTurn(reason="timed_out")] * 3
    [turns] = trained_turns([], [], [episode]).values()
    assert turns == [None] * 3


def test_turns_of_a_step_that_is_not_finite_can_be_read_back() -> None:
    episode = play()
    group = group_of(episode)
    one = a_pass(group, reason="non_finite")
    one.found.logprobs[0][0] = np.nan
    assert one.found.entropies is not None
    one.found.entropies[1][0] = np.inf
    assert np.histogram(importance_ratios([one]), 2)[0].sum() == 5  # of 6 tokens
    [turns] = trained_turns([one], [group], [episode]).values()
    stored = json.encode(turns)
    assert json.decode(stored, type=list[TrainedTurn]) == turns
    assert [turn and (turn.logprobs, turn.entropies) for turn in turns] == [
        ([], [0.0, 0.125]),
        ([-0.5], []),
        ([-2.0] * 3, [0.25, 0.375, 0.5]),
    ]


def test_a_sample_that_does_not_fit_has_no_log_probabilities() -> None:
    episode = play()
    group = group_of(episode)
    one = a_pass(group)
    short = [each if len(each) == 1 else each[:0] for each in one.found.logprobs]
    found = PassResult(
        loss=0.0, sums=one.found.sums, grad_norm=0.0, logprobs=short, entropies=short, row_limit=3
    )
    [turns] = trained_turns([one._replace(found=found)], [group], [episode]).values()
    assert [turn and (turn.reason, turn.advantage, len(turn.logprobs)) for turn in turns] == [
        ("too_long", 1.0, 0),
        (None, 3.0, 1),
        ("too_long", -2.0, 0),
    ]


@pytest.mark.parametrize("name", TOKEN_BY_TOKEN)
def test_clipped_and_masked_tokens_are_those_that_the_loss_counts(name: str) -> None:
    objective = EVERY_OBJECTIVE[name]
    rng = np.random.default_rng(5)
    samples = random_samples(rng, num_samples=12, vocab=20, max_length=9)
    episodes: list[Episode] = []
    for number, sample in enumerate(samples):
        *_, last = sample.positions
        start = next(p for p in range(last + 1) if set(range(p, last + 1)) <= {*sample.positions})
        turn = make_turn(sample.token_ids[:start], sample.token_ids[start : last + 1])
        episodes.append(
            replace(make_episode({"p": 0.0}, turns={"p": (turn,)}), seed=number, arena=name)
        )
        count = last + 1 - start
        samples[number] = replace(
            sample,
            token_ids=sample.token_ids[: last + 1],
            positions=sample.positions[-count:],
            logprobs=sample.logprobs[-count:],
            versions=sample.versions[-count:],
            advantages=sample.advantages[-count:],
            legal=sample.legal[-count:],
            reference_logprobs=None,
            rollout=episodes[-1].rollout_name("p"),
        )
    unread = [[(0, 0)] * len(sample.positions) for sample in samples]
    batch = make_batch(np.zeros((1, 1), np.int32), samples, [1.0] * len(samples), unread)
    current = batch.behaviour_logprob + rng.normal(0.0, 0.5, batch.mask.shape).astype(np.float32)
    terms = {"logprob": current, "entropy": current, "reference": current, "ema": current}
    _, sums = token_loss(np, terms, BatchArrays(np, batch), objective)
    found = PassResult(
        loss=0.0,
        sums=tuple(sums.tolist()),
        grad_norm=0.0,
        logprobs=[row[mask] for row, mask in zip(current, batch.mask, strict=True)],
    )
    one = PolicyPass(POLICY, 0, objective, samples, found, {}, None)
    turns = [turn for turns in trained_turns([one], [], episodes).values() for turn in turns]
    for what, count in (("clipped", "clipped"), ("masked", "masked")):
        assert sum(len(getattr(turn, what)) for turn in turns) == sums[SUMS.index(count)]
