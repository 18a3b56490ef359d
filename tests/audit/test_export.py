"""The record as a file: what the filters find, safe in a spreadsheet, written in parts, recorded, for admins."""

import asyncio
import csv
import gc
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from panel import audit
from panel.accounts.actor import Actor
from panel.audit import export
from panel.audit.export import CHUNK, FORMULA, parts, safe_cell
from panel.audit.models import Event
from panel.audit.queries import Filters

Browser = Callable[..., Client]
ADA = Actor(name="ada", id=71, address="192.0.2.7", role="operator", via="browser")


def body(answer: Any) -> str:
    async def collect() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return asyncio.run(collect()).decode() if answer.is_async else answer.getvalue().decode()


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))))


@pytest.fixture
def acts(transactional_db: None) -> None:
    audit.record("deployment.edited", ("deployment", 12, "聊天"), actor=ADA, before={"a": 1}, after={"a": 2})
    audit.record("run.ready", ("run", "0" * 32, "聊天"), actor=None, story="deployment:12")
    audit.record("deployment.started", ("deployment", 13, "other"), actor=ADA)


@pytest.mark.django_db(transaction=True)
def test_csv_holds_what_the_filters_find(acts: None, browser: Browser) -> None:
    answer = browser("admin").get("/activity/export.csv?on=deployment:12")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"].startswith('attachment; filename="berth-activity-')
    text = body(answer)
    assert text.startswith("\ufeffid,at,actor,")
    found = rows_of(text)
    assert [row["verb"] for row in found] == ["run.ready", "deployment.edited"]
    assert found[1]["text"] == "ada changed 聊天" and found[1]["after"] == '{"a": 2}'
    assert found[1]["at"].endswith("+00:00") and found[1]["address"] == "192.0.2.7"


@pytest.mark.django_db(transaction=True)
def test_json_is_one_list(acts: None, browser: Browser) -> None:
    found = json.loads(body(browser("admin").get("/activity/export.json?who=ada")))
    assert [row["target"] for row in found] == ["other", "聊天"]
    assert found[1]["before"] == {"a": 1} and found[1]["story"] == "deployment:12" and found[1]["actor_id"] == 71
    assert json.loads(body(browser("admin").get("/activity/export.json?who=nobody"))) == []


@pytest.mark.django_db(transaction=True)
def test_the_export_is_recorded_with_what_was_asked(acts: None, browser: Browser) -> None:
    answer = browser("admin").get("/activity/export.csv?kind=runs&q=chat")
    assert answer.status_code == 200
    told = Event.objects.get(verb="audit.exported")
    assert (told.actor, told.target, told.facts) == ("admin-1", "CSV", {"kind": "runs", "q": "chat", "via": "browser"})


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("role", "status"), [("admin", 200), ("operator", 403), ("viewer", 403), ("stranger", 302)])
def test_who_may_export(acts: None, browser: Browser, role: str, status: int) -> None:
    assert browser(role).get("/activity/export.csv").status_code == status
    if role != "stranger":
        shown = browser(role).get("/activity").content.decode()
        assert ('href="/activity/export.csv' in shown) is (role == "admin")
    assert Event.objects.filter(verb="audit.exported").exists() is (role == "admin")


@pytest.mark.django_db(transaction=True)
def test_other_formats_are_not_there(acts: None, browser: Browser) -> None:
    assert browser("admin").get("/activity/export.xml").status_code == 404
    assert not Event.objects.filter(verb="audit.exported").exists()


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_no_cell_is_a_formula(start: str) -> None:
    assert safe_cell(f"{start}cmd|' /C calc'!A0") == f"'{start}cmd|' /C calc'!A0"


@pytest.mark.parametrize(
    "cell", ["a;=1+1", "a;  @x", 'a;"=1+1', "a|+1", "a\t-1", {"name": "a;=1+1"}, ["x;=1", "y;＝1"]]
)
def test_no_part_of_a_cell_is_a_formula_where_cells_end_with_a_semicolon(cell: Any) -> None:
    parts = re.split(r"[;|\t]", safe_cell(cell))
    assert len(parts) > 1 and not any(part.strip(' "').startswith(FORMULA) for part in parts), parts


def test_other_cells_stay_as_they_are() -> None:
    assert [safe_cell(v) for v in ("a=b", "", None, 7, {"a": "=1"}, ["=1"], "2026-12-01")] == [
        "a=b", "", "", "7", '{"a": "=1"}', '["=1"]', "2026-12-01",
    ]  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_what_people_typed_is_no_formula_in_the_file(browser: Browser) -> None:
    evil = Actor(name='=HYPERLINK("http://192.0.2.1")', id=1, address="@x")
    audit.record("deployment.started", ("deployment", "-1+1", "+1"), actor=evil)
    text = body(browser("admin").get("/activity/export.csv"))
    for row in csv.reader(io.StringIO(text.removeprefix("\ufeff"))):
        assert not [cell for cell in row if cell.startswith(export.FORMULA)]


def many(count: int) -> None:
    """So many acts, written by the database itself."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO audit_event (at, minute, verb, actor, address, target_kind, target_id, target, outcome, count,"
            " after, facts, story) SELECT now(), date_trunc('minute', now()), 'deployment.started',"
            " 'person-' || n %% 50, '192.0.2.1', 'deployment', n %% 1000, 'name-' || n, 'done', 1,"
            " jsonb_build_object('max_model_len', n, 'note', repeat('x', 200)), '{}', 'deployment:' || n %% 1000"
            " FROM generate_series(1, %s) AS n",
            [count],
        )


@pytest.mark.django_db(transaction=True)
def test_a_long_record_is_sent_in_parts_of_bounded_size() -> None:
    """100,000 rows are about 40 MB as text; only one part of them is held at a time."""
    many(100_000)

    async def go() -> tuple[int, int, int, int]:
        count = size = most = held = 0
        async for part in parts("csv", Filters(), before=2**62):
            count, size, most = count + 1, size + len(part), max(most, len(part))
            if count % 40 == 0:
                held = max(held, sum(type(thing) is Event for thing in gc.get_objects()))
        return count, size, most, held

    count, size, most, held = asyncio.run(go())
    assert size > 30_000_000 and count >= 100_000 // CHUNK
    assert most < 1_000_000 and held <= 2 * CHUNK + 2


@pytest.mark.django_db(transaction=True)
def test_a_look_for_a_text_goes_through_all_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("panel.audit.queries.SEARCHED", 300)
    many(2000)

    async def go() -> bytes:
        return b"".join([part async for part in parts("json", Filters(text="name-1"), before=2**62)])

    found = json.loads(asyncio.run(go()))
    assert len(found) == len([n for n in range(1, 2001) if str(n).startswith("1")])
    assert [row["id"] for row in found] == sorted((row["id"] for row in found), reverse=True)
    assert timezone.now().isoformat()[:4] == found[0]["at"][:4]
