"""Every operation × every kind of token: who gets in, who is refused with which code, and that refusals are recorded."""

from typing import Any

import pytest
from django.test import Client

from panel.accounts.models import ApiToken, User
from panel.api import document
from panel.audit.models import Event
from tests.api.conftest import person, program
from tests.deployments import builders

pytestmark = pytest.mark.django_db
ROLES = ("viewer", "operator", "admin")
ANY = "viewer"

# operation → least role. An operation that is not here fails the first test.
TABLE = {
    "GET /api/v1/deployments": "viewer",
    "POST /api/v1/deployments": "operator",
    "POST /api/v1/deployments/plan": "operator",
    "POST /api/v1/deployments/check": "operator",
    "POST /api/v1/deployments/from-command": "operator",
    "GET /api/v1/deployments/{deployment_id}": "viewer",
    "PATCH /api/v1/deployments/{deployment_id}": "operator",
    "DELETE /api/v1/deployments/{deployment_id}": "operator",
    "POST /api/v1/deployments/{deployment_id}/start": "operator",
    "POST /api/v1/deployments/{deployment_id}/stop": "operator",
    "POST /api/v1/deployments/{deployment_id}/restart": "operator",
    "GET /api/v1/deployments/{deployment_id}/fixes": "viewer",
    "POST /api/v1/deployments/{deployment_id}/fixes/{fix_id}": "operator",
    "GET /api/v1/deployments/{deployment_id}/runs": "viewer",
    "GET /api/v1/deployments/{deployment_id}/export": "viewer",
    "GET /api/v1/deployments/{deployment_id}/revisions": "viewer",
    "GET /api/v1/deployments/{deployment_id}/golden": "viewer",
    "PUT /api/v1/deployments/{deployment_id}/golden": "operator",
    "GET /api/v1/accuracy": "viewer",
    "GET /api/v1/runs/{run_id}": "viewer",
    "GET /api/v1/runs/{run_id}/log": "viewer",
    "GET /api/v1/failures": "viewer",
    "GET /api/v1/failures/runs": "viewer",
    "PUT /api/v1/runs/{run_id}/verdict": "operator",
    "POST /api/v1/apply": "operator",
    "GET /api/v1/models": "viewer",
    "GET /api/v1/models/{model_id}": "viewer",
    "PATCH /api/v1/models/{model_id}": "operator",
    "POST /api/v1/models/{model_id}/approval": "admin",
    "POST /api/v1/models/{model_id}/code": "admin",
    "GET /api/v1/models/{model_id}/fit": "viewer",
    "POST /api/v1/estimate": "viewer",
    "GET /api/v1/models/forms/{artifact_id}/template": "viewer",
    "GET /api/v1/models/disk": "viewer",
    "DELETE /api/v1/models/copies/{copy_id}": "admin",
    "POST /api/v1/models/copies/{copy_id}/repair": "operator",
    "POST /api/v1/models/scan": "operator",
    "GET /api/v1/hub/models": "operator",
    "GET /api/v1/hub/model": "operator",
    "GET /api/v1/downloads": "viewer",
    "POST /api/v1/downloads": "operator",
    "GET /api/v1/downloads/{download_id}": "viewer",
    "POST /api/v1/downloads/{download_id}/pause": "operator",
    "POST /api/v1/downloads/{download_id}/resume": "operator",
    "POST /api/v1/downloads/{download_id}/cancel": "operator",
    "GET /api/v1/conversions": "viewer",
    "POST /api/v1/conversions": "operator",
    "GET /api/v1/conversions/{conversion_id}": "viewer",
    "POST /api/v1/conversions/{conversion_id}/cancel": "operator",
    "POST /api/v1/runtimes/{runtime_id}/plugin": "admin",
    "GET /api/v1/hosts": "viewer",
    "GET /api/v1/hosts/{host_id}": "viewer",
    "GET /api/v1/runtimes": "viewer",
    "GET /api/v1/runtimes/{runtime_id}": "viewer",
    "PATCH /api/v1/hosts/{host_id}": "admin",
    "DELETE /api/v1/runtimes/{runtime_id}": "admin",
    "GET /api/v1/runtimes/installs": "viewer",
    "POST /api/v1/runtimes/installs": "admin",
    "GET /api/v1/runtimes/installs/{install_id}": "viewer",
    "POST /api/v1/runtimes/installs/{install_id}/cancel": "admin",
    "GET /api/v1/events": "viewer",
    "GET /api/v1/me": "viewer",
    "GET /api/v1/tokens": "viewer",
    "POST /api/v1/tokens": "viewer",
    "DELETE /api/v1/tokens/{token_id}": "viewer",
    "GET /api/v1/secrets": "operator",
    "PUT /api/v1/secrets/{name}": "operator",
    "DELETE /api/v1/secrets/{name}": "operator",
    "GET /api/v1/users": "admin",
    "GET /api/v1/users/{user_id}": "admin",
    "PATCH /api/v1/users/{user_id}": "admin",
    "GET /api/v1/users/invitations": "admin",
    "POST /api/v1/users/invitations": "admin",
    "DELETE /api/v1/users/invitations/{invitation_id}": "admin",
}
# A POST that changes nothing: its question is too long for an address.
ASKS = {"POST /api/v1/estimate"}
# What a token for some deployments reaches at all; everything else is refused to it.
WITHIN = {name for name in TABLE if "/deployments" in name or "/runs" in name} - {
    "POST /api/v1/deployments",
    "POST /api/v1/deployments/plan",
    "POST /api/v1/deployments/check",
    "POST /api/v1/deployments/from-command",
}
WITHIN |= {"GET /api/v1/me", "GET /api/v1/failures", "GET /api/v1/failures/runs"}


def operations() -> set[str]:
    return {f"{method.upper()} {path}" for path, found in document()["paths"].items() for method in found}


def ask(client: Client, operation: str, places: dict[str, str]) -> Any:
    """The operation with an empty body: who gets in meets the body's checks, who does not never gets that far."""
    method, path = operation.split(" ")
    return client.generic(method, path.format(**places), b"", content_type="application/json")


def code(answer: Any) -> str:
    return answer.json()["code"] if answer["Content-Type"].startswith("application/json") and answer.content else ""


def refusals() -> int:
    """Those of one minute share a row and count."""
    return sum(Event.objects.filter(outcome="denied").values_list("count", flat=True))


def test_every_operation_is_in_the_table() -> None:
    assert operations() == set(TABLE)


@pytest.mark.parametrize("operation", TABLE)
def test_who_gets_in(operation: str, places: dict[str, str]) -> None:
    reads = operation.startswith("GET") or operation in ASKS
    for role in ROLES:
        enough = ROLES.index(role) >= ROLES.index(TABLE[operation])
        user = person(role)
        answer = ask(program(user, "api:read"), operation, places)
        wanted = reads and enough
        assert (answer.status_code != 403) == wanted, (role, "api:read", answer.status_code)
        assert wanted or code(answer) == "denied"
        assert ask(program(user, "door"), operation, places).status_code == 403
        assert code(ask(program(user, "door"), operation, places)) == "token.door"
        before = refusals()
        answer = ask(program(user, "api:write"), operation, places)
        assert (answer.status_code != 403) == enough, (role, "api:write", answer.status_code)
        assert answer.status_code < 500 and answer.status_code != 401
        assert enough or refusals() > before
        builders.Deployment.objects.update(deleted_at=None)


@pytest.mark.parametrize("operation", TABLE)
def test_strangers_and_ended_tokens_get_401(operation: str, places: dict[str, str]) -> None:
    user = person("admin")
    revoked, disabled = program(user), program(person("admin", "gone"))
    ApiToken.objects.filter(user=user).update(revoked_at="2026-11-30T00:00:00Z")
    User.objects.filter(username="gone").update(is_active=False)
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(user)
    odd = [
        {},
        *(
            {"Authorization": word}
            for word in ("Bearer", "Bearer ", "Basic eDp4", "Bearer x", "Bearer berth_" + "é" * 9)
        ),
    ]
    for client in (browser, *(Client(headers=headers) for headers in odd)):
        answer = ask(client, operation, places)
        assert answer.status_code == 401 and answer["WWW-Authenticate"] == "Bearer"
        assert code(answer) in ("token.missing", "token.unknown")
    for client in (revoked, disabled):
        assert (ask(client, operation, places).status_code, code(ask(client, operation, places))) == (
            401,
            "token.unknown",
        )
    assert not Event.objects.filter(outcome="done").exclude(verb__in=["token.created", "invite.made"]).exists()


@pytest.mark.parametrize("operation", TABLE)
def test_a_token_for_some_deployments_reaches_those_alone(
    operation: str, places: dict[str, str], world: dict[str, Any]
) -> None:
    row = world["row"]
    other = builders.make_deployment(world["copy"], "other", state="ready")
    run = builders.make_run(other, world["copy"])
    mine = program(person("admin"), deployment_ids=[row.pk])
    theirs = program(person("admin"), deployment_ids=[other.pk])
    if operation not in WITHIN:
        answer = ask(mine, operation, places)
        assert (answer.status_code, code(answer)) == (403, "token.limited")
        return
    assert ask(theirs, operation, {**places, "deployment_id": str(other.pk), "run_id": str(run.pk)}).status_code != 404
    if "{" in operation:
        assert ask(theirs, operation, places).status_code in (404, 422)  # 422: the body is looked at first
        row.refresh_from_db()
        assert (row.desired, row.deleted_at, row.restart_asked) == ("running", None, 0)
    elif operation.endswith("/deployments"):
        assert [item["name"] for item in ask(theirs, operation, places).json()["items"]] == ["other"]


def test_a_limited_token_cannot_change_others(places: dict[str, str], world: dict[str, Any]) -> None:
    other = builders.make_deployment(world["copy"], "other")
    theirs = program(person("admin"), deployment_ids=[other.pk])
    where = f"/api/v1/deployments/{world['row'].pk}"
    body = b'{"spec": {"gpu_count": 2}}'
    assert theirs.patch(where, body, content_type="application/json").status_code == 404
    assert theirs.patch(f"/api/v1/deployments/{other.pk}", body, content_type="application/json").status_code == 200


def test_an_estimate_writes_nothing_so_a_token_that_reads_may_ask_for_one(world: dict[str, Any]) -> None:
    reader = program(person("viewer"), "api:read")
    body = {"artifact_id": world["copy"].artifact_id, "gpu": "L40S"}
    assert reader.post("/api/v1/estimate", body, content_type="application/json").status_code == 200


def test_a_limited_token_learns_nothing_of_others_by_a_check(world: dict[str, Any]) -> None:
    theirs = program(person("admin"), deployment_ids=[builders.make_deployment(world["copy"], "other").pk])
    spec = {"artifact_id": world["copy"].artifact_id}
    for number in (world["row"].pk, 999_999):
        body = {"name": "x", "spec": spec, "deployment_id": number}
        answer = theirs.post("/api/v1/deployments/check", body, content_type="application/json")
        assert (answer.status_code, code(answer)) == (403, "token.limited")


def test_tokens_of_others_are_an_admins_business(places: dict[str, str]) -> None:
    where = f"/api/v1/tokens/{places['token_id']}"
    assert program(person("operator")).delete(where).status_code == 404
    assert ApiToken.objects.get(pk=places["token_id"]).revoked_at is None
    assert program(person("admin")).delete(where).status_code == 204
    assert ApiToken.objects.get(pk=places["token_id"]).revoked_at is not None
    assert program(person("operator")).get("/api/v1/tokens?user=viewer-1").json()["items"] == []


def test_page_and_schema(places: dict[str, str]) -> None:
    stranger = Client()
    assert stranger.get("/api/v1/openapi.json").status_code == 200
    answer = stranger.get("/api/v1/docs")
    assert answer.status_code == 302 and answer["Location"].startswith("/login")
    browser = Client()
    browser.force_login(person("viewer"))
    assert browser.get("/api/v1/").status_code == 302
    page = browser.get("/api/v1/docs")
    text = page.content.decode()
    assert "default-src 'self'" in page["Content-Security-Policy"] and "https://" not in text.replace(
        "https://berth.example.org", ""
    )
    for operation in TABLE:
        method, path = operation.split(" ")
        assert f">{method}</b>" in text and path in text
    assert browser.post("/api/v1/docs").status_code == 405
