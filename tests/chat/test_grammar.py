"""Grammars: a model says what JSON and the schema allow, and ends only where the JSON is whole."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schema_texts import TOKENIZER, accepts
from vocabulary import END, TOKENS, token_id

from legos.builtin import builtin_path
from legos.chat.grammar import json_grammar
from legos.chat.schemas import or_call
from legos.chat.tokenizer import ChatTokenizer
from legos.errors import RequestError
from legos.records.message import Filters
from legos.records.request import Request

END_ID = token_id(END)
MOVE = {
    "type": "object",
    "properties": {
        "pile": {"type": "integer", "minimum": -5, "maximum": 99},
        "who": {"enum": ["first", "second"]},
        "sure": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        "why": {"type": "string", "maxLength": 6},
    },
    "required": ["pile", "who", "sure", "why"],
    "additionalProperties": False,
}
Room = Callable[..., Any]


@pytest.fixture(scope="session")
def tiny_models() -> Mapping[str, Path]:
    return {"built-in": builtin_path()}


def follows(value: Any) -> bool:
    """Whether a parsed text satisfies ``MOVE``."""
    pile, who, sure, why = (value[name] for name in ("pile", "who", "sure", "why"))
    return (
        len(value) == 4
        and isinstance(pile, int)
        and -5 <= pile <= 99
        and who in ("first", "second")
        and 1 <= len(sure) <= 3
        and all(isinstance(one, bool) for one in sure)
        and isinstance(why, str)
        and len(why) <= 6
    )


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"pile": 3, "who": "first", "sure": [true], "why": ""}', True),
        ('{"pile":-5,"who":"second","sure":[true, false],"why":"a\\nb"}', True),
        ('{"pile": 100, "who": "first", "sure": [true], "why": ""}', False),
        ('{"pile": 3, "who": "third", "sure": [true], "why": ""}', False),
        ('{"pile": 3, "who": "first", "sure": [], "why": ""}', False),
        ('{"pile": 3, "who": "first", "sure": [true], "why": "too long"}', False),
        ('{"pile": 3}', False),
        ('{"pile": 3, "who": "first", "sure": [true], "why": ""', False),
        ("3", False),
    ],
)
def test_texts_that_satisfy_the_schema_and_no_others(text: str, *, right: bool) -> None:
    assert accepts(json.dumps(MOVE), text) is right


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner),
    max_leaves=6,
)


@given(JSON)
def test_free_json_is_any_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert accepts("{}", text)
    assert accepts('{"type": "object"}', text) is isinstance(value, dict)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"pile": 3, "who": "first", "sure": [true], "why": ""}', True),
        ('<tool_call>{"name": "f"}</tool_call>\n<tool_call>f</tool_call>', True),
        ('{"pile": 3}', False),
        ("<tool", False),
        ("Yes <tool_call>", False),
    ],
)
def test_a_call_may_come_in_place_of_an_answer(text: str, *, right: bool) -> None:
    assert accepts(or_call(json.dumps(MOVE), "<tool_call>"), text) is right


def test_a_call_may_begin_with_a_control_token() -> None:
    mark = next(token for token in TOKENS if token.startswith("<|") and token != END)
    state = json_grammar(or_call('{"type": "object"}', mark), TOKENIZER).begin()
    assert state.allowed()[[token_id(mark), token_id("{"), token_id("a")]].tolist() == [1, 1, 0]
    state.advance(token_id(mark))
    assert state.allowed()[[token_id(mark), token_id("a"), END_ID]].all()


def test_the_end_comes_only_where_the_json_is_whole() -> None:
    state = json_grammar('{"type": "integer"}', TOKENIZER).begin()
    ends = []
    for token in TOKENIZER.encode("-12"):
        ends.append(bool(state.allowed()[END_ID]))
        state.advance(token)
    assert [*ends, bool(state.allowed()[END_ID])] == [False, False, True, True]
    assert not state.closed
    state.advance(END_ID)
    assert state.closed


def test_the_mask_covers_the_vocabulary_and_no_control_token() -> None:
    state = json_grammar('{"type": "string"}', TOKENIZER).begin()
    state.advance(token_id('"'))
    mask = state.allowed()
    assert mask.shape == (TOKENIZER.vocab_size,)
    controls = [index for index, token in enumerate(TOKENS) if token.startswith("<|")]
    assert len(controls) > 3
    assert not mask[controls].any()
    assert mask[token_id("a")]


def test_completions_of_one_grammar_do_not_disturb_each_other() -> None:
    grammar = json_grammar('{"enum": ["ab", "cd"]}', TOKENIZER)
    one, other = grammar.begin(), grammar.begin()
    for token in TOKENIZER.encode('"a'):
        one.advance(token)
    assert np.flatnonzero(one.allowed()).tolist() == [token_id("b")]
    assert np.flatnonzero(other.allowed()).tolist() == [token_id('"')]


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("[" * 60_000, "is not JSON: maximum recursion depth"),
        ("[1]", r"is \[1\]; expected an object"),
        ("false", "is false; expected an object"),
        ('{"type": "nosuch"}', "Invalid type: nosuch"),
        ('{"$ref": "#/nowhere"}', "Pointer '/nowhere' does not exist"),
        ('{"type": "string", "pattern": "("}', "unclosed group"),
        ('{"not": {"type": "string"}}', r'Unimplemented keys: \["not"\]'),
        ('{"type": "integer", "minimum": 5, "maximum": 1}', "minimum \\(5\\) is greater"),
    ],
)
def test_a_bad_schema_is_refused_by_what_is_wrong(schema: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        json_grammar(schema, TOKENIZER)


def test_a_tokenizer_without_an_end_is_refused() -> None:
    endless = ChatTokenizer(TOKENIZER._tokenizer, end_ids=())
    with pytest.raises(RequestError, match="no end of text"):
        json_grammar("{}", endless)


def test_a_token_that_is_not_allowed_is_an_error_that_stays() -> None:
    state = json_grammar("{}", TOKENIZER).begin()
    with pytest.raises(RequestError, match="does not follow its schema"):
        state.advance(token_id("}"))
    with pytest.raises(RequestError, match="does not follow its schema"):
        state.allowed()


@pytest.mark.nightly
@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_a_model_under_a_grammar_always_says_what_satisfies_the_schema(
    room: Room, temperature: float
) -> None:
    grammar = json_grammar(json.dumps(MOVE), TOKENIZER)
    number = json_grammar('{"type": "integer", "minimum": 0, "maximum": 250}', TOKENIZER)
    one = room("built-in")
    filters = [None, None, Filters(top_p=0.9, repetition_penalty=1.2), Filters(top_k=3)]
    prompt = TOKENIZER.encode("Say a move.")
    answers = one.ask(
        [
            Request(
                prompt_ids=prompt,
                max_tokens=400,
                temperature=temperature,
                seed=seed,
                end_ids=TOKENIZER.end_ids,
                grammar=number if seed % 5 == 4 else grammar,
                filters=filters[seed % 4],
            )
            for seed in range(20)
        ]
    )
    texts = [TOKENIZER.decode(answer.token_ids) for answer in answers]
    assert {answer.finish_reason for answer in answers} == {"stop"}
    for seed, text in enumerate(texts):
        if seed % 5 == 4:
            assert 0 <= int(text) <= 250
        else:
            assert follows(json.loads(text)), text
    assert len(set(texts)) > (1 if temperature == 0.0 else 10)


def test_a_forced_token_has_probability_one(room: Room) -> None:
    grammar = json_grammar('{"enum": ["ab"]}', TOKENIZER)
    (answer,) = room("built-in").ask(
        [Request(prompt_ids=(1, 2), max_tokens=9, end_ids=TOKENIZER.end_ids, grammar=grammar)]
    )
    assert TOKENIZER.decode(answer.token_ids) == '"ab"'
    assert answer.logprobs == (0.0,) * 4
    assert answer.finish_reason == "stop"
