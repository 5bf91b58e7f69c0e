"""The marks of a family around thinking, and Harmony's channels, as thinking tags.

Harmony (gpt-oss) begins a message with ``<|start|>assistant<|channel|>analysis<|message|>``. The
channel "final" is its answer, a channel with ``to=functions.NAME`` is a call of that function, and
all others are thinking.
"""

import re

from legos.chat.parts import CLOSE, OPEN

TAGS = {
    **{"[THINK]": OPEN, "[/THINK]": CLOSE},  # Mistral
    **{"<|channel>": OPEN, "<channel|>": CLOSE},  # Gemma 4, which writes "thought" after the first
    **{"<seed:think>": OPEN, "</seed:think>": CLOSE},
    **{"<|START_THINKING|>": OPEN, "<|END_THINKING|>": CLOSE},  # Command
    **dict.fromkeys(
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"), ""
    ),
}
"""Token -> the tag, or nothing, that stands for it in the text of a completion."""
MARKS = (OPEN, CLOSE, "<|start|>", "<|channel|>", "<|message|>", *TAGS)
"""Special tokens that are no silent ones in a completion."""
_NAMED = re.compile(r"<\|channel>(?: ?thought\n| ?\w*\Z)")
_HEADER = re.compile(r"(?:<\|start\|>[^<]*|\A ?to=[^<]*)?<\|channel\|>\s*(\w*)[^<]*<\|message\|>")
_CALLED = re.compile(r"to=functions\.([\w.-]+)")
_UNFINISHED = re.compile(
    r"(?:\A ?to(?:=[^<]*)?)?(?:<\|(?:start|channel)\|>(?:(?!<\|message\|>).)*)?\Z", re.DOTALL
)


def with_tags(text: str) -> str:
    """The text with thinking tags in place of the names of other tokens."""
    text = _NAMED.sub(OPEN, text)
    for name, tag in TAGS.items():
        text = text.replace(name, tag)
    return text


def without_channels(text: str) -> str:
    """The text with thinking tags for Harmony's headers; an unfinished header is cut.

    An answer with which the text begins has no thinking before it, and gets no tag.
    """
    return _UNFINISHED.sub("", _HEADER.sub(_tag, text))


def _tag(header: re.Match[str]) -> str:
    called = _CALLED.search(header[0])
    if header[1] != "final" and called is None:
        return OPEN
    call = f"<tool_call>{called[1]}\n" if called else ""
    return (CLOSE if header.start() else "") + call
