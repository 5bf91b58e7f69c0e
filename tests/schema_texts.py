"""Which texts a JSON schema allows the built-in model to sample."""

from functools import cache

from legos.builtin import builtin_path
from legos.chat.grammar import json_grammar
from legos.chat.load import load_tokenizer
from legos.records.request import Grammar

__all__ = ["TOKENIZER", "accepts"]

TOKENIZER = load_tokenizer(builtin_path())


@cache
def _grammar(schema: str) -> Grammar:
    return json_grammar(schema, TOKENIZER)


def accepts(schema: str, text: str) -> bool:
    """Whether the grammar allows each token of a text, and the end after it."""
    state = _grammar(schema).begin()
    for token in TOKENIZER.encode(text):
        if state.closed or not state.allowed()[token]:
            return False
        state.advance(token)
    return state.closed or bool(state.allowed()[TOKENIZER.end_ids[0]])
