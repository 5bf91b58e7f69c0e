"""Schemas of tool calls: each tool's own valid calls are allowed, and every other one is not."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import BaseModel
from schema_texts import accepts

from legos.chat.schemas import call_schema, closed

Schema = Mapping[str, Any]


def tool(name: str, parameters: Schema | None) -> Schema:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def of_properties(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


class Place(BaseModel):
    city: str


class Trip(BaseModel):
    to: Place


def order() -> type[BaseModel]:
    """A model whose part has the name of ``Trip``'s part and other fields."""

    class Place(BaseModel):
        shelf: int

    class Order(BaseModel):
        at: Place

    return Order


NUMBER = {"type": "integer"}
TREE = {
    "type": "object",
    "properties": {"n": NUMBER, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["n", "next"],
}
TOOLS: Mapping[str, tuple[Schema | None, Sequence[Any]]] = {  # name -> schema, valid arguments
    "trip": (Trip.model_json_schema(), [{"to": {"city": "Bonn"}}]),
    "order": (order().model_json_schema(), [{"at": {"shelf": 3}}]),
    "tree": (TREE, [{"n": 1, "next": None}, {"n": 1, "next": {"n": 2, "next": None}}]),
    "pair": (
        of_properties(first={"enum": ["x", "y"]}, second={"$ref": "#/properties/first"}),
        [{"first": "x", "second": "y"}],
    ),
    "old": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/Place",
            "definitions": {"Place": of_properties(row=NUMBER)},
        },
        [{"row": 7}],
    ),
    "identified": (
        {
            "$id": "https://legos.test/args",
            **of_properties(
                c={"$ref": "https://legos.test/args#/$defs/d"}, e={"$ref": "#/$defs/d"}
            ),
            "$defs": {"d": {"type": "boolean"}},
        },
        [{"c": True, "e": False}],
    ),
    "literal": (
        of_properties(
            **{"$ref": {"const": {"$ref": "#"}}, "default": {"$ref": "#/properties/$ref"}}
        ),
        [{"$ref": {"$ref": "#"}, "default": {"$ref": "#"}}],
    ),
    "untyped": ({"properties": {"k": NUMBER}, "required": ["k"]}, [{"k": 0}]),
    "nothing": (None, [{}]),
    "empty": ({"type": "object"}, [{}]),
}


@pytest.mark.parametrize("names", [[*TOOLS], [*TOOLS][::-1]], ids=["", "reversed"])
def test_each_tool_is_called_with_its_own_arguments_and_no_others(names: list[str]) -> None:
    schema = call_schema([tool(name, TOOLS[name][0]) for name in names])
    valid = [(name, arguments) for name in names for arguments in TOOLS[name][1]]
    for name in names:
        for other, arguments in valid:
            own = arguments in TOOLS[name][1]
            text = json.dumps({"name": name, "arguments": arguments})
            assert accepts(schema, text) is own, (name, other, arguments)


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_alone_is_called_as_among_others(name: str) -> None:
    schema = call_schema([tool(name, TOOLS[name][0])])
    for arguments in TOOLS[name][1]:
        assert accepts(schema, json.dumps({"name": name, "arguments": arguments}))
    for wrong in (None, 3, [], {"unknown": 1}):
        assert not accepts(schema, json.dumps({"name": name, "arguments": wrong}))
    assert not accepts(schema, json.dumps({"name": "unknown", "arguments": TOOLS[name][1][0]}))


@pytest.mark.parametrize("name", [name for name in TOOLS if TOOLS[name][0]])
def test_the_schema_of_an_answer_keeps_its_references(name: str) -> None:
    parameters, valid = TOOLS[name]
    schema = json.dumps(closed(dict(parameters or {})))
    for arguments in valid:
        assert accepts(schema, json.dumps(arguments))


A = of_properties(a=NUMBER)


@pytest.mark.parametrize(
    ("schema", "text", "allowed"),
    [
        (A, '{"a": 1}', True),
        (A, '{"a": 1, "b": 2}', False),
        (A, '{"a": 1, "a": 2}', False),
        (of_properties(c=A), '{"c": {"a": 1, "b": 2}}', False),
        ({"type": "array", "items": A}, '[{"a": 1, "b": 2}]', False),
        ({"anyOf": [A, {"type": "null"}]}, '{"a": 1, "b": 2}', False),
        ({**A, "additionalProperties": True}, '{"a": 1, "b": 2}', True),
        ({**A, "additionalProperties": NUMBER}, '{"a": 1, "b": 2}', True),
        ({**A, "patternProperties": {"^x": NUMBER}}, '{"a": 1, "x2": 2}', True),
        ({"type": "object"}, '{"b": 2}', True),  # it names no property, so it is any object
        ({"properties": {"a": NUMBER}, "required": ["b"]}, '{"a": 1, "b": 2}', True),
        ({"allOf": [A, of_properties(b=NUMBER)]}, '{"a": 1, "b": 2}', True),
        ({**A, "anyOf": [of_properties(b=NUMBER), {}]}, '{"a": 1, "b": 2}', True),
        ({**A, "$ref": "#/$defs/B", "$defs": {"B": {"required": ["b"]}}}, '{"a": 1, "b": 2}', True),
        ({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": A}}, '{"a": 1, "b": 2}', False),
    ],
)
def test_objects_are_closed_unless_the_schema_says_otherwise(
    schema: Schema, text: str, *, allowed: bool
) -> None:
    assert accepts(json.dumps(closed(dict(schema))), text) is allowed
