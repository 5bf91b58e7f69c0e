"""``/docs``: every endpoint on one HTML page, generated from the OpenAPI schema.

The page loads no other files, so it works on a machine without a network.
"""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, cast

__all__ = ["docs_page"]

Schema = Mapping[str, Any]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
pre, code { font: 14px/1.4 ui-monospace, monospace }
pre { background: #8881; overflow-x: auto; padding: .6rem }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid #8884; padding: .2rem .6rem .2rem 0; text-align: left;
  vertical-align: top }
summary { cursor: pointer; padding: .3rem 0 }
:root { color-scheme: light dark }
"""
_BOUNDS = {
    "minimum": ">=",
    "maximum": "<=",
    "exclusiveMinimum": ">",
    "exclusiveMaximum": "<",
    "maxLength": "characters <=",
    "maxItems": "items <=",
    "maxProperties": "fields <=",
}


def docs_page(openapi: Schema, address: str) -> str:
    """The page as HTML.

    Args:
        openapi: the application's OpenAPI schema.
        address: the server's address, for the examples.
    """
    schemas = openapi.get("components", {}).get("schemas", {})
    info = openapi["info"]
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info.get('description', ''))}</p>",
        "<p>The same for programs: <a href='openapi.json'>openapi.json</a></p>",
    ]
    group = None
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            tag = next(iter(operation.get("tags", [])), "")
            if tag != group:
                group = tag
                parts.append(f"<h2>{escape(tag)}</h2>")
            parts += _operation(method.upper(), path, operation, schemas, address)
    return "\n".join(parts)


def _operation(
    method: str, path: str, operation: Schema, schemas: Schema, address: str
) -> Iterator[str]:
    """One endpoint as HTML: its description, examples, fields and an example answer."""
    text = operation.get("description") or operation.get("summary", "")
    yield f"<details><summary><code><b>{method}</b> {escape(path)}</code> {escape(text)}</summary>"
    content = operation.get("requestBody", {}).get("content", {})
    body = content.get("application/json", {})
    schema = _resolved(body.get("schema", {}), schemas)
    line = f"curl {address}{path}" + ("" if method in ("GET", "POST") else f" -X {method}")
    for example in schema.get("examples") or [None]:
        data = f" -H 'Content-Type: application/json' -d '{_json(example)}'" if example else ""
        yield f"<pre>{escape(line + data)}</pre>"
    fields = [(one["name"], one, one.get("required")) for one in operation.get("parameters", [])]
    required = schema.get("required", [])
    fields += [(name, one, name in required) for name, one in schema.get("properties", {}).items()]
    if fields:
        yield "<table><tr><th>field<th>type<th>default<th></tr>"
        for name, field, needed in fields:
            kind = _type(field.get("schema", field), schemas)
            default = "required" if needed else _default(field)
            cells = map(escape, (kind, default, field.get("description", "")))
            yield f"<tr><td><code>{escape(name)}</code><td>{'<td>'.join(cells)}</tr>"
        yield "</table>"
    answer = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
    for example in _resolved(answer.get("schema", {}), schemas).get("examples", []):
        yield f"<p>answers</p><pre>{escape(json.dumps(example, indent=1))}</pre>"
    yield "</details>"


def _resolved(schema: Schema, schemas: Schema) -> Schema:
    """The schema, or the one that its reference names."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return cast("Schema", schemas.get(name, {})) if name else schema


def _default(field: Schema) -> str:
    default = field.get("schema", field).get("default")
    return "" if default is None else _json(default)


def _type(schema: Schema | bool, schemas: Schema) -> str:
    """A short description of a field's type and range."""
    if isinstance(schema, bool):
        return "any"
    if "anyOf" in schema:
        kinds = (_type(one, schemas) for one in schema["anyOf"] if one.get("type") != "null")
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in schema:
        inner = _resolved(schema, schemas)
        fields = ", ".join(inner.get("properties", {}))
        return f"object ({fields})" if fields else _type(inner, schemas)
    if "enum" in schema or "const" in schema:
        return ", ".join(map(_json, schema.get("enum", [schema.get("const")])))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        kind = f"list of {_type(schema.get('items', {}), schemas)}"
    elif schema.get("additionalProperties"):
        kind = f"object of {_type(schema['additionalProperties'], schemas)}"
    bounds = [f"{sign} {schema[key]:.16g}" for key, sign in _BOUNDS.items() if key in schema]
    return f"{kind}, {', '.join(bounds)}" if bounds else kind


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
