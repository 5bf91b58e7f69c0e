"""Special tokens around a model's thinking, and Harmony's channels, as thinking tags.

Harmony (gpt-oss) begins a message with ``<|start|>assistant<|channel|>analysis<|message|>``. The
channel "final" is its answer, a channel with ``to=functions.NAME`` is a call of that function, and
all others are thinking.
"""

import re

__all__ = ["MARKS", "without_channels"]

MARKS = ("<think>", "</think>", "<|start|>", "<|channel|>", "<|message|>")
"""Special tokens that stay in the text of a completion."""
_HEADER = re.compile(r"(?:<\|start\|>[^<]*|\A ?to=[^<]*)?<\|channel\|>\s*(\w*)[^<]*<\|message\|>")
_CALLED = re.compile(r"to=functions\.([\w.-]+)")
_UNFINISHED = re.compile(
    r"(?:\A ?to(?:=[^<]*)?)?(?:<\|(?:start|channel)\|>(?:(?!<\|message\|>).)*)?\Z", re.DOTALL
)


def without_channels(text: str) -> str:
    """The text with thinking tags for Harmony's headers; an unfinished header is cut.

    An answer with which the text begins has no thinking before it, and gets no tag.
    """
    return _UNFINISHED.sub("", _HEADER.sub(_tag, text))


def _tag(header: re.Match[str]) -> str:
    called = _CALLED.search(header[0])
    if header[1] != "final" and called is None:
        return "<think>"
    call = f"<tool_call>{called[1]}\n" if called else ""
    return ("</think>" if header.start() else "") + call
