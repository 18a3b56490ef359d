"""The page's own scripts: live parts, the log that grows, what they do when the tab sleeps or the panel is away."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from panel.core import sse
from tests.browser.checks import until
from tests.servers import Servers
from tests.web import Web, web_process

APP = "tests.browser.live_app:application"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def web(servers: Servers, django_db_setup: None, place: Path) -> Iterator[Web]:
    with demo_process(servers, place) as running:
        yield running


@pytest.fixture(autouse=True)
def folder(place: Path) -> Path:
    (place / "log").write_bytes(b"")
    (place / "words").write_text("first")
    return place


def demo_process(servers: Servers, place: Path) -> AbstractContextManager[Web]:
    return web_process(servers, place, APP, DEMO_LOG=str(place / "log"), DEMO_WORDS=str(place / "words"))


def write(folder: Path, text: str, *, tell: bool = True, shown: bool = True) -> None:
    """The log grew: as the panel's link does it, the bytes are stored first, then told."""
    with (folder / "log").open("ab") as file:
        start = file.tell()
        file.write(text.encode())
    if tell:
        data = {"job": "j1", "offset": start, "end": start + len(text.encode())}
        sse.publish("job:j1", "log", {**data, **({"text": text} if shown else {})})


def lines(page: Page) -> list[str]:
    return page.eval_on_selector_all("#log .ln:not([hidden])", "all => all.map(e => e.lastChild.textContent)")


def sleep_tab(page: Page, hidden: bool) -> None:
    page.evaluate(
        "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        "document.dispatchEvent(new Event('visibilitychange')) }",
        hidden,
    )


def test_part_follows_what_was_published(visit: Callable[..., Page], folder: Path) -> None:
    page = visit("/demo", role=None)
    (folder / "words").write_text("second")
    sse.publish("demo")
    expect(page.locator("#state")).to_have_text("second")
    expect(page.locator("#announce")).to_have_text("second")
    assert not page.complaints  # type: ignore[attr-defined]


def test_a_flood_of_news_ends_with_the_newest(visit: Callable[..., Page], folder: Path) -> None:
    page = visit("/demo", role=None)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/part") else None)
    for n in range(60):
        (folder / "words").write_text(f"state {n}")
        sse.publish("demo", "changed", {"n": n})
    expect(page.locator("#state")).to_have_text("state 59")
    assert len(asked) < 15, "each event asked again"


def test_field_in_use_and_open_details_survive(visit: Callable[..., Page], folder: Path) -> None:
    page = visit("/demo", role=None)
    page.locator("#more summary").click()
    (folder / "words").write_text("second")
    sse.publish("demo")
    expect(page.locator("#state")).to_have_text("second")
    assert page.locator("#more").get_attribute("open") is not None
    page.locator("#field").type("half a wo")
    (folder / "words").write_text("third")
    with page.expect_response("**/part"):
        sse.publish("demo", data={"n": 1})
    page.wait_for_timeout(100)
    expect(page.locator("#field")).to_have_value("half a wo")
    expect(page.locator("#state")).to_have_text("second")


def test_log_grows_and_is_escaped(visit: Callable[..., Page], folder: Path) -> None:
    write(folder, "INFO 11-30 12:00:01 one\n<img src=x onerror=alert(1)> ä 中文\n", tell=False)
    page = visit("/demo", role=None)
    until(page, "document.querySelectorAll('#log .ln').length === 2")
    write(folder, "WARNING 11-30 12:00:02 three\nRuntimeError: four\nhal")
    write(folder, "f\n\x1b[31mred\x1b[0m\n")
    until(page, "document.querySelectorAll('#log .ln').length === 6")
    assert lines(page) == [
        "INFO 11-30 12:00:01 one",
        "<img src=x onerror=alert(1)> ä 中文",
        "WARNING 11-30 12:00:02 three",
        "RuntimeError: four",
        "half",
        "red",
    ]
    assert page.locator("#log img").count() == 0
    assert page.locator("[data-count=warning]").inner_text() == "1"
    assert page.locator("[data-count=error]").inner_text() == "1"
    assert page.locator("#log-L3 time").inner_text() == "12:00:02"


def test_gap_is_fetched_and_nothing_comes_twice(visit: Callable[..., Page], folder: Path) -> None:
    page = visit("/demo", role=None)
    write(folder, "one\n", tell=False)  # this event was lost
    write(folder, "two\n")
    write(folder, "three\n", shown=False)  # too long to send: to be fetched
    sse.publish("job:j1", "log", {"job": "j1", "offset": 0, "end": 4, "text": "one\n"})  # late and again
    until(page, "document.querySelectorAll('#log .ln').length >= 3")
    page.wait_for_timeout(200)
    assert lines(page) == ["one", "two", "three"]


def test_progress_bar_draws_itself_again(visit: Callable[..., Page], folder: Path) -> None:
    page = visit("/demo", role=None)
    write(folder, "Loading:  10%\rLoading:  50%")
    until(page, "document.querySelector('#log .pending')?.textContent.includes('50%')")
    write(folder, "\rLoading: 100%\ndone\n")
    until(page, "document.querySelectorAll('#log .ln').length === 2")
    assert lines(page) == ["Loading: 100%", "done"]


def test_page_keeps_its_newest_lines_and_says_what_it_left_out(visit: Callable[..., Page], folder: Path) -> None:
    page = visit("/demo", role=None)
    for block in range(10):
        write(folder, "".join(f"line {block * 500 + n}\n" for n in range(500)), shown=block % 2 == 0)
    until(page, "document.querySelector('#log').textContent.includes('line 4999')", 20_000)
    shown = lines(page)
    assert len(shown) == 3000 and shown[0] == "line 2000" and shown[-1] == "line 4999"
    expect(page.locator("#log-skipped")).to_contain_text("2,000 earlier lines")
    assert page.locator("#log .ln").last.locator(".no").inner_text() == "5000"


def test_huge_gap_is_leapt_over(visit: Callable[..., Page], folder: Path) -> None:
    write(folder, "x" * 99 + "\n", tell=False)
    page = visit("/demo", role=None)
    until(page, "document.querySelectorAll('#log .ln').length === 1")
    write(folder, ("y" * 99 + "\n") * 60_000 + "the end\n", shown=False)  # 6 MB at once
    until(page, "document.querySelector('#log').textContent.includes('the end')", 20_000)
    expect(page.locator("#log-skipped")).to_contain_text("MiB of the log were skipped")
    assert page.locator("#log .ln").count() <= 3000


def test_a_page_that_falls_behind_leaps_to_the_newest_lines(visit: Callable[..., Page], folder: Path) -> None:
    write(folder, "before\n", tell=False)
    page = visit("/demo", role=None)
    until(page, "document.querySelectorAll('#log .ln').length === 1")
    waiting = page.evaluate(
        """() => {
          const log = logs[0], text = n => Array.from({ length: 3000 }, (_, i) => `line ${n + i}\\n`).join('');
          log.add(text(0));
          log.pace = 200; log.since -= 60000;        // a minute ago, and no more than 200 lines a second
          log.add(text(3000));
          return log.queue.filter(entry => typeof entry === 'string').length;
        }"""
    )
    assert waiting == 200, "what a second draws"
    until(page, "document.querySelector('#log').textContent.includes('line 5999')", 20_000)
    expect(page.locator("#log .gap").last).to_contain_text("lines")
    assert page.evaluate("logs[0].number") == 6002, "lines that were left out are counted"
    page.evaluate("logs[0].add(Array(1000).fill('calm\\n').join(''))")  # over: nothing is left out any more
    until(page, "document.querySelector('#log').textContent.split('calm').length === 1001", 20_000)


def test_search_and_level_narrow_the_log_also_as_it_grows(visit: Callable[..., Page], folder: Path) -> None:
    write(folder, "".join(f"INFO line {n}\nERROR bad {n}\n" for n in range(20)), tell=False)
    page = visit("/demo", role=None)
    until(page, "document.querySelectorAll('#log .ln').length === 40")
    page.get_by_text("Errors").click()
    until(page, "document.querySelectorAll('#log .ln:not([hidden])').length === 20")
    page.get_by_label("Search in the log").fill("bad 7")
    until(page, "document.querySelectorAll('#log .ln:not([hidden])').length === 1")
    write(folder, "ERROR bad 77\nINFO bad 7\nERROR good\n")
    until(page, "document.querySelectorAll('#log .ln').length === 43")
    assert lines(page) == ["ERROR bad 7", "ERROR bad 77"]
    page.get_by_label("Search in the log").fill("nowhere")
    expect(page.locator("#log-none")).to_be_visible()


def test_follow_stays_at_the_end_until_someone_reads(visit: Callable[..., Page], folder: Path) -> None:
    page = visit("/demo", role=None)
    write(folder, "".join(f"line {n}\n" for n in range(200)))
    bottom = "(l => l.scrollHeight - l.scrollTop - l.clientHeight < 24)(document.querySelector('#log'))"
    until(page, f"document.querySelectorAll('#log .ln').length === 200 && {bottom}")
    follow = page.locator("[data-follow]")
    expect(follow).to_be_checked()
    page.locator("#log").hover()
    page.mouse.wheel(0, -900)
    expect(follow).not_to_be_checked()
    write(folder, "more\n")
    until(page, "document.querySelectorAll('#log .ln').length === 201")
    assert not page.evaluate(bottom)
    follow.check()
    until(page, bottom)


def test_hidden_tab_rests_and_catches_up(visit: Callable[..., Page], folder: Path, broker: Any) -> None:
    page = visit("/demo", role=None)
    page.evaluate("stream.timer = 0")
    sleep_tab(page, True)
    until(page, "stream.source === null", 8_000)
    (folder / "words").write_text("while asleep")
    sse.publish("demo")
    write(folder, "written while asleep\n")
    page.wait_for_timeout(300)
    expect(page.locator("#state")).to_have_text("first")
    sleep_tab(page, False)
    expect(page.locator("#state")).to_have_text("while asleep")
    until(page, "document.querySelector('#log').textContent.includes('written while asleep')")


def test_quick_change_of_tabs_keeps_the_stream(visit: Callable[..., Page]) -> None:
    page = visit("/demo", role=None)
    page.evaluate("window.before = stream.source")
    sleep_tab(page, True)
    sleep_tab(page, False)
    page.wait_for_timeout(200)
    assert page.evaluate("stream.source === window.before")


def test_panel_away_says_how_old_the_numbers_are(visit: Callable[..., Page], servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    (tmp_path / "words").write_text("first")
    with demo_process(servers, tmp_path) as other:
        page = visit(f"{other.url}/demo", role=None)
        expect(page.locator("#stale")).to_be_hidden()
        other.stop()
    expect(page.locator("#stale")).to_be_visible(timeout=15_000)
    expect(page.locator("#stale p")).to_contain_text(" old. Trying again.")
    expect(page.locator("#announce")).to_have_text("Berth lost the live connection")


def test_refusals_show_above_the_page(visit: Callable[..., Page]) -> None:
    page = visit("/demo", role=None)
    for button in ("#refuse", "#json"):
        page.locator(button).click()
        expect(page.locator("#notice [role=alert]")).to_contain_text("Someone changed this a moment ago.")
        page.evaluate("document.querySelector('#notice').replaceChildren()")


def test_copy_says_so(visit: Callable[..., Page]) -> None:
    page = visit("/demo", role=None)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_label("Copy the address").click()
    expect(page.locator("#announce")).to_have_text("Address copied")
    assert page.evaluate("navigator.clipboard.readText()") == "http://localhost/v1"


def test_theme_of_a_stranger_lasts_and_is_set_before_the_first_paint(visit: Callable[..., Page]) -> None:
    page = visit("/demo", role=None)
    page.get_by_label("Dark", exact=True).check()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.add_init_script("window.seen = []; new MutationObserver(() => window.seen.push("
                         "document.documentElement.dataset.theme + (document.body ? ' body' : ''))).observe("
                         "document, { childList: true, subtree: true })")  # fmt: skip
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    bodies = [word for word in page.evaluate("window.seen") if word.endswith("body")]
    assert bodies and bodies[0].startswith("dark")


def test_theme_of_a_person_is_kept_with_the_account(visit: Callable[..., Page], person: Callable[..., Any]) -> None:
    page = visit("/demo", role="viewer")
    with page.expect_response("**/preferences") as answer:
        page.get_by_label("Dark", exact=True).check()
    assert answer.value.status == 204
    user = person("viewer")
    user.refresh_from_db()
    assert user.theme == "dark"


def test_language_button_changes_the_page(visit: Callable[..., Page]) -> None:
    page = visit("/demo", role="viewer")
    page.get_by_role("button", name="中文").click()
    page.wait_for_load_state("load")
    assert page.locator("html").get_attribute("lang") == "zh-Hans"
    assert page.url.endswith("/demo")
