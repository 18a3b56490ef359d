"""Strangers cannot fill, forge or garble the panel's log."""

import codecs
import io
import logging
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import Client

from panel.core import logbounds
from panel.core.loglines import Line


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def written(clock: list[float]) -> Iterator[io.StringIO]:
    """What the log holds while it is set up as the panel's."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Line("%(levelname)s %(name)s %(message)s"))
    handler.addFilter(logbounds.Outside(lambda: clock[0]))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_the_panels_log_has_the_bound() -> None:
    handler = settings.LOGGING["handlers"]["stderr"]
    assert settings.LOGGING["filters"][handler["filters"][0]]["()"] == "panel.core.logbounds.Outside"


def test_wrong_hosts_are_a_line_without_a_traceback_and_not_many(written: io.StringIO, clock: list[float]) -> None:
    client = Client(raise_request_exception=False)
    for number in range(500):
        assert client.get("/login", headers={"Host": f"evil{number}.example"}).status_code == 400
    found = lines(written)
    assert 0 < len(found) <= 2 * logbounds.A_MINUTE
    assert not any("Traceback" in line or 'File "' in line for line in found)
    clock[0] += 61
    client.get("/login", headers={"Host": "evil.example"})
    assert any("more like it" in line for line in lines(written)[len(found) :])


@pytest.mark.django_db
def test_unknown_addresses_are_bounded_and_stay_on_their_line(written: io.StringIO) -> None:
    client = Client(enforce_csrf_checks=True)
    for number in range(200):
        client.get(f"/no/{number}%0aINFO%20root%20all%20is%20well%1b[2J%E2%80%AE{'x' * 3000}")
        client.post(f"/login/%0aINFO%20root%20{number}")
        client.post("/logout")
    found = lines(written)
    assert 0 < len(found) <= 3 * logbounds.A_MINUTE
    assert all(len(line) < 2 * logbounds.MOST for line in found)
    assert not any(line.startswith("INFO root") or "\x1b" in line or "\u202e" in line for line in found)


def test_failures_of_the_panel_itself_are_all_written(written: io.StringIO) -> None:
    for _number in range(100):
        try:
            raise RuntimeError("broken")
        except RuntimeError:
            logging.getLogger("django.request").exception("Internal Server Error: %s", "/x")
    assert written.getvalue().count("RuntimeError: broken") == 100
    for number in range(100):
        logging.getLogger("deployments.reconcile").info("row %s", number)
    assert written.getvalue().count("INFO deployments.reconcile row") == 100


@pytest.mark.parametrize(
    "text",
    ["\x1b[31mred\x1b[0m", "\x1b]0;title\x07x", "\x1b]52;c;Y29weQ==\x1b\\x", "\x9b31m", "a\x08\x08b", "\x1bcx", "\0"],
)
def test_a_terminal_obeys_nothing_of_a_log(text: str) -> None:
    shown = logbounds.for_terminal(text + "\n\tnext line é 中")
    assert not set(shown) & set(map(chr, [*range(9), 11, 12, *range(14, 32), *range(127, 160)]))
    assert shown.endswith("\n\tnext line é 中")


def test_the_shell_shows_a_log_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from panel.fleet import logstore
    from panel.management.commands.logs import Command

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, kept in ((Terminal(), False), (io.StringIO(), True)):
        command = Command(stdout=stream)
        command.as_json = False
        part = logstore.Part(start=0, data=b"\x1b]0;owned\x07ready\n", gap=0, size=20)
        command._print(codecs.getincrementaldecoder("utf-8")("replace"), part)
        assert "ready\n" in stream.getvalue() and ("\x1b" in stream.getvalue()) == kept


def test_an_exception_that_quotes_what_was_sent_stays_on_its_line(written: io.StringIO) -> None:
    log = logging.getLogger("panel.fleet.link")
    log.warning("agent message refused at %s: %s", "/x", ValueError("bad:\nINFO root all is well\x1b[2J" + "x" * 5000))
    (line,) = lines(written)
    assert line.startswith("WARNING panel.fleet.link agent message refused at /x: bad:")
    assert "\x1b" not in line and len(line) < logbounds.MOST + 200
