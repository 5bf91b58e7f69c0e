"""JSON schemas of answers: those of several tools as one, and objects closed to other keys."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

__all__ = ["call_schema", "closed"]

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
        definitions[place] = _moved(closed(arguments), place)
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


def closed(schema: Schema) -> Schema:
    """The same schema without properties that it does not name, unless it says that there are some.

    A model could otherwise add properties without end. Objects that name no property stay free. A
    schema that combines several schemas of one object is returned unchanged, because each of them
    may name only a part of the properties.
    """
    combines = False

    def close(part: Schema) -> Schema:
        nonlocal combines
        several = len(_COMBINED & part.keys()) + len(_listed(part, "allOf"))
        combines |= several + (not _OF_OBJECTS.isdisjoint(part)) > 1
        named, required = part.get("properties"), map(str, _listed(part, "required"))
        if not isinstance(named, dict) or not named.keys() >= set(required):
            return part
        return {"additionalProperties": False, **part}

    result = _changed(schema, close)
    return schema if combines else result


def _moved(schema: Schema, place: str) -> Schema:
    """A schema as a definition of another one: its references and anchors lead to the same parts.

    Args:
        schema: the schema.
        place: name of the definition.
    """
    own = schema.get("$id")

    def move(part: Schema) -> Schema | None:
        if part.get("$id", own) != own:
            return None  # a document of its own, in which its references start
        moved = {key: value for key, value in part.items() if key != "$id"}
        if "$anchor" in moved:
            moved["$anchor"] = f"{place}.{moved['$anchor']}"
        base, _, fragment = str(moved.get("$ref")).partition("#")
        if "$ref" in moved and base in ("", own):
            anchored = fragment and not fragment.startswith("/")
            moved["$ref"] = f"#{place}.{fragment}" if anchored else f"#/$defs/{place}{fragment}"
        return moved

    return _changed(schema, move)


def _changed(schema: Any, change: Callable[[Schema], Schema | None]) -> Any:
    """A schema with every schema in it changed, the outer ones first; None leaves one as it is."""
    if isinstance(schema, list):
        return [_changed(one, change) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    whole = cast("Schema", schema)
    part = change(whole)
    if part is None:
        return whole
    result: Schema = {}
    for key, value in part.items():
        if key in _NAMED and isinstance(value, dict):
            named = cast("Schema", value)
            result[key] = {name: _changed(one, change) for name, one in named.items()}
        else:
            result[key] = value if key in _LITERAL else _changed(value, change)
    return result


def _listed(part: Schema, key: str) -> list[Any]:
    value = part.get(key)
    return cast("list[Any]", value) if isinstance(value, list) else []
