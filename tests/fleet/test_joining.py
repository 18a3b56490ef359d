"""Codes and what comes of them, who may speak for a host, its clock and its restarts, as the panel sees them."""

import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from panel.accounts.models import User
from panel.audit.models import Event
from panel.core.errors import Denied, Invalid
from panel.fleet import host_wording, reports, seats, services, wire
from panel.fleet.agent.version import VERSION
from panel.fleet.joining import services as joining
from panel.fleet.models import Host, Job, JoinCode
from tests.fleet.test_reports import FACTS, engine_task

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    monkeypatch.setattr("deployments.events.send", lambda pk: None)


@pytest.fixture
def admin() -> User:
    return User.objects.create_user(username="ada", password="harbour lights at nine", role="admin")


def redeem(code: str, hostname: str = "box", client: Client | None = None, **headers: str) -> Any:
    body = wire.JoinRequest(code=code, hostname=hostname, agent_version=VERSION).model_dump_json()
    client = client or Client(raise_request_exception=False)
    return client.post("/agent/v1/join", body, content_type="application/json", headers=headers)


class Agent:
    """Calls of one agent process."""

    def __init__(self, token: str, instance: str = "", wire_version: int = wire.WIRE_VERSION) -> None:
        headers = {"Authorization": f"Bearer {token}", "User-Agent": "berth-agent/0.0.9"}
        headers[wire.WIRE_HEADER] = str(wire_version)
        if instance:
            headers[wire.INSTANCE_HEADER] = instance
        self.client = Client(headers=headers, raise_request_exception=False)
        self.instance = instance

    def work(self) -> Any:
        return self.client.get("/agent/v1/work?rev=0")

    def report(self, **values: Any) -> Any:
        message = {"agent_version": VERSION, "sent_at": timezone.now().timestamp(), "rev": 1, **values}
        return self.client.post("/agent/v1/report", json.dumps(message), content_type="application/json")

    def leave(self) -> Any:
        return self.client.post("/agent/v1/leave")


@pytest.fixture
def host() -> Host:
    return Host.objects.create(name="gpu-1", token_hash=services.digest("t0ken"))


# --- codes --------------------------------------------------------------------------------------------------------------


def test_a_code_makes_one_host_with_the_name_that_was_asked_for(admin: User) -> None:
    row, code = joining.make_code(admin, "gpu-2")
    assert JoinCode.objects.filter(code_hash=code).count() == 0, "only its hash is kept"
    first = redeem(code.lower().replace("-", " "))  # as people type it
    assert first.status_code == 200
    reply = wire.JoinReply.model_validate(first.json())
    made = Host.objects.get(name="gpu-2")
    assert (reply.host_id, reply.host_name, reply.again) == (made.pk, "gpu-2", False)
    assert made.token_hash == services.digest(reply.token)
    assert {job.kind for job in made.jobs.all()} == {"runtimes", "scan"}
    again = redeem(code)
    assert (again.status_code, again.json()["code"]) == (403, "join.code")
    row.refresh_from_db()
    assert row.host == made
    verbs = list(Event.objects.order_by("at").values_list("verb", "outcome"))
    assert verbs == [("host.code_made", "done"), ("host.joined", "done"), ("host.join_refused", "denied")]


def test_a_code_without_a_name_takes_the_machines_own(admin: User) -> None:
    _row, code = joining.make_code(admin, "")
    assert redeem(code, "box.example.org").json()["host_name"] == "box"


@pytest.mark.parametrize("how", ["expired", "revoked", "unknown"])
def test_other_codes_are_refused_alike(admin: User, how: str) -> None:
    row, code = joining.make_code(admin, "gpu-2")
    if how == "expired":
        JoinCode.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    elif how == "revoked":
        assert joining.revoke(row, actor=admin)
        assert not joining.revoke(row, actor=admin), "once"
    else:
        code = "0000-0000-0000"
    answer = redeem(code)
    assert (answer.status_code, answer.json()["code"]) == (403, "join.code")
    assert not Host.objects.exists()


def test_wrong_codes_are_slowed_down_by_address_and_right_ones_elsewhere_still_work(admin: User) -> None:
    _row, code = joining.make_code(admin, "gpu-2")
    for _n in range(joining.WRONG_TRIES):
        assert redeem("0000-0000-0000").status_code == 403
    assert redeem(code).status_code == 429
    assert not Host.objects.exists()
    elsewhere = Client(REMOTE_ADDR="10.1.2.3", raise_request_exception=False)
    assert redeem(code, client=elsewhere).status_code == 200


def test_only_an_admin_makes_a_code(admin: User) -> None:
    viewer = User.objects.create_user(username="vic", password="harbour lights at nine", role="operator")
    with pytest.raises(Denied):
        joining.make_code(viewer, "gpu-2")
    with pytest.raises(Invalid):
        joining.make_code(admin, "gpu 2; rm -rf /")
    assert not JoinCode.objects.exists()


def test_a_host_that_is_there_is_joined_again_only_when_that_was_said(admin: User, host: Host) -> None:
    with pytest.raises(joining.TakenName):
        joining.make_code(admin, "gpu-1")
    Host.objects.filter(pk=host.pk).update(agent_instance="old.1", last_seen_at=timezone.now())
    _row, code = joining.make_code(admin, "gpu-1", again=True)
    assert Agent("t0ken", "old.1").work().status_code == 200, "the old key works until the new one is fetched"
    reply = wire.JoinReply.model_validate(redeem(code).json())
    assert (reply.host_id, reply.again) == (host.pk, True)
    assert Agent("t0ken", "old.1").work().status_code == 401
    assert Agent(reply.token, "new.1").work().status_code == 200, "it need not wait for the old one's silence"
    assert Host.objects.count() == 1


def test_the_panels_own_machine_and_unknown_names_are_not_joined_again(admin: User, host: Host) -> None:
    Host.objects.filter(pk=host.pk).update(is_local=True)
    for name in ("gpu-1", "gpu-9"):
        with pytest.raises(Invalid):
            joining.make_code(admin, name, again=True)


@pytest.mark.django_db(transaction=True)
def test_two_machines_with_one_code_make_one_host(servers: Any) -> None:
    admin = User.objects.create_user(username="ada", password="harbour lights at nine", role="admin")
    _row, code = joining.make_code(admin, "gpu-2")
    answers: list[int] = []

    def go() -> None:
        try:
            answers.append(redeem(code).status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=go) for _n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, 403, 403, 403]
    assert Host.objects.count() == 1


# --- one agent for one host ---------------------------------------------------------------------------------------------


def test_a_copied_machine_gets_no_work_while_the_first_one_speaks(host: Host) -> None:
    services.order_job(host=host, task=engine_task())
    first, copy = Agent("t0ken", "seatA.1"), Agent("t0ken", "seatB.1")
    assert first.work().status_code == 200
    for refused in (copy.work(), copy.report()):
        assert (refused.status_code, refused.json()["code"]) == (409, "link.twin")
        assert b"k3y" not in refused.content
    job = Job.objects.get(kind="engine")
    assert copy.client.post(f"/agent/v1/jobs/{job.pk}/log?offset=0", b"x", content_type="x/y").status_code == 409
    assert first.report().status_code == 200
    host.refresh_from_db()
    assert (host.agent_instance, host.link_trouble["code"]) == ("seatA.1", "link.twin")
    assert host_wording.trouble(host) is None, "it may be the same machine, started again a moment ago"
    since = timezone.now() - timedelta(minutes=2)
    host.link_trouble = {**host.link_trouble, "since": since.isoformat()}
    assert "second agent" in host_wording.trouble(host).text


def test_the_same_seat_is_let_in_at_once_when_its_agent_starts_again(host: Host) -> None:
    assert Agent("t0ken", "seatA.1").report().status_code == 200
    assert Agent("t0ken", "seatA.2").work().status_code == 200
    host.refresh_from_db()
    assert (host.agent_instance, host.link_trouble) == ("seatA.2", {})


def test_another_seat_is_let_in_after_silence_or_a_farewell(host: Host, settings: Any) -> None:
    assert Agent("t0ken", "seatA.1").report().status_code == 200
    silent = timezone.now() - timedelta(seconds=settings.BERTH_HOST_LOST_S + 1)
    Host.objects.filter(pk=host.pk).update(last_seen_at=silent)
    assert Agent("t0ken", "seatB.1").work().status_code == 200
    assert Agent("t0ken", "seatA.1").work().status_code == 409, "the first one is the copy now"
    assert Agent("t0ken", "seatA.1").leave().status_code == 204
    assert Agent("t0ken", "seatA.1").work().status_code == 409, "only who has the seat can free it"
    assert Agent("t0ken", "seatB.1").leave().status_code == 204
    assert Agent("t0ken", "seatA.2").work().status_code == 200


@pytest.mark.django_db(transaction=True)
def test_of_two_that_start_at_once_one_gets_the_work(servers: Any) -> None:
    Host.objects.create(name="gpu-1", token_hash=services.digest("t0ken"))
    answers: list[int] = []

    def go(n: int) -> None:
        try:
            answers.append(Agent("t0ken", f"seat{n}.1").work().status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=go, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, 409, 409, 409]


# --- versions -----------------------------------------------------------------------------------------------------------


def test_an_agent_with_another_wire_is_told_both_versions_and_what_to_run(host: Host, admin: User) -> None:
    agent = Agent("t0ken", "seatA.1", wire_version=wire.WIRE_VERSION + 1)
    for answer in (agent.work(), agent.report()):
        assert (answer.status_code, answer.json()["code"]) == (426, "link.version")
        said = answer.json()["message"] + answer.json()["hint"]
        assert "0.0.9" in said and VERSION in said and "berth-agent --update" in said
    host.refresh_from_db()
    assert host.link_trouble["code"] == "link.version"
    assert agent.client.get("/agent/v1/script").status_code == 200, "it can still fetch what makes it able again"
    _row, code = joining.make_code(admin, "gpu-2")
    assert redeem(code, **{wire.WIRE_HEADER: "99"}).status_code == 426
    assert redeem(code).status_code == 200, "the code was not used up"


def test_fields_that_are_not_known_are_passed_over(host: Host) -> None:
    assert Agent("t0ken", "seatA.1").report(of_tomorrow={"x": 1}).status_code == 200


# --- the clock ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [-3600.0, 0.0, 3600.0])
def test_times_of_a_host_with_a_wrong_clock_are_put_right(host: Host, off: float) -> None:
    job = services.order_job(host=host, task=engine_task())
    now = timezone.now().timestamp()
    status = {"id": str(job.pk), "kind": "engine", "state": "running", "pid": 7, "started_at": now + off - 10}
    message = {"agent_version": VERSION, "sent_at": now + off, "rev": 1, "round_trip_s": 0.2, "jobs": [status]}
    reports.take_report(host, wire.Report.model_validate(message))
    host.refresh_from_db()
    job.refresh_from_db()
    assert host.clock_skew_s == pytest.approx(off + 0.1, abs=1.0)
    started = job.status["started_at"]
    assert started == pytest.approx(now - 10, abs=1.5)
    later = {**message, "sent_at": now + off - 4.0}  # a slow network looks like another clock
    reports.take_report(host, wire.Report.model_validate(later))
    job.refresh_from_db()
    assert job.status["started_at"] == started, "what was known does not move"


# --- restarts -----------------------------------------------------------------------------------------------------------


def test_a_restart_of_the_machine_is_noticed_once_and_by_our_clock(host: Host) -> None:
    now = timezone.now().timestamp()

    def say(boot: str, started: float) -> None:
        facts = {**FACTS, "boot_id": boot, "boot_time": started}
        message = {"agent_version": VERSION, "sent_at": now + 3600, "rev": 1, "facts": facts}
        reports.take_report(host, wire.Report.model_validate(message))
        host.refresh_from_db()

    say("boot-1", now + 3600 - 9000)
    assert host.restarted_at is None, "a first report is no restart"
    say("boot-1", now + 3600 - 9003)
    assert host.restarted_at is None, "a clock that was set is no restart"
    say("boot-2", now + 3600 - 60)
    assert host.restarted_at is not None
    assert host.restarted_at.timestamp() == pytest.approx(now - 60, abs=2)
    say("boot-2", now + 3600 - 60)
    assert Event.objects.filter(verb="host.restarted").count() == 1


# --- leaving ------------------------------------------------------------------------------------------------------------


def test_a_host_that_is_taken_away_says_what_became_of_its_jobs_and_its_key_ends(host: Host) -> None:
    job = services.order_job(host=host, task=engine_task())
    agent = Agent("t0ken", "seatA.1")
    assert agent.work().status_code == 200
    last = {"agent_version": VERSION, "sent_at": 1.0, "rev": 1}
    last["jobs"] = [{"id": str(job.pk), "kind": "engine", "state": "ended", "stop_asked": True}]
    answer = agent.client.post("/agent/v1/leave?for=good", json.dumps(last), content_type="application/json")
    assert answer.status_code == 204
    job.refresh_from_db()
    host.refresh_from_db()
    assert (job.state, host.link_trouble["code"]) == ("ended", "link.left")
    assert host.lost_at is not None
    assert agent.work().status_code == 401
    assert seats.seat_of("a.b") == "a"


def test_a_copy_that_is_taken_away_does_not_take_the_machine_along(host: Host) -> None:
    job = services.order_job(host=host, task=engine_task())
    first, copy = Agent("t0ken", "seatA.1"), Agent("t0ken", "seatB.1")
    assert first.report(jobs=[{"id": str(job.pk), "kind": "engine", "state": "running"}]).status_code == 200
    last = {"agent_version": VERSION, "sent_at": 1.0, "rev": 1}
    last["jobs"] = [{"id": str(job.pk), "kind": "engine", "state": "ended"}]
    answer = copy.client.post("/agent/v1/leave?for=good", json.dumps(last), content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (409, "link.twin")
    job.refresh_from_db()
    assert job.state == "running" and first.work().status_code == 200


@pytest.mark.parametrize(
    ("hostname", "name"),
    [
        ("GPU 1/../x\n.lan", "gpu-1"),
        ("<b>box</b>", "b-box-b"),
        ("...", "host"),
        ("\u4e3b\u673a", "host"),
        ("a" * 500, "a" * 50),
    ],
)
def test_a_machine_may_call_itself_what_it_likes(admin: User, hostname: str, name: str) -> None:
    _row, code = joining.make_code(admin, "")
    assert redeem(code, hostname).json()["host_name"] == name


@pytest.mark.django_db(transaction=True)
def test_machines_of_one_name_that_join_at_once_get_names_of_their_own(servers: Any) -> None:
    admin = User.objects.create_user(username="ada", password="harbour lights at nine", role="admin")
    codes = [joining.make_code(admin, "")[1] for _n in range(6)]
    answers: list[int] = []

    def go(code: str) -> None:
        try:
            answers.append(redeem(code, "node.lan").status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=go, args=(code,)) for code in codes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 6
    assert sorted(Host.objects.values_list("name", flat=True)) == ["node", *(f"node-{n}" for n in range(2, 7))]
