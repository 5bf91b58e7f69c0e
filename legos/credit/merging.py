"""Merge turns into training sequences, as long as each prompt extends the tokens before it."""

from collections.abc import Sequence

from legos.records.episode import Rollout, Turn
from legos.records.message import Completion
from legos.records.names import POLICY
from legos.records.sample import Sample


def samples_of_rollout(
    rollout: Rollout, advantages: Sequence[float], *, group: str, name: str = ""
) -> list[Sample]:
    """Merge turns into samples, one for each of the ``conversations``.

    Args:
        rollout: the turns of one trained seat.
        advantages: [number of turns] one advantage per turn, for each of its tokens.
        group: the name of the plays that are compared with each other.
        name: name of the rollout, the same for all its samples.
    """
    given = list(zip(rollout.turns, advantages, strict=True))
    return [
        _sample_of_turns([given[index] for index in run], rollout, group=group, name=name)
        for run in conversations(rollout.turns)
    ]


def conversations(turns: Sequence[Turn]) -> list[list[int]]:
    """The indices of the turns of each sample; a turn joins one if it extends all its tokens.

    A rollout may have several conversations, whose turns may come in any order.
    """
    runs: list[list[int]] = []
    sizes: list[int] = []  # number of tokens of each run
    for index, turn in enumerate(turns):
        completion = turn.completion
        num_prompt = len(completion.prompt_ids)
        number = len(runs) - 1
        while number >= 0 and (
            sizes[number] > num_prompt
            or not _continues(turns[runs[number][-1]].completion, completion)
        ):
            number -= 1
        if number < 0:  # it starts a run
            number = len(runs)
            runs.append([])
            sizes.append(0)
        runs[number].append(index)
        sizes[number] = num_prompt + len(completion.token_ids)
    return runs


def _continues(last: Completion, completion: Completion) -> bool:
    """Whether a prompt starts with all earlier tokens, and the sampling settings are the same.

    One sample has one temperature, and either all or none of its tokens are restricted to legal
    ones.
    """
    before = len(last.prompt_ids)
    return (
        completion.prompt_ids[before : before + len(last.token_ids)] == last.token_ids
        and completion.prompt_ids[:before] == last.prompt_ids
        and (completion.restricted, completion.temperature) == (last.restricted, last.temperature)
    )


def _sample_of_turns(
    run: Sequence[tuple[Turn, float]], rollout: Rollout, *, group: str, name: str
) -> Sample:
    # Sums of tuples: most runs are one turn, and () + turn is the turn itself, not a copy.
    positions: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    advantages: tuple[float, ...] = ()
    legal: tuple[tuple[int, ...], ...] = ()
    truncated = False
    for turn, advantage in run:  # pyrefly: ignore[non-convergent-recursion]
        completion = turn.completion
        start, count = len(completion.prompt_ids), len(completion.token_ids)
        positions += (start,) if count == 1 else tuple(range(start, start + count))
        logprobs += completion.logprobs
        versions += completion.versions
        advantages += (advantage,) * count
        legal += completion.legal or ((),) * count
        truncated = truncated or rollout.was_cut(turn)
    last = run[-1][0].completion
    return Sample(
        token_ids=last.prompt_ids + last.token_ids,
        positions=positions,
        logprobs=logprobs,
        versions=versions,
        advantages=advantages,
        legal=legal,
        restricted=last.restricted,
        temperature=last.temperature,
        group=group,
        rollout=name,
        role=rollout.role,
        policy=rollout.policy or POLICY,
        truncated=truncated,
    )
