"""The panel of every release comes to the version of today: nothing is lost, pages and API read it, deployments go on."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.operations.released import FILES, Released, released
from tests.servers import Servers
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# What an upgrade may change in rows that are there: everyone signs in once more, rows that only the code reads.
REWRITTEN = {"django_session", "django_migrations", "django_content_type", "auth_permission"}
COLUMNS = {("audit_event", "minute"), ("fleet_host", "work_rev")}  # filled from other columns; grows


@pytest.fixture(scope="module", params=FILES, ids=[file.name.removesuffix(".tar.gz") for file in FILES])
def release(
    request: pytest.FixtureRequest, servers: Servers, django_test_environment: None, django_db_blocker: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Released]:  # fmt: skip
    folder = tmp_path_factory.mktemp("release")
    with django_db_blocker.unblock(), released(servers, folder, request.param) as found:
        yield found


def test_there_is_a_file_of_the_first_release() -> None:
    assert FILES


def test_every_row_is_there_still(release: Released) -> None:
    before = {table: (columns, release.rows(table, columns)) for table, columns in release.tables().items()}
    filled = {table for table, (_columns, rows) in before.items() if rows}
    assert {"deployments_run", "fleet_reservation", "audit_event", "accounts_apitoken", "fleet_joblog"} <= filled
    release.migrate()
    assert "No migrations to apply" in release.migrate()
    now = release.tables()
    for table, (columns, rows) in before.items():
        if table in REWRITTEN:
            continue
        kept = [c for c in columns if (table, c) not in COLUMNS]
        assert set(kept) <= set(now[table]), f"{table} lost a column without a word about it here"
        places = [columns.index(c) for c in kept]
        assert release.rows(table, kept) == sorted([tuple(row[n] for n in places) for row in rows], key=repr), table


def test_secrets_and_logs_can_be_read(release: Released) -> None:
    from panel.core.crypto import unseal
    from panel.fleet import logstore
    from panel.fleet.models import Job

    sealed = list(Job.objects.exclude(secrets=None))
    assert sealed and all("VLLM_API_KEY" in unseal(job.secrets) for job in sealed)
    sizes = []
    for job in Job.objects.filter(kind="engine").select_related("log"):
        text = b"".join(part.data for part in logstore.read_all(job.pk))
        assert len(text) == job.log.size
        sizes.append(len(text))
    assert max(sizes) > 256 << 10, "one log has parts in the folder of logs"


def test_pages_and_api_read_it_and_its_deployments_go_on(release: Released) -> None:
    from deployments.models import Deployment
    from panel.audit.models import Event

    stack = release.stack
    acts = Event.objects.filter(verb="login").count()
    make_fake_engine(stack.engines)
    for name, fake in {"good": {}, "vectors": {"mode": "embed"}, "scores": {"mode": "score"}}.items():
        make_fake_model(stack.models / name, phase_s=0.05, **fake)
    stack.start_all()
    for name in ("team-chat", "vectors"):
        row = Deployment.objects.get(name=name)
        stack.wait_for(row, "ready", timeout=60)
        until(lambda row=row: runs(stack, row), timeout=60, why="its engine runs\n" + stack.logs())
        assert row.revision.number == (2 if name == "team-chat" else 1)
    states = dict(Deployment.objects.filter(deleted_at=None).values_list("name", "state"))
    assert (states["broken"], states["chatty"], states["never-started"]) == ("failed", "stopped", "stopped")
    assert states["on-a-gpu"] in ("lost", "starting"), "no word from its host is no failure"
    until(lambda: answers(release), timeout=60, why="its token opens the door\n" + stack.logs())
    with httpx.Client(base_url=stack.url, headers={"Sec-Fetch-Mode": "navigate"}, follow_redirects=True) as browser:
        sign_in(browser, release)
        look_at_everything(browser)
    assert Event.objects.filter(verb="login").count() > acts, "the record goes on"
    api_reads(release)


def runs(stack: Any, row: Any) -> bool:
    """Ready by a run whose engine lives here: the machine is a new one, so that of before is no more."""
    row.refresh_from_db()
    return row.state == "ready" and bool(stack.job_processes(row.run.job_id))


def answers(release: Released) -> bool:
    answer = httpx.post(
        f"{release.stack.url}/v1/chat/completions", timeout=20,
        json={"model": "team-chat", "messages": [{"role": "user", "content": "Hello"}]},
        headers={"Authorization": f"Bearer {release.known['tokens']['door']}"},
    )  # fmt: skip
    return answer.status_code == 200


def sign_in(browser: httpx.Client, release: Released) -> None:
    page = browser.get("/login")
    field = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert field is not None
    values = {"name": "ada", "password": release.known["password"], "csrfmiddlewaretoken": field[1]}
    assert browser.post("/login", data=values).status_code == 200


def look_at_everything(browser: httpx.Client) -> None:
    """Every page that links lead to, from the list of deployments on."""
    from deployments.models import Deployment

    # The record still names what was deleted; its own page is no more, its runs' pages are.
    deleted = {f"/deployments/{pk}/" for pk in Deployment.objects.exclude(deleted_at=None).values_list("pk", flat=True)}
    todo, seen = ["/", "/activity", "/people/"], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = browser.get(path, timeout=30)
        assert answer.status_code == (404 if path in deleted else 200), path
        if "text/html" not in answer.headers["content-type"]:
            continue
        links = re.findall(r'href="(/[^"#?]*)', answer.text)
        todo += [link for link in links if not link.startswith(("/static/", "/logout", "/api/v1/openapi"))]
    assert sum("/deployments/" in path for path in seen) >= 6, sorted(seen)


def asked_for(path: str, verbs: dict[str, Any]) -> bool:
    """Whether reading it takes more than its name: a row's number, or what to look for at a hub."""
    return "{" in path or any(parameter["required"] for parameter in verbs["get"].get("parameters", ()))


def api_reads(release: Released) -> None:
    from panel.accounts.models import Scope, User
    from panel.accounts.services import create_token

    ada = User.objects.get(username="ada")
    _row, token = create_token(ada, "after the upgrade", actor=ada, scope=Scope.API_READ)
    with httpx.Client(base_url=f"{release.stack.url}/api/v1", headers={"Authorization": f"Bearer {token}"}) as api:
        paths = api.get("/openapi.json").json()["paths"]
        lists = [
            path.removeprefix("/api/v1")
            for path, verbs in paths.items()
            if "get" in verbs and not asked_for(path, verbs)
        ]
        assert {"/deployments", "/hosts", "/models", "/users", "/events"} <= set(lists)
        for path in lists:
            assert api.get(path).status_code == 200, path
        rows = api.get("/deployments", params={"limit": 100}).json()["items"]
        names = {row["name"] for row in rows}
        assert {"team-chat", "vectors", "chatty", "broken", "never-started", "on-a-gpu"} <= names
        for row in rows:
            assert api.get(f"/deployments/{row['id']}").status_code == 200, row["name"]
