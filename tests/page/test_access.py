"""Who may see the page, and what it is made of."""

import re
from importlib import resources
from pathlib import Path

import pytest
from made_runs import made_run, page_of

from legos.cli.process import main
from legos.errors import ConfigError
from legos.server.options import ServerOptions


def test_runs_are_behind_the_key_and_the_program_is_not(runs: Path) -> None:
    made_run(runs / "one")
    page = page_of(parent=runs, key="s3cret")
    assert page.get("/").status_code == 200
    assert page.get("/app.js").status_code == 200
    for headers in ({}, {"authorization": "Bearer wrong"}):
        refused = page.get("/api/runs", headers=headers)
        assert refused.status_code == 401
        assert "one" not in refused.text
    allowed = page.get("/api/runs", headers={"authorization": "Bearer s3cret"})
    assert allowed.json()["runs"][0]["name"] == "one"


@pytest.mark.parametrize("host", ["a/", "a?", "a#", "a/b"])
def test_no_host_header_opens_what_needs_the_key(runs: Path, host: str) -> None:
    page = page_of(parent=runs, key="s3cret")  # an old Starlette makes the URL of both
    assert page.get("/api/runs", headers={"host": host}).status_code == 401


def test_an_address_that_others_reach_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="give --api-key-file"):
        ServerOptions.for_host("0.0.0.0", api_key=None)


def test_a_name_that_only_looks_local_is_refused(runs: Path) -> None:
    made_run(runs / "one")
    refused = page_of(parent=runs).get("/api/runs", headers={"host": "evil.example"})
    assert refused.status_code == 403


def test_the_page_loads_nothing_from_elsewhere() -> None:
    static = Path(str(resources.files("legos.page"))) / "static"
    for path in static.rglob("*.*"):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn", text), path
        assert "innerHTML" not in text, path


def test_a_browser_is_told_to_run_no_other_program(runs: Path) -> None:
    made_run(runs / "one")
    policy = page_of(parent=runs).get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy


def test_a_run_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "nowhere"]) == 2
    assert "nowhere holds no run" in capsys.readouterr().err
