"""Continue conversations in tokens: sampled tokens stay, and only new messages are rendered.

A chat template adds text after an answer: the end of the turn, the new messages, and the beginning
of the next answer. Two conversations that differ only in that answer are rendered; these tokens are
the common end of both prompts. So any function that renders messages to token ids is enough.
"""

from collections.abc import Sequence

from legos.records.message import Completion, Message

ANSWERS = ("a", "b")  # no tokenizer merges a letter with a line break or a control token


def probes(new: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Two conversations that differ in one answer and continue with the same messages."""
    return [(Message("user", "?"), Message("assistant", answer), *new) for answer in ANSWERS]


def after_answer(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The tokens after the answer in the prompts of two ``probes``; empty if there are none."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    length = next((n for n, (a, b) in enumerate(pairs) if a != b), 0)
    return tuple(one[len(one) - length :])


def extended(
    last: Completion, after: tuple[int, ...], replaced: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """The prompt of the next turn: every token so far, then the tokens after the answer.

    An answer that ended by itself includes the end of its turn. An answer that was cut off, at its
    limit or at a stop text, does not; then the end is part of the prompt and never trained on.

    Args:
        last: the newest completion.
        after: the tokens that the template adds after an answer, the end of the turn first.
        replaced: the token in whose place the template writes that end, if any.
    """
    so_far = last.prompt_ids + last.token_ids
    ended = so_far[-1:] in (after[:1], replaced)
    return so_far + (after[1:] if ended else after)
