"""Every address × everybody: who gets in, who is refused, and that nothing changes without the CSRF token.

The table names the least role of each address and method. An address that is not in it fails the first test.
"""

import secrets
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from panel.accounts.models import User
from panel.accounts.services import create_token
from panel.accounts.tokens import find_token
from panel.audit.models import Event
from panel.fleet import services, wire
from panel.fleet.models import Host, Job, JoinCode
from tests.deployments import builders

pytestmark = pytest.mark.django_db

ROLES = ("stranger", "viewer", "operator", "admin")
NOBODY = "nobody"  # the method does not exist here
ANYONE = "stranger"

# pattern → least role for GET, least role for POST.
TABLE: dict[str, tuple[str, str]] = {
    "preferences": (NOBODY, ANYONE),
    "": ("viewer", NOBODY),
    "deployments/": (ANYONE, NOBODY),  # leads to the list, which asks who it is
    "deployments/live": ("viewer", NOBODY),
    "deployments/new": ("operator", "operator"),
    "deployments/paste": ("operator", "operator"),
    "deployments/<int:pk>/export": ("viewer", NOBODY),
    "deployments/plan": (NOBODY, "operator"),
    "deployments/check": (NOBODY, "operator"),
    "deployments/<int:pk>/": ("viewer", NOBODY),
    "deployments/<int:pk>/edit": ("operator", "operator"),
    "deployments/<int:pk>/start": (NOBODY, "operator"),
    "deployments/<int:pk>/fixes/<slug:key>": (NOBODY, "operator"),
    "deployments/<int:pk>/start-in-detail": (NOBODY, "operator"),
    "deployments/<int:pk>/settings/<int:number>/use": (NOBODY, "operator"),
    "deployments/<int:pk>/settings/compare": ("viewer", NOBODY),
    "deployments/<int:pk>/answers": ("viewer", NOBODY),
    "deployments/<int:pk>/questions": (NOBODY, "operator"),
    "estimates/": ("viewer", NOBODY),
    "deployments/<int:pk>/stop": (NOBODY, "operator"),
    "deployments/<int:pk>/restart": (NOBODY, "operator"),
    "deployments/<int:pk>/findings/<str:family>/apply": (NOBODY, "operator"),
    "deployments/<int:pk>/delete": (NOBODY, "operator"),
    "deployments/<int:pk>/ask": (NOBODY, "viewer"),
    "deployments/<int:pk>/live": ("viewer", NOBODY),
    "failures/": ("viewer", NOBODY),
    "failures/export.<str:form>": ("viewer", NOBODY),
    "runs/<uuid:run_id>/verdict": (NOBODY, "operator"),
    "runs/<uuid:run_id>/": ("viewer", NOBODY),
    "runs/<uuid:run_id>/log": ("viewer", NOBODY),
    "runs/<uuid:run_id>/log.txt": ("viewer", NOBODY),
    "models/": ("viewer", NOBODY),
    "models/live": ("viewer", NOBODY),
    "models/scan": (NOBODY, "operator"),
    "models/folders": (NOBODY, "admin"),
    "models/folders/<int:pk>/remove": (NOBODY, "admin"),
    "models/<int:pk>/": ("viewer", NOBODY),
    "models/<int:pk>/elsewhere": ("viewer", NOBODY),
    "models/<int:pk>/code": (NOBODY, "admin"),
    "models/downloads/": ("viewer", NOBODY),
    "models/downloads/live": ("viewer", NOBODY),
    "models/downloads/find": ("operator", NOBODY),
    "models/downloads/new": ("operator", "operator"),
    "models/downloads/quick": (NOBODY, "operator"),
    "models/downloads/access": ("operator", "operator"),
    "models/downloads/access/<int:pk>/remove": (NOBODY, "operator"),
    "models/downloads/<uuid:download_id>/": ("viewer", NOBODY),
    "models/downloads/<uuid:download_id>/live": ("viewer", NOBODY),
    "models/downloads/<uuid:download_id>/log": ("viewer", NOBODY),
    "models/downloads/<uuid:download_id>/log.txt": ("viewer", NOBODY),
    "models/downloads/<uuid:download_id>/pause": (NOBODY, "operator"),
    "models/downloads/<uuid:download_id>/resume": (NOBODY, "operator"),
    "models/downloads/<uuid:download_id>/cancel": (NOBODY, "operator"),
    "models/copies/<int:pk>/convert": ("operator", "operator"),
    "models/conversions/<uuid:conversion_id>/": ("viewer", NOBODY),
    "models/conversions/<uuid:conversion_id>/live": ("viewer", NOBODY),
    "models/conversions/<uuid:conversion_id>/log": ("viewer", NOBODY),
    "models/conversions/<uuid:conversion_id>/log.txt": ("viewer", NOBODY),
    "models/conversions/<uuid:conversion_id>/cancel": (NOBODY, "operator"),
    "models/conversions/<uuid:conversion_id>/again": (NOBODY, "operator"),
    "runtimes/<int:pk>/plugin": (NOBODY, "admin"),
    "models/<int:pk>/about": (NOBODY, "operator"),
    "models/<int:pk>/approve": (NOBODY, "admin"),
    "models/forms/<int:pk>/template": ("viewer", NOBODY),
    "models/copies/<int:pk>/delete": ("admin", "admin"),
    "models/copies/<int:pk>/repair": (NOBODY, "operator"),
    "hosts/": ("viewer", NOBODY),
    "hosts/live": ("viewer", NOBODY),
    "hosts/new": ("admin", "admin"),
    "hosts/codes/<int:pk>/": ("admin", NOBODY),
    "hosts/codes/<int:pk>/revoke": (NOBODY, "admin"),
    "join/berth-join.sh": (ANYONE, NOBODY),
    "join/agent.zip": (ANYONE, NOBODY),
    "join/wheels/<str:tag>": (ANYONE, NOBODY),
    "join/wheels/<str:tag>/<str:name>": (ANYONE, NOBODY),
    "hosts/<int:pk>/": ("viewer", NOBODY),
    "hosts/<int:pk>/rename": ("admin", "admin"),
    "hosts/<int:pk>/aside": (NOBODY, "admin"),
    "hosts/<int:pk>/back": (NOBODY, "admin"),
    "hosts/<int:pk>/door-key": (NOBODY, "admin"),
    "hosts/<int:pk>/stop-deployments": (NOBODY, "admin"),
    "hosts/<int:pk>/forget": (NOBODY, "admin"),
    "hosts/gpus/<int:pk>/aside": (NOBODY, "admin"),
    "hosts/gpus/<int:pk>/back": (NOBODY, "admin"),
    "hosts/<int:pk>/engines/find": (NOBODY, "admin"),
    "hosts/<int:pk>/engines/new": ("admin", "admin"),
    "runtimes/": ("viewer", NOBODY),
    "runtimes/live": ("viewer", NOBODY),
    "runtimes/install": ("admin", "admin"),
    "runtimes/install/check": (NOBODY, "admin"),
    "runtimes/installs/<uuid:install_id>/": ("viewer", NOBODY),
    "runtimes/installs/<uuid:install_id>/live": ("viewer", NOBODY),
    "runtimes/installs/<uuid:install_id>/log": ("viewer", NOBODY),
    "runtimes/installs/<uuid:install_id>/log.txt": ("viewer", NOBODY),
    "runtimes/installs/<uuid:install_id>/cancel": (NOBODY, "admin"),
    "runtimes/installs/<uuid:install_id>/again": (NOBODY, "admin"),
    "runtimes/<int:pk>/remove": ("admin", "admin"),
    "runtimes/hosts/<int:pk>/find": (NOBODY, "admin"),
    "runtimes/hosts/<int:pk>/folders": ("admin", "admin"),
    "runtimes/hosts/<int:pk>/folders/forget": (NOBODY, "admin"),
    "login": (ANYONE, ANYONE),
    "logout": (NOBODY, ANYONE),
    "first-admin/<str:secret>": (ANYONE, ANYONE),
    "invite/<str:secret>": (ANYONE, ANYONE),
    "new-password/<str:secret>": (ANYONE, ANYONE),
    "account": ("viewer", NOBODY),
    "account/look": (NOBODY, "viewer"),
    "account/secrets": ("operator", "operator"),
    "account/secrets/<int:pk>/remove": (NOBODY, "operator"),
    "account/sessions/end": (NOBODY, "viewer"),
    "account/sessions/<uuid:number>/end": (NOBODY, "viewer"),
    "people/": ("admin", NOBODY),
    "people/invite": (NOBODY, "admin"),
    "people/invitations/<int:pk>/again": (NOBODY, "admin"),
    "people/invitations/<int:pk>/revoke": (NOBODY, "admin"),
    "people/<int:pk>/": ("admin", NOBODY),
    "people/<int:pk>/role": (NOBODY, "admin"),
    "people/<int:pk>/disable": (NOBODY, "admin"),
    "people/<int:pk>/enable": (NOBODY, "admin"),
    "people/<int:pk>/reset": (NOBODY, "admin"),
    "people/<int:pk>/sessions/end": (NOBODY, "admin"),
    "people/<int:pk>/tokens/<int:token_id>/revoke": (NOBODY, "admin"),
    "account/password": (NOBODY, "viewer"),
    "account/tokens": (NOBODY, "viewer"),
    "account/tokens/<int:pk>/revoke": (NOBODY, "viewer"),
    "activity": ("viewer", NOBODY),
    "activity/export.<str:form>": ("admin", NOBODY),
}
# The agents' line has its own key, the host token: no session opens it, and no CSRF token is asked for.
LINK = {
    "agent/v1/join": "POST",
    "agent/v1/hello": "GET",
    "agent/v1/leave": "POST",
    "agent/v1/script": "GET",
    "agent/v1/work": "GET",
    "agent/v1/report": "POST",
    "agent/v1/jobs/<uuid:job_id>/log": "POST",
    "agent/v1/jobs/<uuid:job_id>/result": "POST",
}


def patterns(resolver: Any = None, before: str = "") -> Iterator[str]:
    for entry in (resolver or get_resolver()).url_patterns:
        if isinstance(entry, URLResolver):
            yield from patterns(entry, before + str(entry.pattern))
        elif isinstance(entry, URLPattern):
            yield before + str(entry.pattern)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def world() -> dict[str, str]:
    """One row of everything; what stands for each converter in an address."""
    host = builders.make_host(gpus=1)
    copy = builders.make_copy(host)
    row = builders.make_deployment(copy, state="ready")
    run = builders.make_run(row, copy)
    builders.ready(row, run)
    somebody = User.objects.create_user(username="somebody")
    return {
        "deployments/<int:pk>/settings/<int:number>": f"{row.pk}/settings/1",
        "deployments/<int:pk>/fixes/<slug:key>": f"{row.pk}/fixes/0a1b2c3d4e5f",
        "deployments/<int:pk>": str(row.pk),
        "models/folders/<int:pk>": str(host.pk),
        "models/downloads/access/<int:pk>": "1",
        "<uuid:download_id>": str(builders.make_download(host).pk),
        "<uuid:conversion_id>": str(builders.make_conversion(copy).pk),
        "models/<int:pk>": str(copy.artifact.model_id),
        "models/forms/<int:pk>": str(copy.artifact_id),
        "models/copies/<int:pk>": str(copy.pk),
        "hosts/codes/<int:pk>": str(JoinCode.objects.create(code_hash="x", expires_at=timezone.now()).pk),
        "hosts/<int:pk>": str(host.pk),
        "hosts/gpus/<int:pk>": str(host.gpus.get().pk),
        "<str:family>": "serve.kv_full",
        "<str:tag>/<str:name>": "cp311-x86_64/none.whl",
        "<str:tag>": "cp311-x86_64",
        "account/tokens/<int:pk>": "1",
        "account/secrets/<int:pk>": "1",
        "account/sessions/<uuid:number>": str(uuid.uuid4()),
        "people/invitations/<int:pk>": "1",
        "people/<int:pk>/tokens/<int:token_id>": f"{somebody.pk}/tokens/1",
        "people/<int:pk>": str(somebody.pk),
        "runtimes/hosts/<int:pk>": str(host.pk),
        "runtimes/<int:pk>": str(host.runtimes.get().pk),
        "<uuid:install_id>": str(builders.make_install(host).pk),
        "<uuid:run_id>": str(run.pk),
        "<uuid:job_id>": str(run.job_id),
        "<str:secret>": "nonsense",
        "<str:form>": "csv",
    }


def address(pattern: str, world: dict[str, str]) -> str:
    for place, value in world.items():
        if place in pattern:
            return "/" + pattern.replace(place, place.replace(place[place.index("<") :], value))
    assert "<" not in pattern, pattern
    return "/" + pattern


def browser(role: str, *, csrf: bool) -> Client:
    client = Client(enforce_csrf_checks=csrf, headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"})
    if role != "stranger":
        client.force_login(User.objects.get_or_create(username=f"{role}-1", defaults={"role": role})[0])
    return client


def test_every_address_is_in_the_table() -> None:
    pages = {
        pattern for pattern in patterns() if not pattern.startswith("api/v1/")
    }  # tests/api/test_rights.py has those
    assert pages == set(TABLE) | set(LINK)


def allowed(role: str, least: str) -> bool:
    return least != NOBODY and ROLES.index(role) >= ROLES.index(least)


def outcome(status: int, location: str) -> str:
    """What an answer means for the one who asked."""
    if status == 405:
        return "no such method"
    if status == 403 or (status == 302 and location.startswith("/login")):
        return "refused"
    return "in"


@pytest.mark.parametrize("pattern", list(TABLE))
def test_who_gets_in(pattern: str, world: dict[str, str]) -> None:
    for role in ROLES:
        for method, least in zip(("GET", "POST"), TABLE[pattern], strict=True):
            answer = browser(role, csrf=False).generic(method, address(pattern, world))
            said = outcome(answer.status_code, answer.headers.get("Location", ""))
            if pattern == "logout":  # its way on leads to the sign-in page
                said = "in" if (method, answer.status_code) == ("POST", 302) else said
            wanted = "in" if allowed(role, least) else "no such method" if least == NOBODY else "refused"
            # Whether a method exists is no secret; what matters is that nobody else gets in.
            assert said == wanted or (least == NOBODY and said == "refused"), (role, method, answer.status_code)
            assert answer.status_code < 500, (role, method)


@pytest.mark.parametrize("role", ROLES)
def test_no_post_works_without_the_csrf_token(role: str, world: dict[str, str]) -> None:
    client = browser(role, csrf=True)
    for pattern in TABLE:
        for content in ("application/x-www-form-urlencoded", "application/json", "text/plain"):
            answer = client.post(address(pattern, world), data=b"{}", content_type=content)
            assert answer.status_code == 403, pattern
    assert not Event.objects.filter(outcome="done").exists(), "nothing happened"


def test_the_agents_line_is_closed_to_people_and_to_api_tokens(world: dict[str, str]) -> None:
    admin = browser("admin", csrf=True)
    _row, token = create_token(User.objects.get(username="admin-1"), "mine", actor=User.objects.get(username="admin-1"))
    assert find_token(token)
    for pattern, method in LINK.items():
        if pattern.endswith("join"):
            continue
        where = address(pattern, world)
        for headers in ({}, {"Authorization": f"Bearer {token}"}, {"Authorization": "Bearer "}):
            assert admin.generic(method, where, b"{}", headers=headers).status_code == 401, where
        other = "POST" if method == "GET" else "GET"
        assert admin.generic(other, where).status_code == 405
    body = b'{"code": "guess", "hostname": "h", "agent_version": "1"}'
    assert admin.post("/agent/v1/join", body, content_type="application/json").status_code == 403


def test_a_host_reaches_only_its_own_jobs() -> None:
    token = secrets.token_urlsafe(32)
    mine = Host.objects.create(name="mine", token_hash=services.digest(token))
    other = Host.objects.create(name="other", token_hash=services.digest("another"))
    order = wire.EngineTask(argv=["/bin/vllm"], model_path="/m", secret_env={"VLLM_API_KEY": "their-key"})
    job = services.order_job(host=other, task=order)
    client = Client(headers={"Authorization": f"Bearer {token}"})
    base = f"/agent/v1/jobs/{job.pk}"
    assert client.post(f"{base}/log?offset=0", b"x", content_type="application/octet-stream").status_code == 404
    assert client.post(f"{base}/result", b"{}", content_type="application/json").status_code == 404
    unknown = f"/agent/v1/jobs/{uuid.uuid4()}/log?offset=0"
    assert client.post(unknown, b"x", content_type="application/octet-stream").status_code == 404
    said = wire.Report.model_validate(
        {
            "agent_version": "1",
            "sent_at": 1.0,
            "rev": 1,
            "jobs": [{"id": str(job.pk), "kind": "engine", "state": "ended"}],
        }
    )
    answer = client.post("/agent/v1/report", said.model_dump_json(), content_type="application/json")
    assert answer.status_code == 200
    assert Job.objects.get(pk=job.pk).state == "ordered"
    assert b"their-key" not in client.get("/agent/v1/work").content
    mine.refresh_from_db()
    assert mine.last_seen_at is not None


def test_a_token_of_somebody_else_cannot_be_revoked(world: dict[str, str]) -> None:
    admin = browser("admin", csrf=False)
    viewer = browser("viewer", csrf=False)
    owner = User.objects.get(username="admin-1")
    row, plaintext = create_token(owner, "mine", actor=owner)
    assert viewer.post(reverse("token-revoke", args=[row.pk])).status_code == 404
    assert find_token(plaintext)
    assert admin.post(reverse("token-revoke", args=[row.pk])).status_code == 302
    assert not find_token(plaintext)


def test_every_answer_has_its_security_headers(client: Client, world: dict[str, str]) -> None:
    admin = browser("admin", csrf=False)
    run = world["<uuid:run_id>"]
    for where in ("/", f"/runs/{run}/log", f"/runs/{run}/log.txt", "/login", "/no-such-page", "/agent/v1/work"):
        answer = admin.get(where)
        assert "default-src 'self'" in answer["Content-Security-Policy"], where
        assert answer["X-Content-Type-Options"] == "nosniff", where
        assert answer["X-Frame-Options"] == "DENY", where


def test_no_way_leads_to_another_site() -> None:
    User.objects.create_user(username="mina", password="harbour lights at nine", role="viewer")
    for target in (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "\t//evil.example",
    ):
        client = Client()
        values = {"name": "mina", "password": "harbour lights at nine", "next": target}
        assert client.post("/login", values)["Location"] == "/", target
        assert client.post("/preferences", {"language": "en", "next": target})["Location"] == "/", target
