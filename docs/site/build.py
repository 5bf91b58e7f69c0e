"""Build the documentation as a site with search: ``uv run --group docs python docs/site/build.py``.

Gathers the pages of ``docs``, those of the repository's root, the files that they link to and the
pages that are made from the code in ``dist/pages``, and lets Zensical make the site in
``dist/site``. A dead link, or a page without a place in the navigation, fails.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from latex2mathml.converter import convert

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import generated  # noqa: E402

PAGES = ROOT / "dist" / "pages"
CONFIG = Path(__file__).with_name("zensical.toml")
BESIDE = (Path("CHANGELOG.md"), Path("CONTRIBUTING.md"), Path("SECURITY.md"))
FILES = Path("generated/files.md")
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
EQUATION = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def sources() -> Iterator[tuple[Path, str]]:
    """Each page: its place in the site, and its text."""
    for place in written_pages():
        text = (ROOT / place).read_text(encoding="utf-8")
        yield on_site(place), with_equations(with_links(text, place))
    yield FILES, files()
    for name, make in generated.PAGES.items():
        yield Path("generated", f"{name}.md"), make()


def written_pages() -> list[Path]:
    """The pages of the repository, from its root."""
    return [*sorted(p.relative_to(ROOT) for p in (ROOT / "docs").rglob("*.md")), *BESIDE]


@cache
def shown_files() -> list[Path]:
    """The examples, and every other file of code that a page links to, from the root."""
    found = {p.relative_to(ROOT) for p in (ROOT / "examples").rglob("*")}
    for page in written_pages():
        for target, _ in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            if ":" not in target:
                found.add(((ROOT / page).parent / target).resolve().relative_to(ROOT))
    return sorted(place for place in found if place.suffix in (".py", ".toml"))


def files() -> str:
    """All these files on one page."""
    parts = ["# Examples and other files"]
    for place in shown_files():
        text = (ROOT / place).read_text(encoding="utf-8")
        parts.append(f"## {place}\n\n````{place.suffix[1:]}\n{text}````")
    return "\n\n".join(parts) + "\n"


def on_site(place: Path) -> Path:
    """Where a page of the repository stands in the site."""
    return place.relative_to("docs") if place.parts[0] == "docs" else place


def with_links(text: str, place: Path) -> str:
    """A page with links that lead to the pages of the site.

    Raises:
        FileNotFoundError: a link leads out of the site.
    """
    up = "../" * (len(on_site(place).parts) - 1)

    def led(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if ":" in target:
            return found[0]
        inside = (ROOT / place.parent / target).resolve().relative_to(ROOT)
        if inside in shown_files():
            return f"{up}{FILES}#{generated.anchor_of(str(inside))}"
        if str(inside) == "README.md":
            return f"{up}index.md"
        if inside.parts[0] != "docs" and inside not in BESIDE:
            raise FileNotFoundError(f"{place} links to {target}, which is no page of the site")
        return f"{up}{on_site(inside)}{anchor}"

    return LINK.sub(led, text)


def with_equations(text: str) -> str:
    """A page with its equations as MathML, which browsers show without a script.

    Raises:
        ValueError: a command of an equation is not known.
    """

    def shown(found: re.Match[str]) -> str:
        equation = convert(found[1], display="block")
        if "\\" in equation:
            raise ValueError(f"an equation keeps a backslash in MathML: {found[1]}")
        return f"<div>{equation}</div>"

    return EQUATION.sub(shown, text)


def gather() -> set[str]:
    """Write all pages and pictures to ``dist/pages``; returns the pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("site", "*.md", "*.jsonl"))
    pages: set[str] = set()
    for place, text in sources():
        file = PAGES / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        pages.add(str(place))
    return pages


def in_navigation() -> set[str]:
    """The pages of the navigation."""
    entries = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"]
    groups = [page for entry in entries if isinstance(entry, dict) for page in entry.values()]  # pyrefly: ignore[unknown-variable-type]
    return {entry for entry in entries if isinstance(entry, str)}.union(*groups)


def main() -> int:
    """Build the site; returns the exit code of Zensical."""
    if lost := gather() ^ in_navigation():
        sys.stderr.write(f"{CONFIG}: nav and pages differ: {', '.join(sorted(lost))}\n")
        return 1
    shutil.copy(CONFIG, PAGES.parent)
    command = ["zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, check=False, cwd=PAGES.parent).returncode


if __name__ == "__main__":
    sys.exit(main())
