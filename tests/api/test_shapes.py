"""What the API says: every list and item, one shape for every failure, logs by offset, the language of its texts."""

import json
from typing import Any

import pytest
from django.test import Client
from ninja import Schema

from deployments.models import Deployment
from panel.api import document
from panel.audit.models import Event
from panel.fleet.models import JobLog
from tests.api.conftest import person
from tests.deployments import builders

pytestmark = pytest.mark.django_db
API = "/api/v1"


def test_lists_and_items(as_: Any, world: dict[str, Any]) -> None:
    admin = as_("admin")
    Event.objects.create(verb="deployment.started", actor="maria", target="team-chat", target_kind="deployment")
    for name in ("hosts", "runtimes", "models", "deployments", "events", "tokens", "users"):
        answer = admin.get(f"{API}/{name}")
        assert answer.status_code == 200, answer.content
        found = answer.json()
        assert set(found) == {"items", "next"} and len(found["items"]) >= 1, name
        if name != "events" and name != "tokens":
            one = admin.get(f"{API}/{name}/{found['items'][0]['id']}")
            assert one.status_code == 200 and one.json() == found["items"][0], name
    event = admin.get(f"{API}/events?who=maria").json()["items"][0]
    assert event["text"] == "maria started team-chat"


def test_a_deployment_says_what_its_page_says(as_: Any, world: dict[str, Any], settings: Any) -> None:
    row = world["row"]
    said = as_("viewer", "api:read").get(f"{API}/deployments/{row.pk}").json()
    assert (said["name"], said["state"], said["desired"], said["host"]) == ("team-chat", "ready", "running", "quay")
    assert said["url"] == f"{settings.BERTH_PUBLIC_URL}/v1" and said["revision"] == 1
    assert said["spec"]["artifact_id"] == world["copy"].artifact_id and said["run"] == str(world["run"].pk)
    runs = as_("viewer", "api:read").get(f"{API}/deployments/{row.pk}/runs").json()["items"]
    assert [run["number"] for run in runs] == [1]
    assert runs[0]["answer"]["answer"] == "Paris." and len(runs[0]["steps"]) == 8
    assert as_("viewer").get(f"{API}/runs/{world['run'].pk}").json() == runs[0]


def test_a_failure_has_its_words_and_the_step_it_reached(as_: Any, world: dict[str, Any]) -> None:
    row = builders.make_deployment(world["copy"], "broken", state="failed")
    builders.failed(row, world["copy"])
    said = as_("viewer").get(f"{API}/deployments/{row.pk}").json()
    assert said["reason"]["code"] == "exit.code" and said["reason"]["message"]
    run = as_("viewer").get(f"{API}/runs/{said['run']}").json()
    assert run["outcome"] == "failed" and run["error"][0].startswith("Traceback") and run["exit_code"] == 1


def test_filters(as_: Any, world: dict[str, Any]) -> None:
    client = as_("viewer")
    builders.make_deployment(world["copy"], "other", state="failed")

    def names(query: str) -> list[str]:
        return [item["name"] for item in client.get(f"{API}/{query}").json()["items"]]

    assert names("deployments?state=failed") == ["other"]
    assert sorted(names("deployments?state=failed&state=ready")) == ["other", "team-chat"]
    assert names("deployments?host=quay") == ["team-chat"] and names("deployments?host=x") == []
    assert names("deployments?q=oth") == ["other"]
    assert names("hosts?q=QU") == ["quay"] and names("hosts?state=silent") == []
    assert names("hosts?state=connected") == ["quay"]
    assert names("models?q=tiny") == ["Tiny-1B-Instruct"] and names("models?host=nowhere") == []
    assert names("models?show=gone") == []
    assert len(client.get(f"{API}/runtimes?host=quay&engine=vllm").json()["items"]) == 1
    assert client.get(f"{API}/runtimes?engine=sglang").json()["items"] == []
    admin = as_("admin")
    assert [u["name"] for u in admin.get(f"{API}/users?role=viewer").json()["items"]] == ["viewer-1"]
    assert len(admin.get(f"{API}/tokens?user=viewer-1").json()["items"]) == 1
    assert len(admin.get(f"{API}/tokens").json()["items"]) == 1


def test_pages_by_cursor_give_every_row_once(as_: Any, world: dict[str, Any]) -> None:
    for number in range(6):
        builders.make_deployment(world["copy"], f"d{number}")
    client, cursor, seen = as_("viewer"), "", []
    while cursor is not None:
        part = client.get(f"{API}/deployments?limit=3&cursor={cursor}").json()
        assert len(part["items"]) <= 3
        seen += [item["id"] for item in part["items"]]
        if len(seen) == 3:
            builders.make_deployment(world["copy"], "comes-meanwhile")
        cursor = part["next"]
    assert seen == sorted(Deployment.objects.values_list("pk", flat=True))
    for number in range(4):
        Event.objects.create(verb="deployment.started", actor="maria", target=f"d{number}")
    newest_first = client.get(f"{API}/events?limit=2").json()
    rest = client.get(f"{API}/events?limit=200&cursor={newest_first['next']}").json()["items"]
    ids = [item["id"] for item in newest_first["items"] + rest]
    assert ids == sorted(ids, reverse=True) and len(set(ids)) == Event.objects.count()


# --- one shape for every failure ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "where", "body", "status", "code"),
    [
        ("GET", "/nothing", None, 404, "not_found"),
        ("GET", "/deployments/99999", None, 404, "not_found"),
        ("GET", "/deployments/x", None, 404, "not_found"),
        ("GET", "/deployments/" + "9" * 5000, None, 404, "not_found"),
        ("GET", "/deployments/" + "9" * 40, None, 404, "not_found"),
        ("GET", "/runs/0b2f6c1e-6d0f-4f0a-9a55-2f8f4f0e3c11", None, 404, "not_found"),
        ("PUT", "/deployments", b"{}", 405, "api.method"),
        ("POST", "/hosts", b"{}", 405, "api.method"),
        ("POST", "/deployments", b"{", 400, "api.unreadable"),
        ("POST", "/deployments", b"[" * 100_000, 400, "api.unreadable"),
        ("POST", "/deployments", b'{"name": "a\\u0000"}', 400, "api.unreadable"),
        ("POST", "/deployments", b'{"name": "\\ud800"}', 400, "api.unreadable"),
        ("POST", "/deployments", b'{"name": NaN}', 400, "api.unreadable"),
        ("POST", "/deployments", b'{"name": 1e999}', 400, "api.unreadable"),
        ("POST", "/deployments", b"\xff", 400, "api.unreadable"),
        ("POST", "/deployments", b"", 422, "invalid"),
        ("POST", "/deployments", b"[]", 422, "invalid"),
        ("POST", "/deployments", b"null", 422, "invalid"),
        ("POST", "/deployments", b'{"name": "x"}', 422, "invalid"),
        ("POST", "/deployments", b" " * (3 << 20), 413, "request.too_large"),
        ("GET", "/deployments?limit=0", None, 422, "invalid"),
        ("GET", "/deployments?limit=201", None, 422, "invalid"),
        ("GET", "/deployments?cursor=abc", None, 422, "invalid"),
        ("GET", "/deployments?cursor=999999999999999999", None, 200, None),
        ("GET", "/deployments?q=%00", None, 400, "bad_request"),
        ("GET", "/deployments?state=asleep", None, 422, "invalid"),
        ("GET", "/events?since=soon", None, 422, "invalid"),
        ("GET", "/events?since=2026-99-99", None, 200, None),
        ("POST", "/models/scan", b'{"host": "nowhere"}', 422, "invalid"),
        ("POST", "/tokens", b'{"name": "x", "days": 0}', 422, "invalid"),
    ],
)  # fmt: skip
def test_every_failure_has_one_shape(
    as_: Any, method: str, where: str, body: bytes | None, status: int, code: str | None
) -> None:
    answer = as_("admin").generic(method, API + where, body or b"", content_type="application/json")
    assert answer.status_code == status, answer.content[:300]
    assert answer["Content-Type"].startswith("application/json")
    if code:
        said = answer.json()
        assert set(said) >= {"code", "message", "hint"} and said["code"] == code and said["message"]
        assert "fields" in said or status != 422


def test_a_failure_of_the_panel_has_the_shape_and_a_number(as_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = as_("admin")
    client.raise_request_exception = False

    def fall_over(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr("panel.fleet.queries.views", fall_over)
    answer = client.get(f"{API}/hosts")
    assert answer.status_code == 500 and "secret" not in answer.content.decode()
    assert set(answer.json()) == {"code", "message", "hint", "incident"}


def test_fields_are_named_as_they_were_sent_and_speak_the_readers_language(as_: Any) -> None:
    body = json.dumps({"name": "x", "spec": {"artifact_id": "one", "gpu_count": 0, "colour": 1}, "start": "perhaps"})
    client = as_("operator")
    said = client.post(f"{API}/deployments", body, content_type="application/json").json()["fields"]
    assert set(said) == {"spec.artifact_id", "spec.gpu_count", "spec.colour", "start"}
    assert said["spec.gpu_count"] == "This must be 1 or more."
    answer = client.get(f"{API}/deployments/99999", headers={"Accept-Language": "zh-hans"})
    assert (
        answer["Content-Language"] == "zh-hans"
        and answer.json()["message"] != "There is nothing here, or it is not yours to see."
    )


def test_head_is_answered_like_get(as_: Any, world: dict[str, Any]) -> None:
    answer = as_("viewer").head(f"{API}/deployments")
    assert answer.status_code == 200


# --- logs ---------------------------------------------------------------------------------------------------------------


def test_a_log_is_read_to_its_end_by_its_offsets(as_: Any, world: dict[str, Any]) -> None:
    text = "eins zwei 三四五 😀 ende\n" * 40
    data = text.encode()
    JobLog.objects.filter(pk=world["run"].job_id).update(size=len(data), tail=data)
    client, offset, got = as_("viewer"), 0, ""
    while True:
        part = client.get(f"{API}/runs/{world['run'].pk}/log?offset={offset}&limit=7").json()
        if not part["text"]:
            break
        assert part["start"] == offset and part["size"] == len(data)
        got, offset = got + part["text"], part["next"]
    assert got == text and part["ended"] is False
    tail = client.get(f"{API}/runs/{world['run'].pk}/log?offset=-5").json()
    assert tail["text"] == "ende\n"
    plain = client.get(f"{API}/runs/{world['run'].pk}/log?offset=5&limit=4", headers={"Accept": "text/plain"})
    assert plain.content == b"zwei" and plain["X-Log-Next"] == "9" and plain["X-Content-Type-Options"] == "nosniff"
    beyond = client.get(f"{API}/runs/{world['run'].pk}/log?offset=99999").json()
    assert beyond["text"] == "" and beyond["next"] == len(data)


def test_signed_in_browsers_open_nothing_but_the_page(world: dict[str, Any]) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(person("admin"))
    assert browser.get(f"{API}/deployments").status_code == 401
    assert browser.post(f"{API}/deployments/{world['row'].pk}/stop").status_code == 401
    assert browser.get(f"{API}/docs").status_code == 200


# "9" * 5000: Python refuses to read such a number. "\x00" is what PostgreSQL refuses.
ODD = [
    "\0",
    "a\0b",
    "'; DROP TABLE x; --",
    "<script>",
    "\u202e",
    "9" * 5000,
    "-1",
    "1e999",
    "²",
    "../../x",
    "%",
    "_",
    "\\",
]


def test_odd_words_in_every_parameter(as_: Any, places: dict[str, str]) -> None:
    client = as_("admin")
    for path, found in document()["paths"].items():
        names = [
            parameter["name"] for parameter in found.get("get", {}).get("parameters", []) if parameter["in"] == "query"
        ]
        for name in names:
            for odd in ODD:
                answer = client.get(path.format(**places), {name: odd})
                assert answer.status_code < 500, (path, name, odd[:20])
                assert answer.status_code == 200 or set(answer.json()) >= {"code", "message", "hint"}


def test_no_two_shapes_share_a_name() -> None:
    """The document knows shapes by name, so the second of a name would silently be told as the first."""
    left: list[type[Schema]] = [Schema]
    names: dict[str, str] = {}
    while left:
        for shape in left.pop().__subclasses__():
            left.append(shape)
            if shape.__module__.split(".")[0] in ("deployments", "models_catalog", "panel"):
                where = f"{shape.__module__}.{shape.__qualname__}"
                assert names.setdefault(shape.__name__, where) == where, f"{where} and {names[shape.__name__]}"
    assert len(names) > 50
