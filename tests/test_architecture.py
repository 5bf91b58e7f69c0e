"""What holds for the whole house: sizes, docstrings, public names, and what an import loads."""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import legos

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for folder in ("legos", "arenas", "examples", "tests")
    for path in ROOT.glob(f"{folder}/**/*.py")
)
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_EXAMPLE_LINES = 80
MAX_NOTEBOOK_LINES = 210  # cells, widgets and pictures


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements(node: ast.AST, *, typing: bool = True) -> Iterator[ast.stmt]:
    """All statements within a node; without ``typing``, none that a type checker alone reads."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, name, ()):
            if isinstance(each, ast.stmt):
                yield each
            only = isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"
            if typing or not only:
                yield from statements(each, typing=typing)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, without the docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or 0) - docstring.lineno + 1
    return lines


def test_there_are_files_to_look_at() -> None:
    assert len(FILES) > 40


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES}
    too_long |= {
        name: lines
        for name, lines in lengths.items()
        if name.startswith("examples/")
        and lines > (MAX_NOTEBOOK_LINES if "notebook" in name else MAX_EXAMPLE_LINES)
    }
    assert not too_long


def test_no_function_is_longer_than_60_lines() -> None:
    too_long = {
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}": length(function)
        for path in FILES
        for function in functions(parsed(path))
        if length(function) > MAX_FUNCTION_LINES
    }
    assert not too_long


def imported(path: Path, modules: Collection[str]) -> set[str]:
    """The modules of the kit that a file imports when it is loaded or later, in functions."""
    found: set[str] = set()
    for node in statements(parsed(path), typing=False):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    names = {name if name in modules else name.rpartition(".")[0] for name in found}
    return names & set(modules)


def test_no_module_needs_itself() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in FILES
        if path.is_relative_to(ROOT / "legos")
    }
    graph = {name: imported(path, modules.keys()) - {name} for name, path in modules.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_every_module_says_what_it_is() -> None:
    silent = [str(path.relative_to(ROOT)) for path in FILES if not ast.get_docstring(parsed(path))]
    assert not silent


def test_every_public_name_is_documented() -> None:
    assert set(dir(legos)) == set(legos.__all__)
    for name in legos.__all__:
        assert getattr(legos, name).__doc__, name


def test_the_stub_lists_the_public_names_and_their_homes() -> None:
    stub = ast.parse((ROOT / "legos" / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    listed = {alias.name: node.module for node in imports for alias in node.names}
    assert listed == vars(legos)["_HOMES"]


@pytest.mark.parametrize("module", ["legos", "legos.cli", "legos.config", "arenas.nim"])
def test_import_loads_no_device_library(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "heavy = {'mlx', 'mlx_lm', 'torch', 'transformers', 'wandb'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
