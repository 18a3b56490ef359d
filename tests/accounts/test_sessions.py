"""Sessions: whose they are, where they were seen, and that an ended one stops at the next request."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.sessions.backends.base import UpdateError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from panel.accounts import agents, services, sessions
from panel.accounts.models import PersonSession, User
from panel.accounts.people import disable
from panel.audit.models import Event
from panel.core.errors import Denied
from tests.accounts.conftest import PASSWORD

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
EDGE = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36 Edg/140.0"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 Version/19.0 Mobile/15E148 Safari/604.1"


def signed_in(name: str = "viewer-1", agent: str = FIREFOX, address: str = "192.0.2.1") -> Client:
    client = Client(headers={"Sec-Fetch-Mode": "navigate", "User-Agent": agent})
    body = {"name": name, "password": PASSWORD}
    assert client.post("/login", body, REMOTE_ADDR=address).status_code == 302
    return client


def row_of(client: Client) -> PersonSession:
    return PersonSession.objects.get(pk=client.cookies["berth_session"].value)


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (FIREFOX, "Firefox on Linux"),
        (EDGE, "Edge on Windows"),
        (PHONE, "Safari on iOS"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 15_0) AppleWebKit/605 Version/18 Safari/605", "Safari on macOS"),
        ("Mozilla/5.0 (Linux; Android 16) AppleWebKit/537.36 Chrome/140.0 Mobile Safari/537.36", "Chrome on Android"),
        ("curl/8.9", "curl"),
        ("", "A browser that does not say its name"),
        ("<script>alert(1)</script>", "A browser that does not say its name"),
    ],
)
def test_a_browser_in_words(agent: str, words: str) -> None:
    assert agents.in_words(agent) == words


def test_a_session_knows_whose_it_is_and_where(people: dict[str, User]) -> None:
    client = signed_in()
    row = row_of(client)
    assert (row.user, row.address, row.agent) == (people["viewer"], "192.0.2.1", FIREFOX)
    assert timezone.now() - row.since < timedelta(seconds=30)
    session = client.session
    session["x"] = 1
    session.save()  # Django writes what it knows of, and nothing else
    again = row_of(client)
    assert (again.number, again.since, again.agent) == (row.number, row.since, FIREFOX)
    client.post("/logout")
    assert not PersonSession.objects.exists()


def test_strangers_leave_no_sessions(people: dict[str, User], client: Client) -> None:
    for path in ("/login", "/account", "/people/", "/invite/x", "/no-such"):
        client.get(path)
    client.post("/login", {"name": "viewer-1", "password": "wrong"})
    assert not PersonSession.objects.exists()


def test_last_seen_to_the_minute_without_a_write_per_request(people: dict[str, User]) -> None:
    client = signed_in()
    client.get("/account")
    with CaptureQueriesContext(connection) as queries:
        client.get("/account")
    assert not [q["sql"] for q in queries if q["sql"].startswith("UPDATE")]
    long_ago = timezone.now() - timedelta(minutes=5)
    PersonSession.objects.update(last_seen_at=long_ago)
    User.objects.update(last_seen_at=long_ago)
    client.get("/account", REMOTE_ADDR="198.51.100.9", headers={"User-Agent": EDGE})
    row = row_of(client)
    assert row.last_seen_at > long_ago and (row.address, row.agent) == ("198.51.100.9", EDGE)
    assert User.objects.get(username="viewer-1").last_seen_at > long_ago
    with CaptureQueriesContext(connection) as queries:
        client.get("/account")
    assert not [q["sql"] for q in queries if q["sql"].startswith("UPDATE")]


@pytest.mark.django_db(transaction=True)
def test_many_requests_at_once_write_last_seen_once(people: dict[str, User]) -> None:
    client = signed_in()
    key = client.cookies["berth_session"].value
    PersonSession.objects.update(last_seen_at=timezone.now() - timedelta(minutes=5))
    start, writes = threading.Barrier(5), []

    def run() -> None:
        other = Client()
        other.cookies["berth_session"] = key
        try:
            start.wait(20)
            with CaptureQueriesContext(connection) as queries:
                other.get("/account")
            writes.extend(q["sql"] for q in queries if q["sql"].startswith('UPDATE "accounts_user"'))
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(writes) == 1


def test_listed_with_this_one_marked(people: dict[str, User]) -> None:
    here, there = signed_in(), signed_in(agent=EDGE, address="198.51.100.7")
    signed_in("operator-1", agent=PHONE)
    page = here.get("/account").content.decode()
    assert "Firefox on Linux" in page and "this browser" in page
    assert "Edge on Windows" in page and "198.51.100.7" in page and "Safari on iOS" not in page
    assert here.cookies["berth_session"].value not in page and there.cookies["berth_session"].value not in page
    assert str(row_of(there).number) in page and str(row_of(here).number) not in page


def test_one_is_ended_and_stops_at_its_next_request(people: dict[str, User]) -> None:
    here, there = signed_in(), signed_in(agent=EDGE)
    url = f"/account/sessions/{row_of(there).number}/end"
    assert there.get("/account").status_code == 200
    assert here.get(url).status_code == 405
    assert here.post(url).status_code == 302
    assert there.get("/account")["Location"].startswith("/login")
    assert here.get("/account").status_code == 200
    assert here.post(url).status_code == 302  # twice is no harm
    event = Event.objects.get(verb="session.ended")
    assert (event.target, event.facts["browser"]) == ("viewer-1", "Edge on Windows")


def test_ending_this_one_is_signing_out(people: dict[str, User]) -> None:
    here = signed_in()
    assert here.post(f"/account/sessions/{row_of(here).number}/end")["Location"] == "/login"
    assert Event.objects.filter(verb="logout").exists()


def test_nobody_ends_a_session_of_somebody_else(people: dict[str, User], browser: Browser) -> None:
    there = signed_in("operator-1")
    number = row_of(there).number
    for who in ("viewer", "admin"):
        browser(who).post(f"/account/sessions/{number}/end")
    assert browser("stranger").post(f"/account/sessions/{number}/end")["Location"] == "/login"
    with pytest.raises(Denied):
        sessions.end(people["operator"], number, actor=people["viewer"])
    with pytest.raises(Denied):
        sessions.end_all(people["operator"], actor=people["viewer"])
    assert there.get("/account").status_code == 200


def test_all_others_at_once(people: dict[str, User]) -> None:
    here, others = signed_in(), [signed_in(agent=EDGE) for _ in range(3)]
    alien = signed_in("operator-1")
    assert here.post("/account/sessions/end").status_code == 302
    assert [c.get("/account").status_code for c in (here, alien, *others)] == [200, 200, 302, 302, 302]
    assert Event.objects.get(verb="session.all_ended").facts["sessions"] == 3
    here.post("/account/sessions/end")
    assert Event.objects.filter(verb="session.all_ended").count() == 1  # nothing ended, nothing to tell


def test_an_admin_ends_all_of_a_person(people: dict[str, User], browser: Browser) -> None:
    there = [signed_in() for _ in range(2)]
    admin = browser("admin")
    page = admin.get(f"/people/{people['viewer'].pk}/").content.decode()
    assert page.count("Firefox on Linux") == 2 and "this browser" not in page
    assert admin.post(f"/people/{people['viewer'].pk}/sessions/end").status_code == 302
    assert [c.get("/account").status_code for c in there] == [302, 302]
    admin.post(f"/people/{people['admin'].pk}/sessions/end")
    assert admin.get("/account").status_code == 200  # one's own present browser stays


def test_not_without_end_and_old_ones_are_swept(people: dict[str, User], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST", 3)
    clients = [signed_in() for _ in range(5)]
    assert [c.get("/account").status_code for c in clients] == [302, 302, 200, 200, 200]
    PersonSession.objects.update(expire_date=timezone.now() - timedelta(seconds=1))
    last = signed_in()
    assert PersonSession.objects.get() == row_of(last)


def test_a_new_password_keeps_this_one_and_its_beginning(people: dict[str, User]) -> None:
    here, there = signed_in(), signed_in(agent=EDGE)
    begun = timezone.now() - timedelta(days=2)
    PersonSession.objects.update(since=begun)
    new = {"current": PASSWORD, "password": "another light at ten", "again": "another light at ten"}
    assert here.post("/account/password", new).status_code == 302
    row = PersonSession.objects.get(user=people["viewer"])
    assert row == row_of(here) and row.since == begun and row.agent == FIREFOX
    assert there.get("/account").status_code == 302


def test_a_session_that_is_ended_while_it_works_is_told_so(people: dict[str, User]) -> None:
    here = signed_in()
    stale = here.session
    stale["x"] = 1
    PersonSession.objects.all().delete()
    with pytest.raises(UpdateError):
        stale.save()
    assert not PersonSession.objects.exists()  # it does not come back


# --- language and colours ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("account", "cookie", "browser_says", "wanted"),
    [
        ("zh-hans", "en", "en", "zh-Hans"),
        ("en", "zh-hans", "zh-CN", "en"),
        ("", "zh-hans", "en", "zh-Hans"),
        ("", "en", "zh-CN", "en"),
        ("", "", "zh-CN,zh;q=0.9", "zh-Hans"),
        ("", "", "fr", "en"),
        ("xx", "", "zh-CN", "zh-Hans"),
    ],
)
def test_language_by_account_then_cookie_then_browser(
    people: dict[str, User], account: str, cookie: str, browser_says: str, wanted: str
) -> None:
    client = signed_in()
    User.objects.update(language=account)
    if cookie:
        client.cookies["django_language"] = cookie
    page = client.get("/account", headers={"Accept-Language": browser_says}).content.decode()
    assert f'<html lang="{wanted}"' in page


def test_no_session_begins_when_the_account_is_disabled_meanwhile(people: dict[str, User]) -> None:
    """While the password was checked; else the browser would be signed in as soon as the account is enabled again."""
    checked = services._checked

    def slow(*args: Any) -> Any:
        user = checked(*args)
        assert disable(people["viewer"], actor=people["admin"])
        return user

    with patch.object(services, "_checked", slow):
        answer = Client().post("/login", {"name": "viewer-1", "password": PASSWORD})
    assert answer.status_code == 422 and not PersonSession.objects.filter(user=people["viewer"]).exists()


def test_language_and_colours_are_kept_and_not_recorded(people: dict[str, User]) -> None:
    client = signed_in()
    assert client.post("/account/look", {"language": "zh-hans", "theme": "dark"}).status_code == 302
    page = client.get("/account").content.decode()
    assert '<html lang="zh-Hans"' in page and 'data-choice="dark"' in page
    assert client.cookies["django_language"].value == "zh-hans"
    client.post("/account/look", {"language": "", "theme": "auto"})
    assert client.cookies["django_language"].value == ""
    page = client.get("/account", headers={"Accept-Language": "en"}).content.decode()
    assert '<html lang="en"' in page
    for bad in ({"language": "xx", "theme": "auto"}, {"language": "en", "theme": "pink"}, {"language": "en"}):
        assert client.post("/account/look", bad).status_code == 422
    user = User.objects.get(username="viewer-1")
    assert (user.language, user.theme) == ("", "auto")
    assert set(Event.objects.values_list("verb", flat=True)) == {"login"}
