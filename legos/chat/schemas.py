"""JSON schemas of answers: those of several tools as one, and objects closed to other keys."""

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

CALL_MARK = "x-legos-call"  # key of a schema: the text with which a tool call begins
Schema = dict[str, Any]
_NAMED = {"properties", "patternProperties", "$defs", "definitions"}  # schemas by name
_LITERAL = {"const", "enum", "default", "examples"}
_OF_OBJECTS = {"properties", "patternProperties", "required", "minProperties"}
_COMBINED = {"anyOf", "oneOf", "$ref"}  # each of them, and each schema of "allOf", is one more
_UNNAMED = {"additionalProperties", "allOf", *_COMBINED}  # may allow properties without a name


def call_schema(tools: Sequence[Mapping[str, Any]]) -> str:
    """The JSON schema, as text, of a call of one of the tools.

    The arguments of each tool are a definition of their own, to which its references lead.

    Args:
        tools: in the format of OpenAI's API; one without parameters takes no arguments.
    """
    calls: list[Schema] = []
    definitions: Schema = {}
    for number, tool in enumerate(tools):
        function, place = tool["function"], f"tool{number}"
        arguments: Schema = {"type": "object", **(function.get("parameters") or {})}
        if arguments.keys().isdisjoint(_OF_OBJECTS | _UNNAMED):
            arguments["properties"] = {}
        definitions[place] = _moved(deepcopy(closed(arguments)), place)
        called = {"name": {"const": function["name"]}, "arguments": {"$ref": f"#/$defs/{place}"}}
        calls.append(
            {
                "type": "object",
                "properties": called,
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return json.dumps({"anyOf": calls, "$defs": definitions})


def or_call(schema: str, mark: str) -> str:
    """A JSON schema, as text, beside which ``json_grammar`` allows tool calls.

    Args:
        schema: the schema of an object.
        mark: the text with which a call begins; anything may follow it.
    """
    return json.dumps({**json.loads(schema), CALL_MARK: mark})


def closed(schema: Schema) -> Schema:
    """The same schema without properties that it does not name, unless it says that there are some.

    A model could otherwise add properties without end. Objects that name no property stay free. A
    schema that combines several schemas of one object is returned unchanged, because each of them
    may name only a part of the properties.
    """
    result = deepcopy(schema)
    parts = [*_schemas(result)]
    if any(_combines(part) for part in parts):
        return schema
    for part in parts:
        named, required = part.get("properties"), map(str, _listed(part, "required"))
        if isinstance(named, dict) and named.keys() >= set(required):
            part.setdefault("additionalProperties", False)
    return result


def _combines(part: Schema) -> bool:
    several = len(_COMBINED & part.keys()) + len(_listed(part, "allOf"))
    return several + (not _OF_OBJECTS.isdisjoint(part)) > 1


def _moved(schema: Schema, place: str) -> Schema:
    """A schema as a definition of another one: its references lead to the same parts.

    Args:
        schema: the schema, which is changed.
        place: name of the definition.
    """
    own = schema.pop("$id", "")
    for part in [*_schemas(schema)]:
        base, _, fragment = str(part.get("$ref", "elsewhere")).partition("#")
        if base in ("", own):
            part["$ref"] = f"#/$defs/{place}{fragment}"
    return schema


def _schemas(value: Any) -> Iterator[Schema]:
    """Every schema in a schema."""
    if isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from _schemas(one)
    if isinstance(value, dict):
        whole = cast("Schema", value)
        yield whole
        for key, part in whole.items():
            if key in _NAMED and isinstance(part, dict):
                yield from _schemas([*cast("Schema", part).values()])
            elif key not in _LITERAL:
                yield from _schemas(part)


def _listed(part: Schema, key: str) -> list[Any]:
    value = part.get(key)
    return cast("list[Any]", value) if isinstance(value, list) else []
