"""Pages made from the code: commands, settings, metrics, endpoints, public names."""

import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from fastapi import FastAPI
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import legos
from legos.cli.app import make_app
from legos.config.play import MixedArena
from legos.config.resolve import knobs
from legos.config.schema import RunConfig
from legos.config.setting import limits
from legos.server.app import service_of
from legos.server.options import ServerOptions
from legos.wiring.http import app_of

DOCS = Path(__file__).parents[1]
MODULES = {  # public beside `from legos import …`, and what for
    "legos.builtin": "the built-in model",
    "legos.checks": "for tests of an arena",
    "legos.errors": "for `except`",
    "legos.fakes": "clients without a model, for tests of an arena",
}


def commands() -> str:
    """Every command with every option, as ``--help-all`` prints them."""
    text = make_app(brief=False).generate_docs(output_format="markdown")
    text = re.sub(r"## Table of Contents\n.*?(?=\n\*\*Commands)", "", text, flags=re.DOTALL)
    return text.replace("# legos\n", "# Commands\n", 1)


def settings() -> str:
    """Every setting with its default, words, unit, range and description."""
    mix = {f"mix.NAME.{name}": field for name, field in _only_of_a_mix().items()}
    groups: dict[str, list[str]] = {}
    for name, field in (dict(knobs()) | mix).items():
        groups.setdefault(name.rpartition(".")[0], []).append(_setting(name, field))
    lines = [
        "# Settings",
        "Each setting is an option of `legos train` (`--training.lora-rank 16`) and a line of a "
        "TOML file (`--config FILE`). The model and the arena recommend values for some: "
        "`legos train --dry-run` prints every value with its source.",
    ]
    for group, parts in groups.items():
        lines += [f"## `[{group}]`" if group else "## Of the run", *parts]
        if group.startswith("mix"):
            lines.append("All settings of `[play]`, for this arena alone.")
    return "\n\n".join(lines) + "\n"


def _only_of_a_mix() -> dict[str, FieldInfo]:
    play = RunConfig.model_fields["play"].annotation
    known = getattr(play, "model_fields", {})
    return {name: field for name, field in MixedArena.model_fields.items() if name not in known}


def _setting(name: str, field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    extra = field.json_schema_extra
    facts = (
        "must be given" if default is PydanticUndefined else f"default `{_written(default)}`",
        f"one of {', '.join(f'`{word}`' for word in words)}" if (words := _words(field)) else "",
        str(extra.get("unit", "")) if isinstance(extra, dict) else "",
        limits(field),
    )
    return f"### `{name}`\n\n{'; '.join(filter(None, facts))}\n\n{field.description}"


def _words(field: FieldInfo) -> list[str]:
    """The words that a setting may be, where it is one of a few."""
    kinds = (field.annotation, *get_args(field.annotation))
    return [word for kind in kinds for word in get_args(kind) if isinstance(word, str)]


def _written(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def metrics() -> str:
    """Every metric that a page describes in a table, and those of a server."""
    described = (f"| {name} | {meaning} | {page} |" for name, meaning, page in metric_rows())
    text = service_of(_server()).metrics.text().decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    of_server = (
        f"| `{name}` | {kinds[name]} | {meaning} |"
        for name, meaning in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE)
        if not name.endswith("_created")
    )
    return "\n".join(
        (
            "# Metrics",
            "",
            "What the lines of `metrics.jsonl` and `evaluations.jsonl` have, and what trackers "
            "show ([tracking](../run/tracking.md)). Words in capitals stand for names. "
            "[Alarms](../run/alarms.md) says which values raise an alarm.",
            "",
            "| metric | meaning | page |",
            "|---|---|---|",
            *sorted(described),
            "",
            "## Of a server",
            "",
            "`GET /metrics` of `legos serve`, in the Prometheus format:",
            "",
            "| metric | kind | meaning |",
            "|---|---|---|",
            *of_server,
            "",
        )
    )


def metric_rows() -> Iterator[tuple[str, str, str]]:
    """The rows of all tables of metrics: names, meaning, and a link to the page."""
    for page in sorted(DOCS.rglob("*.md")):
        place = page.relative_to(DOCS)
        heading = ""
        for part in re.split(r"\n(?=#)|\n\n", page.read_text(encoding="utf-8")):
            if found := re.match(r"#+ (.*)", part):
                heading = found[1]
            head, *rows = part.splitlines() or [""]
            if not head.startswith(("| metric | meaning |", "| metric | |")):
                continue
            for row in rows[1:]:
                name, meaning = re.split(r"(?<!\\)\|", row.strip("| "), maxsplit=1)
                told = re.sub(r"\]\((?!\.\./|http|#)", f"](../{place.parent}/", meaning)
                told = told.replace("](#", f"](../{place}#")
                yield (
                    name.strip(),
                    told.strip(" |"),
                    f"[{place.stem}](../{place}#{anchor_of(heading)})",
                )


def anchor_of(heading: str) -> str:
    """The anchor of a heading, as GitHub and Zensical make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def endpoints() -> str:
    """Every endpoint of the server with its parameters and the fields of its body."""
    schema = _server().openapi()
    lines = [
        "# Endpoints",
        "Those of `legos serve`; `http://…/openapi.json` of a running server has the same with all "
        "types and examples. [Serving](../serve/serving.md) says how they are used.",
    ]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            lines += [f"## `{method.upper()} {path}`", operation.get("description", "")]
            rows = [*_parameters(operation), *_fields(operation, schema["components"]["schemas"])]
            if rows:
                lines.append("\n".join(["| field | in | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(filter(None, lines)) + "\n"


def _parameters(operation: dict[str, Any]) -> Iterator[str]:
    for one in operation.get("parameters", ()):
        yield f"| `{one['name']}` | {one['in']} | {_meaning(one['schema'] | one)} |"


def _fields(operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is None:
        return
    name = body["schema"].get("$ref", "").rpartition("/")[2]
    for field, told in schemas.get(name, body["schema"]).get("properties", {}).items():
        yield f"| `{field}` | body | {_meaning(told)} |"


def _meaning(schema: dict[str, Any]) -> str:
    kinds = schema.get("anyOf", [schema])
    words = [kind.get("type") or kind.get("$ref", "").rpartition("/")[2] for kind in kinds]
    told = " ".join(str(schema.get("description", "")).split()).replace("|", r"\|")
    return ": ".join(filter(None, (" or ".join(filter(None, words)), told)))


@cache
def _server() -> FastAPI:
    """The application of ``legos serve`` with the built-in model."""
    model = legos.load_model()
    legos.apply_lora(model)
    engine = model.make_engine()
    engine.load_adapter(model.base_adapter()).result()
    app = app_of(model, engine, name="builtin", options=ServerOptions())
    engine.close()
    return app


def names() -> str:
    """Every public name, and those of ``MODULES``, for mkdocstrings to describe."""
    lines = [
        "# Public names",
        "What `from legos import …` gives. [From Python](../start/python.md) shows them at work.",
    ]
    for name in sorted(legos.__all__, key=str.lower):
        home = getattr(legos, name).__module__
        place = f"{home}.{name}"
        if getattr(import_module(home), name, None) is not getattr(legos, name):
            raise LookupError(f"{place} is not what legos.{name} is")
        lines.append(f"::: {place}")
    for module, purpose in MODULES.items():
        lines.append(f"Names of `{module}`: {purpose}.")
        found = import_module(module)
        listed: list[str] = getattr(found, "__all__", None) or _classes(found)
        lines += [f"::: {module}.{name}" for name in listed]
    return "\n\n".join(lines) + "\n"


def _classes(module: ModuleType) -> list[str]:
    """Names of the classes that a module defines."""
    own = inspect.getmembers(module, inspect.isclass)  # sorted by name
    return [name for name, found in own if found.__module__ == module.__name__]


PAGES = {
    "commands": commands,
    "settings": settings,
    "metrics": metrics,
    "endpoints": endpoints,
    "names": names,
}
