"""The page in Chromium, on a run of nim that is trained here and on a run of a chat model."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import count, served, until
from made_leagues import with_league
from made_runs import add_lines, add_play, made_run, step_line
from short_runs import FEW, NIM

pytestmark = [pytest.mark.optional, pytest.mark.slow]

LEAGUE = (
    *NIM,
    *("--play.opponents", "self=0.4", "--play.opponents", "past=0.4"),
    *("--play.opponents", "random=0.2", "--league.snapshot-every", "2", "--loop.plays-kept", "1"),
    *("--training.staleness-limit", "0"),  # no play waits while a snapshot is taken
)
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of nim, kuhn, a league and a chat model, one with bad steps, and a league that falls."""
    place = tmp_path_factory.mktemp("page") / "runs"
    kuhn = (*FEW, "--arena", "kuhn")
    runs = (("nim-0", 0, NIM), ("nim-1", 1, NIM), ("kuhn-0", 0, kuhn), ("league-1", 1, LEAGUE))
    for name, seed, options in runs:
        length = ("--steps", "6", "--seed", f"{seed}", "--out", f"{place}/{name}")
        command = ("train", *options, *length)
        subprocess.run([sys.executable, "-m", "legos", *command], check=True, capture_output=True)
    shutil.copytree(Path(__file__).parent / "countdown_run", place / "countdown-1")
    folder = made_run(place / "bad", steps=40, model="nobody/has-this-model")
    add_lines(folder.metrics, [step_line(step, clip_fraction=0.9) for step in (41, 42)])
    falling = made_run(place / "few", steps=3)
    with_league(falling)
    add_lines(falling.metrics, [step_line(4, **{"league/fall": 120.0, "league/forgotten": 0.0})])
    add_play(folder, 3, f"{HOSTILE}\u202e", question=HOSTILE, advantage=0.5)
    add_play(falling, 3, "3", question="Nim: 99999999 left, last one wins.")
    return place


@pytest.fixture(scope="module")
def url(runs: Path) -> Iterator[str]:
    """The address of the page of all runs."""
    with served(runs) as (found, _):
        yield found


@pytest.fixture(scope="module")
def modelled(runs: Path) -> Iterator[str]:
    """The address of the page of all runs, with the built-in model loaded."""
    with served(runs, "--model", "builtin") as (found, _):
        yield found


def texts(page: Any, selector: str) -> list[str]:
    """The texts of all elements, once there is one."""
    page.locator(selector).first.wait_for()
    return page.locator(selector).all_inner_texts()


def test_the_overview_shows_each_run_and_leads_to_its_curves(page: Any) -> None:
    page.goto("/")
    assert {"nim-0", "nim-1", "kuhn-0", "league-1", "countdown-1", "bad", "few"} == set(
        texts(page, ".card .name")
    )
    card = page.locator(".card", has_text="nim-0")
    assert "exploitability" in card.inner_text()
    assert "step 6 of 6" in card.inner_text()
    assert card.locator("svg polyline").count() == 1
    assert "clip_fraction is 0.9" in page.locator(".card", has_text="bad").inner_text()
    page.fill("#filter", "countdown")
    until(page, count(".card"), 1)
    page.fill("#filter", "nim")
    for name in ("nim-0", "nim-1"):
        page.check(f"#pick-{name}")
    page.click("text=Compare 2 runs")
    page.wait_for_selector(".js-plotly-plot .xtick")
    assert texts(page, ".chart figcaption")[0].startswith("exploitability")
    assert texts(page, ".diff tbody th") == ["seed"]


def test_curves_are_chosen_by_an_expression_that_the_address_holds(page: Any) -> None:
    page.goto("/#/curves?run=nim-0&run=nim-1&filter=^entropy$&bands=true&smooth=0.5")
    page.wait_for_selector(".js-plotly-plot .xtick")
    assert texts(page, ".chart figcaption") == ["entropy"]
    assert page.is_checked("#bands")
    page.select_option("#axis", "tokens")
    until(page, "document.querySelector('.xtitle').textContent", "tokens")
    page.fill("#metrics", "(")
    page.wait_for_selector("text=is no regular expression")


def test_plays_are_searched_and_opened_by_keys(page: Any) -> None:
    page.goto("/#/plays?run=countdown-1")
    everything = len(texts(page, "table.plays tbody tr"))
    page.keyboard.press("/")
    page.keyboard.type("make -3")
    rows = count("table.plays tbody tr")
    until(page, f"0 < {rows} && {rows} < {everything}")
    assert "text=make+-3" in page.url
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".dialogue .asked")
    assert "once each with + - * /" in page.inner_text(".dialogue .asked")
    page.wait_for_selector("text=is not on this machine")
    page.keyboard.press("Escape")
    page.wait_for_selector("table.plays")


def test_a_play_has_its_group_beside_it(page: Any) -> None:
    page.goto("/#/plays?run=countdown-1&kind=training")
    page.click("table.plays tbody tr >> nth=0")
    page.wait_for_selector(".sibling.current")
    assert page.locator(".sibling").count() == 8
    assert page.locator(".sibling.current").count() == 1
    page.click(".sibling:not(.current) >> nth=0")
    until(
        page,
        "[...document.querySelectorAll('.sibling')].findIndex((e) => e.matches('.current'))",
        0,
    )


def test_a_play_of_nim_shows_stones_values_and_tokens(page: Any) -> None:
    page.goto("/#/plays?run=nim-0&sort=turns")
    page.click("table.plays tbody tr >> nth=0")
    page.wait_for_selector("table.exact tbody tr.chosen")
    page.wait_for_selector(".token")
    turns = len(texts(page, ".turn"))
    assert turns > 1
    assert page.locator("circle.stone").count() > 0
    page.keyboard.press("ArrowLeft")
    until(page, count(".turn"), turns - 1)
    assert f"turn={turns - 1}" in page.url
    choices = texts(page, ".choice")
    assert {"version", "ratio", "gap", "advantage", "entropy", "mask"} <= set(choices)
    page.click(".choice:text('advantage')")
    page.hover(".token >> nth=0")
    shown = page.inner_text("#tip")
    for name in ("token", "version", "probability", "ratio", "gap", "advantage", "entropy"):
        assert name in shown


def test_a_play_of_kuhn_shows_cards_and_a_person_sees_one_alone(
    browser: Any, modelled: str
) -> None:
    page = browser.new_page(base_url=modelled)
    page.set_default_timeout(120_000)
    page.goto("/#/plays?run=kuhn-0&sort=turns")
    page.click("table.plays tbody tr >> nth=0")
    page.wait_for_selector("table.exact tbody tr.chosen")
    assert page.locator(".own-card").count() == len(texts(page, ".turn"))
    page.goto("/#/positions?run=kuhn-0&seat=second")
    while not page.locator(".ending").count():
        until(page, f"{count('[data-move]')} + {count('.ending')} > 0")
        if page.locator("[data-move]").count():
            assert all(who == "second" for who in texts(page, ".who b"))
            answered = page.locator(".dialogue .turn").count()
            page.click("[data-move] >> nth=0")
            until(page, f"{count('.dialogue .turn')} > {answered}")
    shown = [text.strip() for text in page.locator(".rank").all_text_contents()]
    assert len(set(shown)) == 2
    page.close()


def test_hostile_text_is_shown_as_text(page: Any) -> None:
    page.goto("/#/plays?run=bad")
    assert HOSTILE in page.inner_text("table.plays tbody")
    page.click("table.plays tbody tr")
    page.wait_for_selector(".said")
    assert f"{HOSTILE}\\u202e" in page.inner_text(".said >> nth=0")  # it turns no text round
    assert HOSTILE in page.inner_text(".asked")
    assert page.locator("main img, main b:text('bold')").count() == 0
    assert page.title() == "Plays · legos"


def test_a_position_with_too_many_stones_is_text(page: Any) -> None:
    page.goto("/#/plays?run=few&play=1")
    page.wait_for_selector(".said")
    assert "99999999 left" in page.inner_text(".asked")
    assert page.locator("circle.stone").count() == 0


def test_health_shows_alarms_and_lost_tokens(page: Any) -> None:
    page.goto("/#/health?run=bad")
    alarm = page.locator(".alarm.error")
    alarm.wait_for()
    assert "clip_fraction" in alarm.inner_text()
    assert "docs/run/alarms.md" in alarm.inner_text()
    assert alarm.locator("svg title").all_text_contents() == ["steps 41 to 42"]
    assert "clip skip" in page.inner_text("main")
    assert "Every step was applied." in page.inner_text("main")


def test_the_policy_of_nim_is_drawn_over_the_steps(page: Any) -> None:
    page.goto("/#/policy?run=nim-0")
    page.wait_for_selector("svg.probabilities")
    assert page.locator(".positions circle.stone").count() > 0
    assert page.locator("line.optimal").count() > 0
    page.goto("/#/policy?run=countdown-1")
    page.wait_for_selector(".tasks table")
    assert {"step 0", "step 15"} <= set(texts(page, ".tasks a"))


def test_the_league_has_ratings_and_leads_to_the_plays_of_a_pair(page: Any) -> None:
    page.goto("/#/league?run=nim-0")
    assert "plays itself alone" in texts(page, ".empty")[0]
    page.goto("/#/league?run=league-1")
    members = texts(page, "tbody tr td:first-child")
    assert {"random", "policy@0", "policy@2", "policy@4"} <= {each.strip() for each in members}
    assert page.locator(".ratings circle.end").count() == 3
    for newer, first, last in (("policy@2", 3, 4), ("policy@4", 5, 6)):
        page.goto("/#/league?run=league-1")
        cell = page.locator(f"table.heat a[aria-label^='{newer} against random: score']")
        assert 0 <= float(cell.inner_text()) <= 1
        plays = re.findall(r"(\d+ plays?) \(\d+ wins", cell.get_attribute("aria-label"))
        cell.click()
        page.wait_for_selector("table.plays")
        assert page.url.endswith(f"&kind=training&step_min={first}&step_max={last}")
        assert "seat=random" in page.url
        assert texts(page, ".head [role=status]") == plays


def test_the_league_shows_its_guards_and_says_that_few_plays_are_kept(page: Any) -> None:
    page.goto("/#/league?run=league-1")
    rows = {row.split("\t")[0]: row.split("\t")[1:] for row in texts(page, ".guards tbody tr")}
    names = ["fall", "forgotten", "draw_share", "seat_gap", "length", "entropy", "collusion"]
    assert [*rows] == names
    assert all(each[0] == "6" for each in rows.values())
    assert rows["forgotten"][2] == "at least 1"
    assert rows["entropy"][2] == "at most 0.1"
    assert "loop.plays_kept" not in page.inner_text("main")
    page.goto("/#/league?run=few")
    page.wait_for_selector("text=keeps the plays of 5 % of its tasks (loop.plays_kept)")
    alarm = page.locator(".guards tr", has_text="fall")
    assert alarm.locator(".tag.error").inner_text() == "error"
    page.goto("/#/health?run=few")
    page.wait_for_selector(".alarm.error")
    assert "league/fall" in page.inner_text(".alarm.error")


AXE = """(async () => (await axe.run()).violations.map(
  (each) => `${each.id}: ${each.nodes.map((node) => node.html).join(" ").slice(0, 300)}`))()"""
VIEWS = (
    *("overview", "plays?run=nim-0", "plays?run=nim-0&play=3", "plays?run=countdown-1&play=2"),
    *("plays?run=kuhn-0&play=3", "positions?run=kuhn-0&seat=second", "policy?run=kuhn-0"),
    *("curves?run=nim-0", "health?run=bad", "policy?run=nim-0", "league?run=league-1"),
    *("timeline?run=nim-0", "positions?run=nim-0&play=3", "positions?run=countdown-1&play=9"),
)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_view_has_a_fault_that_axe_finds(browser: Any, modelled: str, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python")
    rules = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    page = browser.new_page(base_url=modelled, color_scheme=theme)
    for view in VIEWS:
        page.goto(f"/#/{view}")
        page.reload()
        page.locator("h1, .back").first.wait_for(timeout=120_000)
        page.evaluate(rules)
        assert page.evaluate(AXE) == [], view
    page.close()


def test_the_timeline_has_lanes_and_plays(page: Any) -> None:
    page.goto("/#/timeline?run=nim-0&steps=10")
    page.wait_for_selector("svg.lanes")
    assert page.locator("rect.lane-trainer[height='26']").count() == 6
    page.locator("svg.lanes a").first.click()
    page.wait_for_selector(".dialogue .turn")


def test_a_run_that_is_moved_while_it_is_shown_is_reported(page: Any, runs: Path) -> None:
    made_run(runs / "gone", steps=2)
    page.goto("/#/health?run=gone")
    page.wait_for_selector("text=2 steps")
    shutil.move(runs / "gone", runs.parent / "gone")
    page.wait_for_selector("#live:has-text('there is no run')")
    assert "2 steps" in page.inner_text("main")


def test_a_page_for_others_asks_for_its_key(browser: Any, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    key_file = ("--api-key-file", str(tmp_path / "key"))
    with served(runs / "bad", "--host", "0.0.0.0", *key_file) as (url, _):
        page = browser.new_page()
        page.goto(url.replace("0.0.0.0", "127.0.0.1"))
        for key in ("wrong", "s3cret"):
            page.wait_for_selector("dialog[open]")
            assert page.locator(".card").count() == 0
            page.fill("#key", key)
            with page.expect_response("**/api/runs*") as asked:
                page.keyboard.press("Enter")
            assert asked.value.status == (200 if key == "s3cret" else 401)
        assert texts(page, ".card .name") == ["bad"]
        page.close()


def test_the_page_is_dark_and_narrow_where_it_is_asked_for(browser: Any, url: str) -> None:
    context = browser.new_context(
        viewport={"width": 380, "height": 800}, color_scheme="dark", base_url=url
    )
    page = context.new_page()
    plays = ("plays?run=nim-0", "plays?run=nim-0&play=3", "positions?run=nim-0")
    for view in ("overview", *plays, "health?run=bad"):
        page.goto(f"/#/{view}")
        page.wait_for_selector("h1")
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, view
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(20, 22, 26)"
    page.keyboard.press("d")
    until(page, background, "rgb(246, 245, 242)")
    context.close()


def test_two_checkpoints_are_compared_and_played_against(
    browser: Any, modelled: str, url: str
) -> None:
    page, problems = browser.new_page(base_url=modelled), []
    page.set_default_timeout(120_000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto("/#/plays?run=nim-0&sort=turns")
    page.click("table.plays tbody tr >> nth=0")
    page.click("a:text-is('position') >> nth=1")
    page.wait_for_selector(".moves .share:has-text('%')")
    assert "turn=2" in page.url
    assert texts(page, ".moves th") == ["move", "A: base", "B: nim-0", "optimal", "value"]
    assert page.locator(".dialogue .turn").count() == 1
    page.select_option("#a", "nim-0@v0")
    page.wait_for_selector(".moves th:text('A: nim-0@v0')")
    page.select_option("#seat", "second")
    page.wait_for_selector("#against")
    for _ in range(9):
        until(page, count("[data-move]") + " + " + count(".ending") + " > 0")
        if page.locator(".ending").count():
            break
        turns = page.locator(".dialogue .turn").count()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        until(page, f"{count('.dialogue .turn')} > {turns}")
    assert "Rewards" in page.inner_text(".ending")
    whole = page.url
    other = browser.new_page()
    other.goto(whole)
    other.wait_for_selector(".ending")
    assert texts(other, ".dialogue .said") == texts(page, ".dialogue .said")
    other.close()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("[data-move]")
    page.goto(f"{url}/#/positions?run=nim-0")
    assert "/runs/nim-0 --model builtin" in page.inner_text(".notice")
    page.close()
    assert problems == []


def test_a_person_answers_in_a_text_arena_and_hostile_text_stays_text(
    browser: Any, modelled: str
) -> None:
    page = browser.new_page(base_url=modelled)
    page.set_default_timeout(120_000)
    page.goto("/#/positions?run=bad&play=1")
    assert HOSTILE in page.inner_text(".asked")
    page.goto("/#/positions?run=countdown-1&play=9")
    page.wait_for_selector(".asked:has-text('Use 8, 2')")
    page.fill("#answer", HOSTILE)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".ending")
    assert HOSTILE in page.inner_text(".said")
    assert page.locator("main img, main b:text('bold')").count() == 0
    page.click("#take-back")
    page.wait_for_selector("#answer")
    page.fill("#answer", "8 - 2")
    page.click("#say")
    page.wait_for_selector(".ending .reward.good")
    page.close()
