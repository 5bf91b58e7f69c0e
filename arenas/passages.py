"""Passages of a text, and the words in them."""

import re

__all__ = ["passages", "stands_in", "words_in"]

_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")  # _word_ is the word in marks


def passages(text: str, characters: int) -> list[str]:
    """Split a text into passages of whole paragraphs; a longer paragraph is cut."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        piece = " ".join(paragraph.split())
        for start in range(0, len(piece), characters):
            part = piece[start : start + characters]
            if found and len(found[-1]) + len(part) < characters:
                found[-1] += f"\n{part}"
            else:
                found.append(part)
    return found


def words_in(text: str) -> list[str]:
    """The words and numbers of a text, in lower case and without commas in numbers."""
    return [word.removesuffix(".0") for word in _WORD.findall(text.lower().replace(",", ""))]


def stands_in(words: list[str], text: list[str]) -> bool:
    """Whether words stand next to each other in a text."""
    return any(text[at : at + len(words)] == words for at in range(len(text) - len(words) + 1))
