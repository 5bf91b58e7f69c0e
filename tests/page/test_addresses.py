"""What the page shows after its address has changed, in Chromium, on runs without a model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import count, served, until
from made_runs import add_play, made_run

pytestmark = [pytest.mark.optional]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page of a run with a play, and of one of nim without any."""
    runs: Path = tmp_path_factory.mktemp("page") / "runs"
    add_play(made_run(runs / "words"), 1, "eight")
    made_run(runs / "nim", arena="nim")
    with served(runs) as (found, _):
        yield found


def test_the_filters_of_plays_show_what_the_address_holds(page: Any) -> None:
    page.goto("/#/plays?run=words")
    page.wait_for_selector("table.plays")
    page.fill("#search", "eight")
    page.select_option("#f-kind", "training")
    page.check("#f-failed")
    page.click("text=clear all")
    until(page, "document.getElementById('f-kind').value", "")
    assert page.input_value("#search") == ""
    assert not page.is_checked("#f-failed")
    assert not page.is_visible("text=clear all")


def test_a_play_that_was_left_is_drawn_no_more(page: Any) -> None:
    held: list[Any] = []
    page.route("**/api/plays/*/pieces*", lambda route: held.append(route))
    page.goto("/#/plays?run=words&play=1")
    page.click("a:text-is('position') >> nth=0")
    page.wait_for_selector("h1:text('Positions')")
    with page.expect_response("**/api/plays/*/pieces*"):
        held[0].fulfill(json={"turns": None, "why": "late"})
    page.wait_for_timeout(1000)
    assert page.inner_text("h1") == "Positions"


def test_a_position_is_played_on_after_a_step_back_from_a_slow_answer(page: Any) -> None:
    held: list[Any] = []
    page.goto("/#/positions?run=nim")
    page.wait_for_selector("[data-move]")
    page.route("**/api/positions", lambda route: held.append(route))
    page.click("[data-move] >> nth=0")
    until(page, "location.hash.includes('said')")
    page.wait_for_timeout(1000)
    assert len(held) == 1
    page.go_back()
    page.wait_for_timeout(1000)
    page.unroute("**/api/positions")
    page.click("[data-move] >> nth=0")
    until(page, count(".dialogue .turn"), 1)
