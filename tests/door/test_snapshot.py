"""The snapshot: what of the database the door learns, how soon, and in how many queries."""

import asyncio
import datetime
import json
import time
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from deployments.gateway import snapshot, source
from deployments.gateway.source import Source
from deployments.models import Deployment, Revision, Run
from models_catalog.models import Artifact, CatalogModel, Copy
from panel.accounts.models import ApiToken, User
from panel.core.crypto import seal
from panel.fleet import doors
from panel.fleet.door import NoSnapshot, Snapshot, token_hash
from panel.fleet.door.access import identify
from panel.fleet.models import Host, Job


@pytest.fixture
def host(db: None) -> Host:
    return Host.objects.create(name="here", is_local=True, token_hash="h")


def deployment(
    host: Host, name: str, state: str = "ready", *, job: dict[str, Any] | None = None, **run: Any
) -> Deployment:
    row = Deployment.objects.create(name=name, state=state, desired="running")
    row.revision = Revision.objects.create(deployment=row, number=1, spec={"artifact_id": 1, "task": "embed"})
    status = {"port": 4711, "listening": True}
    placed = Job.objects.create(host=host, kind="engine", **{"state": "running", "status": status, **(job or {})})
    secrets = seal(json.dumps({"api_key": f"key-{name}"}))
    values = {
        "revision": row.revision,
        "number": 1,
        "host": host,
        "job": placed,
        "secrets": secrets,
        "started_by": "mara",
    }
    row.run = Run.objects.create(deployment=row, **{**values, **run})
    row.save()
    return row


def token(secret: str = "s", *, user: str = "mara", **values: Any) -> ApiToken:
    owner, _ = User.objects.get_or_create(username=user)
    return ApiToken.objects.create(user=owner, name="t", token_hash=token_hash(secret), prefix="s", **values)


def test_a_ready_deployment_is_open_with_its_port_and_key(host: Host) -> None:
    row = deployment(host, "bge")
    route = snapshot.build().routes["bge"]
    assert (route.open, route.host, route.port, route.key) == (True, "127.0.0.1", 4711, "key-bge")
    assert (route.deployment_id, route.run_id, route.task, route.state) == (row.pk, str(row.run_id), "embed", "ready")


@pytest.mark.parametrize("state", ["queued", "preparing", "starting", "stopping", "stopped", "failed", "lost"])
def test_only_ready_is_open(host: Host, state: str) -> None:
    deployment(host, "bge", state)
    assert snapshot.build().routes["bge"].open is False


def test_lost_after_ready_stays_open(host: Host) -> None:
    deployment(host, "bge", "lost", ready_at=timezone.now())
    assert snapshot.build().routes["bge"].open is True


@pytest.mark.parametrize(
    "job", [{"state": "ended"}, {"state": "stopping"}, {"state": "ordered", "status": {}}, {"status": {}}]
)
def test_the_end_of_the_process_wins_over_ready(host: Host, job: dict[str, Any]) -> None:
    deployment(host, "bge", job=job)
    route = snapshot.build().routes["bge"]
    assert (route.open, route.port) == (False, None)


def test_a_former_run_or_another_host_or_an_unreadable_key_opens_nothing(host: Host) -> None:
    deployment(host, "ended", ended_at=timezone.now())
    deployment(Host.objects.create(name="there", token_hash="i"), "there")
    deployment(host, "sealed", secrets=b"not ours")
    routes = snapshot.build().routes
    assert [(r.name, r.open, r.reason) for r in sorted(routes.values(), key=lambda r: r.name)] == [
        ("ended", False, ""),
        ("sealed", False, "door.key_unreadable"),
        ("there", False, "door.none"),
    ]


def test_another_hosts_engine_is_reached_through_its_door(host: Host) -> None:
    there = Host.objects.create(name="atlas", token_hash="i", last_seen_at=timezone.now())
    order = doors.order_for(there)
    assert order is not None
    row = deployment(there, "far")
    door = {"address": "10.0.0.7", "port": 8443, "certificate": "c" * 64, "accepts": order.accepts, "problem": ""}
    Host.objects.filter(pk=there.pk).update(door=door)
    route = snapshot.build().routes["far"]
    assert route.open and route.via is not None and route.port == 4711
    assert (route.via.host, route.via.address, route.via.port) == ("atlas", "10.0.0.7", 8443)
    assert (route.via.certificate, route.via.job_id) == ("c" * 64, str(row.run.job_id))
    assert token_hash(route.via.key) == order.accepts[0] and not route.via.silent
    Host.objects.filter(pk=there.pk).update(lost_at=timezone.now())
    via = snapshot.build().routes["far"].via
    assert via is not None and via.silent and via.heard_at
    for changes, why in (
        ({"accepts": []}, "door.key_pending"),
        ({"problem": "died"}, "door.none"),
        ({"certificate": ""}, "door.none"),
    ):
        Host.objects.filter(pk=there.pk).update(door={**door, **changes})
        route = snapshot.build().routes["far"]
        assert (route.open, route.via, route.reason) == (False, None, why)


def test_deleted_deployments_have_no_route(host: Host) -> None:
    row = deployment(host, "bge")
    Deployment.objects.filter(pk=row.pk).update(deleted_at=timezone.now())
    assert snapshot.build().routes == {}


def test_a_start_tells_phase_and_the_time_that_is_usual(host: Host) -> None:
    now = timezone.now()
    artifact = Artifact.objects.create(
        model=CatalogModel.objects.create(name="m"), format="hf", label="bf16", fingerprint="f"
    )
    copy = Copy.objects.create(artifact=artifact, host=host, path="/m")
    old = deployment(host, "old", "stopped")
    for number, seconds in enumerate((30, 40, 500), 2):
        run = Run.objects.create(
            deployment=old, revision=old.revision, number=number, host=host, copy=copy, started_by="mara"
        )
        Run.objects.filter(pk=run.pk).update(created_at=now, ready_at=now + datetime.timedelta(seconds=seconds))
    phases = [
        {"code": "spawn", "start": 1, "end": 2},
        {"code": "load", "start": 2, "end": None, "done": 3, "total": 12},
    ]
    row = deployment(host, "bge", "starting", phases=phases, copy=copy)
    route = snapshot.build().routes["bge"]
    assert (route.phase, route.done, route.total) == ("load", 3, 12)
    assert route.eta_at == pytest.approx(row.run.created_at.timestamp() + 40)
    assert (route.open, route.port) == (False, 4711)  # the probe may ask it
    Run.objects.filter(pk=row.run_id).update(probe={"asked_at": 5})
    assert snapshot.build().routes["bge"].phase == "answered"
    deployment(host, "first", "starting")
    assert snapshot.build().routes["first"].eta_at is None


def test_a_failure_tells_its_reason(host: Host) -> None:
    row = deployment(host, "bge", "failed", ended_at=timezone.now())
    Deployment.objects.filter(pk=row.pk).update(reason={"code": "run.exit", "params": {"exit_code": 1}})
    route = snapshot.build().routes["bge"]
    assert (route.reason, route.params) == ("run.exit", {"exit_code": 1})


def test_tokens_with_all_that_ends_them(db: None) -> None:
    now, long_ago = timezone.now(), timezone.now() - datetime.timedelta(days=40)
    token("good")
    token("scope", scope="api:read")
    token("revoked", revoked_at=now)
    token("late", expires_at=now)
    token("old", revoked_at=long_ago)
    token("older", expires_at=long_ago)
    token("gone", user="gone")
    token("some", deployment_ids=[4, 7])
    User.objects.filter(username="gone").update(is_active=False)
    found = {
        name: snapshot.build().tokens.get(token_hash(name)) for name in ("good", "scope", "revoked", "late", "gone")
    }
    assert {name: t and (t.user, t.scope, t.ended) for name, t in found.items()} == {
        "good": ("mara", "door", ""),
        "scope": ("mara", "api:read", ""),
        "revoked": ("mara", "door", "revoked"),
        "late": ("mara", "door", ""),
        "gone": ("gone", "door", "user_inactive"),
    }
    assert found["late"] and found["late"].expires_at == pytest.approx(now.timestamp())
    assert snapshot.build().tokens[token_hash("some")].deployments == {4, 7}
    assert found["good"].deployments is None
    assert not {token_hash("old"), token_hash("older")} & set(snapshot.build().tokens)


def test_twice_the_rows_take_the_same_queries(host: Host, django_assert_max_num_queries: Any) -> None:
    for count in (3, 6):
        for number in range(count):
            deployment(host, f"d{count}-{number}", "starting" if number % 2 else "ready")
            token(f"s{count}-{number}")
        with django_assert_max_num_queries(3):
            assert len(snapshot.build().routes) == (3 if count == 3 else 9)


def test_the_last_use_is_written_in_one_statement(db: None, django_assert_max_num_queries: Any) -> None:
    rows = [token(str(n)) for n in range(5)]
    with django_assert_max_num_queries(3):  # one UPDATE in its transaction
        snapshot.note_use({row.pk: 1000.0 + n for n, row in enumerate(rows)} | {999_999: 1.0})
    assert [t.last_used_at.timestamp() for t in ApiToken.objects.order_by("pk") if t.last_used_at] == [
        1000.0,
        1001.0,
        1002.0,
        1003.0,
        1004.0,
    ]


def test_the_probes_token_is_good_for_five_minutes(settings: Any) -> None:
    secret = snapshot.probe_token(5, "run-1")
    key = snapshot._internal_key(settings.SECRET_KEY)
    caller = identify([f"Bearer {secret}".encode()], Snapshot(internal_key=key), time.time() + 290)
    assert (caller.deployment_id, caller.probe_run, caller.token) == (5, "run-1", None)
    with pytest.raises(Exception, match=r"token\.expired"):
        identify([f"Bearer {secret}".encode()], Snapshot(internal_key=key), time.time() + 310)


# --- freshness ------------------------------------------------------------------------------------------------------


class Builds:
    """Counts builds; the n-th gives a snapshot whose key is n."""

    def __init__(self) -> None:
        self.count, self.error, self.seconds = 0, None, 0.0  # type: ignore[var-annotated]

    def __call__(self) -> Snapshot:
        self.count += 1
        number = self.count
        time.sleep(self.seconds)
        if self.error:
            raise self.error
        return Snapshot(internal_key=b"%d" % number)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FRESH_S": 0.1, "MAX_AGE_S": 0.2, "WAIT_S": 0.3, "RETRY_S": 0.02, "REST_S": 0.2}.items():
        monkeypatch.setattr(source, name, value)


async def test_many_requests_wait_for_one_build(short: None) -> None:
    builds = Builds()
    builds.seconds = 0.05
    found = Source(builds)
    assert {s.internal_key for s in await asyncio.gather(*(found() for _ in range(50)))} == {b"1"}
    assert builds.count == 1


async def test_while_requests_come_it_never_gets_old_and_without_them_it_rests(short: None) -> None:
    builds = Builds()
    found = Source(builds)
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        await found()
        assert time.monotonic() - found._at < 0.25
        await asyncio.sleep(0.01)
    assert 4 <= builds.count <= 8
    before = builds.count
    await asyncio.sleep(0.3)
    assert builds.count == before
    await found()
    assert builds.count == before + 1  # old: the request waited for a new one


async def test_the_newest_is_begun_after_the_wish(short: None) -> None:
    builds = Builds()
    builds.seconds = 0.05
    found = Source(builds)
    first = asyncio.ensure_future(found())
    await asyncio.sleep(0.02)
    assert (await found(newest=True)).internal_key == b"2"
    await first


async def test_with_the_database_away_the_old_one_serves_for_a_while(
    short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_STALE_S", 0.7)
    builds = Builds()
    found = Source(builds)
    await found()
    builds.error = OperationalError("gone")
    await asyncio.sleep(0.25)
    assert (await found()).internal_key == b"1"
    await asyncio.sleep(0.5)
    with pytest.raises(NoSnapshot):
        await found()
    builds.error = None
    await asyncio.sleep(0.25)
    assert int((await found()).internal_key) > 2


async def test_a_database_that_hangs_holds_one_request_and_not_all(short: None) -> None:
    builds = Builds()
    found = Source(builds)
    await found()
    builds.seconds = 1.0
    await asyncio.sleep(0.25)
    began = time.monotonic()
    await found()
    assert time.monotonic() - began > 0.25
    began = time.monotonic()
    for _ in range(20):
        await found()
    assert time.monotonic() - began < 0.1


async def test_a_fault_of_ours_is_logged_and_not_fatal(short: None, caplog: pytest.LogCaptureFixture) -> None:
    builds = Builds()
    builds.error = KeyError("oh")
    with pytest.raises(NoSnapshot):
        await Source(builds)()
    assert "could not be built" in caplog.text and "KeyError" in caplog.text
