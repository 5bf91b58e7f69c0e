"""Split a reply into thinking and answer, and find the move that the answer names."""

import re
from collections.abc import Sequence

_TAG = re.compile(r"<(/?)think>")


def split_thinking(text: str) -> tuple[str, str]:
    """Split off the text between ``<think>`` and ``</think>``.

    Where the first tag is a closing one, the template opened the thinking in the prompt. Thinking
    that is never closed leaves no answer: the whole text is thinking.

    Args:
        text: a completion.

    Returns:
        (thinking, answer), both stripped; several thinking parts are joined by newlines.
    """
    if "think>" not in text:
        return "", text.strip()
    parts = _TAG.split(text)  # text, slash, text, slash, text, ...
    opened = len(parts) > 1 and parts[1] == "/"
    thinking: list[str] = []
    answer: list[str] = []
    for index in range(0, len(parts), 2):
        (thinking if opened else answer).append(parts[index])
        if index + 1 < len(parts):
            opened = parts[index + 1] == ""
    if opened:
        return _TAG.sub("", text).strip(), ""
    kept = [part.strip() for part in thinking]
    return "\n".join(part for part in kept if part), "".join(answer).strip()


def parse_move(answer: str, legal: Sequence[str]) -> str | None:
    """Find the one legal move that an answer names.

    Either the whole answer is a move, or one legal move stands in square brackets, once or more
    often; an answer that brackets two different moves names neither.

    Args:
        answer: the reply without its thinking.
        legal: the moves, written as a player would.

    Returns:
        The move as `legal` has it, or None.
    """
    stripped = answer.strip()
    if stripped in legal:
        return stripped
    named = {move for move in legal if f"[{move}]" in answer}
    return named.pop() if len(named) == 1 else None
