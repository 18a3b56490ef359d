"""The activity page: what it shows, finds and hides; older entries; as many queries for many rows as for few."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from panel import audit
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.audit.models import Event, minute_of
from panel.audit.queries import PAGE, Filters, matching
from tests.audit.test_export import many

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]
HTMX = {"HX-Request": "true"}


def text_of(answer: Any) -> str:
    """The entries without markup."""
    body = answer.content.decode()
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def at(event: Event, **ago: float) -> None:
    """Put an event into the past, which only the owner of the database can."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_event DISABLE TRIGGER audit_append_only")
        moment = timezone.now() - timedelta(**ago)
        cursor.execute(
            "UPDATE audit_event SET at = %s, minute = %s WHERE id = %s", [moment, minute_of(moment), event.pk]
        )
        cursor.execute("ALTER TABLE audit_event ENABLE TRIGGER audit_append_only")


@pytest.fixture
def story(people: dict[str, User]) -> dict[str, Event]:
    ada = Actor(name="ada", id=71, address="192.0.2.7", role="operator", via="browser")
    chat = ("deployment", 12, "support-chat")
    return {
        "created": audit.record("deployment.created", chat, actor=ada, after={"name": "support-chat"}),
        "edited": audit.record(
            "deployment.edited", chat, actor=ada, before={"max_model_len": 16384}, after={"max_model_len": 32768}
        ),
        "started": audit.record("deployment.started", chat, actor=ada, revision=3),
        "ready": audit.record("run.ready", ("run", "0" * 32, "support-chat"), actor=None, story="deployment:12"),
        "refused": audit.record("hosts.manage", ("host", 1, "atlas"), actor=ada, outcome="denied"),
        "unknown": audit.record("kettle.boiled", ("kettle", 1, "blue kettle"), actor=ada),
        "token": audit.record("token.created", ("apitoken", 5, "nightly"), actor=ada),
    }


def test_it_tells_the_story(browser: Browser, story: dict[str, Event]) -> None:
    text = text_of(browser("viewer").get("/activity"))
    for told in (
        "ada created support-chat",
        "ada changed support-chat",
        "1 value changed",
        "Longest conversation 16384 32768",
        "ada started support-chat",
        "browser, 192.0.2.7 · Settings: 3",
        "support-chat is ready and answered a test question",
        "ada tried to change a host and was refused",
        "ada kettle.boiled blue kettle",  # a verb without a sentence is not hidden
        "ada made the token nightly",
        "Today,",
        "7 entries",
    ):
        assert told in text, told


def test_facts_are_told_in_the_words_of_the_pages(browser: Browser, people: dict[str, User]) -> None:
    ada = Actor(name="ada", id=71, address="192.0.2.7", role="admin", via="browser")
    audit.record("invite.made", ("onetimelink", 1, "Mei"), actor=ada, role="operator")
    audit.record("token.created", ("apitoken", 5, "nightly"), actor=ada, scope="api:write")
    audit.record("user.role_changed", ("user", 9, "mei"), actor=ada, before={"role": "viewer"}, after={"role": "admin"})
    audit.record("runtime.install_asked", ("runtimeinstall", "0", "vllm"), actor=ada, host="quay", version="0.32.0")
    audit.record("users.manage", actor=ada, outcome="denied")
    text = text_of(browser("viewer").get("/activity"))
    for told in (
        "Role: Can deploy",
        "It may: Read and change through the API",
        "Role Can look Admin",
        "Host: quay · Version: 0.32.0",
        "ada tried to see or change the people of this panel and was refused",
    ):
        assert told in text, told


def test_names_are_text(browser: Browser) -> None:
    evil = "<img src=x onerror=alert(1)>{actor}%(x)s{0}"
    actor = Actor(name=evil, id=1, address=evil, via=f"token {evil}")
    audit.record(
        "deployment.edited",
        ("deployment", "1", evil),
        actor=actor,
        before={evil: evil},
        after={evil: [evil]},
        **{evil: evil},
    )
    audit.record(evil, evil, actor=actor)
    for query in ("", f"?q={evil}", f"?who={evil}"):
        body = browser("viewer").get(f"/activity{query}").content.decode()
        assert "<img" not in body and "&lt;img" in body


FOUND = [
    ({"who": "ada"}, {"created", "edited", "started", "refused", "unknown", "token"}),
    ({"who": "system"}, {"ready"}),
    ({"who": "nobody"}, set()),
    ({"kind": "runs"}, {"started", "ready"}),
    ({"kind": "settings"}, {"created", "edited"}),
    ({"kind": "hosts"}, {"refused"}),
    ({"kind": "access"}, {"token"}),
    ({"kind": "models"}, set()),
    ({"outcome": "denied"}, {"refused"}),
    ({"outcome": "done", "kind": "access"}, {"token"}),
    ({"on": "deployment:12"}, {"created", "edited", "started", "ready"}),
    ({"on": "deployment:12", "who": "system"}, {"ready"}),
    ({"on": "host:1"}, {"refused"}),
    ({"on": "deployment:1"}, set()),
    ({"q": "32768"}, {"edited"}),
    ({"q": "KETTLE"}, {"unknown"}),
    ({"q": "192.0.2.7", "kind": "runs"}, {"started"}),
    ({"q": "%"}, set()),
]


@pytest.mark.parametrize(("query", "expected"), FOUND)
def test_filters(browser: Browser, story: dict[str, Event], query: dict[str, str], expected: set[str]) -> None:
    answer = browser("viewer").get("/activity", query)
    shown = {entry.event.pk for day in answer.context["days"] for entry in day["entries"]}
    assert shown == {story[name].pk for name in expected}
    assert ("Nothing matches." in text_of(answer)) is (not expected)


STRANGE = [
    {"kind": "x"}, {"outcome": "'"}, {"since": "yesterday"}, {"since": "2026-99-99"}, {"before": "x"}, {"before": "-1"},
    {"before": "9" * 18}, {"before": "9" * 40}, {"on": ":::"}, {"q": "\0"}, {"q": "' OR 1=1 --"}, {"who": "\0x"},
    {"q": "x" * 5000}, {"since": "0001-01-01"}, {"since": "9999-12-31"}, {"until": "0001-01-01"},
    {"until": "9999-12-31"}, {"until": "9000-12-31"}, {"q": "ada", "before": "9" * 18},
]  # fmt: skip


@pytest.mark.parametrize("query", STRANGE)
def test_strange_filters_do_no_harm(browser: Browser, story: dict[str, Event], query: dict[str, str]) -> None:
    assert browser("viewer").get("/activity", query).status_code == (400 if "\0" in "".join(query.values()) else 200)


def test_since_and_days(browser: Browser, story: dict[str, Event]) -> None:
    at(story["created"], days=1)
    at(story["edited"], days=9)
    client = browser("viewer")
    text = text_of(client.get("/activity"))
    assert "Yesterday," in text and text.index("Today,") < text.index("Yesterday,")
    since = (timezone.localdate() - timedelta(days=3)).isoformat()
    text = text_of(client.get("/activity", {"since": since}))
    assert "6 entries since" in text and "ada changed" not in text


def test_from_one_day_to_another(browser: Browser, story: dict[str, Event]) -> None:
    at(story["created"], days=9)
    at(story["edited"], days=5)
    today = timezone.localdate()
    day = {n: (today - timedelta(days=n)).isoformat() for n in (4, 5, 6, 9)}

    def found(**query: str) -> set[int]:
        answer = browser("viewer").get("/activity", query)
        return {entry.event.pk for day in answer.context["days"] for entry in day["entries"]}

    assert found(until=day[4]) == {story["created"].pk, story["edited"].pk}
    assert found(until=day[5], since=day[6]) == {story["edited"].pk}, "the last day is part of it"
    assert found(until=day[9]) == {story["created"].pk}
    assert found(since=day[4], until=day[6]) == set()


def test_the_story_of_one_deployment(browser: Browser, story: dict[str, Event]) -> None:
    client = browser("viewer")
    body = client.get("/activity").content.decode()
    assert 'href="?on=deployment%3A12"' in body
    answer = client.get("/activity", {"on": "deployment:12"})
    assert answer.context["story"] == {"name": "support-chat", "url": "/deployments/12/"}
    assert "what came of every start" in text_of(answer) and "Whole story" not in text_of(answer)


def test_a_look_for_a_text_ends_and_goes_on(
    browser: Browser, story: dict[str, Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("panel.audit.queries.SEARCHED", 5)
    monkeypatch.setattr("panel.audit.queries.RECENT", 5)
    client = browser("viewer")
    answer = client.get("/activity", {"q": "16384"})
    assert "Nothing among the newest 5 entries." in text_of(answer)
    steps = 0
    while answer.context["older"] and not answer.context["days"]:
        answer = client.get("/activity", {"q": "16384", "before": answer.context["older"]})
        steps += 1
    assert steps == 1 and "ada changed support-chat" in text_of(answer)


def test_what_is_chosen_stays_chosen_although_it_is_old(
    browser: Browser, story: dict[str, Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("panel.audit.queries.RECENT", 1)
    body = browser("viewer").get("/activity", {"on": "deployment:12", "who": "carla"}).content.decode()
    assert '<option value="deployment:12" selected>support-chat</option>' in body
    assert '<option value="carla" selected>carla</option>' in body


PLANS = [
    Filters(), Filters(who="person-7"), Filters(on="deployment:7"), Filters(outcome="denied"),
    Filters(kind="hosts"), Filters(who="person-7", kind="runs"),
]  # fmt: skip


@pytest.mark.parametrize("filters", PLANS, ids=lambda filters: filters.query or "all")
def test_a_long_record_is_read_by_index(db: None, filters: Filters) -> None:
    many(30_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE audit_event")
    plan = matching(filters).order_by("-pk")[: PAGE + 1].explain()
    assert "Index" in plan and f"Seq Scan on audit_event_{timezone.now():%Y_%m}" not in plan, plan


def test_days_are_read_from_their_months_only(db: None) -> None:
    first = timezone.localdate().replace(day=1)
    plan = matching(Filters(since=first, until=first)).explain()
    assert f"audit_event_{first:%Y_%m}" in plan and plan.count("audit_event_2") == plan.count(f"_{first:%Y_%m}")


def test_older_entries_are_appended(browser: Browser, people: dict[str, User]) -> None:
    for n in range(2 * PAGE + 5):
        audit.record("deployment.started", ("deployment", n, f"name-{n:03}"), actor=None)
    client = browser("viewer")
    url, seen, parts = "/activity?kind=runs", [], []
    while url:
        answer = client.get(url, headers=HTMX if seen else {})
        body = answer.content.decode()
        parts.append(body)
        seen += re.findall(r"started <[^>]*>(name-\d+)<", body)
        more = re.search(r'hx-get="(\?[^"]*before=\d+[^"]*)"', body)
        url = "/activity" + more[1].replace("&amp;", "&") if more else ""
        assert not more or "kind=runs" in url
    assert [len(re.findall(r"started <[^>]*>name-\d+<", part)) for part in parts] == [PAGE, PAGE, 5]
    assert seen == [f"name-{n:03}" for n in reversed(range(2 * PAGE + 5))]
    assert "<html" not in parts[1] and 'class="day"' not in parts[1]  # the same day needs no second heading
    assert 'class="day"' in parts[0]


def test_filters_swap_the_entries_only(browser: Browser, story: dict[str, Event]) -> None:
    body = browser("viewer").get("/activity?who=ada", headers=HTMX).content.decode()
    assert body.strip().startswith('<div id="entries"') and "<html" not in body and "<form" not in body


def test_as_many_queries_for_many_rows(browser: Browser, story: dict[str, Event]) -> None:
    client = browser("viewer")
    client.get("/activity")
    with CaptureQueriesContext(connection) as few:
        client.get("/activity")
    for n in range(40):
        audit.record("deployment.edited", ("deployment", n, f"d{n}"), actor=None, before={"a": 1}, after={"a": n})
    with CaptureQueriesContext(connection) as many:
        client.get("/activity")
    assert len(many) == len(few) <= 9


def test_in_chinese_the_page_is_there_too(browser: Browser, story: dict[str, Event]) -> None:
    answer = browser("viewer").get("/activity", headers={"Accept-Language": "zh-hans"})
    assert answer.status_code == 200 and 'lang="zh-Hans"' in answer.content.decode()
