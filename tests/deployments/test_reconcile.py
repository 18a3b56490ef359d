"""The loop on the database: rounds, races, lost leases, reservations, sweeps. No broker and no host are needed."""

import threading
import uuid
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from deployments import acts, events, moves, preflight, probe, services
from deployments.gateway.ask import Answer
from deployments.models import Deployment, Run, Transition
from deployments.reconcile import load, reconcile, sweep
from deployments.states import State
from panel.core import claims
from panel.fleet import hosts, logstore
from panel.fleet.models import Host, Job, Reservation
from panel.fleet.runtimes import services as runtimes
from tests.deployments import builders

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("panel.core.queue.send", lambda task, *args: True)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def row(db: None) -> Deployment:
    copy = builders.make_copy(builders.make_host())
    return builders.make_deployment(copy, desired="running", wanted_by="maria")


def states(row: Deployment) -> list[str]:
    return list(Transition.objects.filter(deployment=row).order_by("pk").values_list("new", flat=True))


def say(run: Run, **status: Any) -> None:
    """What the host reports of the run's job."""
    job = run.job
    job.status = {**job.status, **status}
    job.state = status.get("state", job.state)
    if job.state in ("ended", "refused"):
        job.ended_at = timezone.now()
    job.save()


def test_one_round_goes_from_wanted_to_ordered(row: Deployment) -> None:
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "starting"
    assert states(row) == ["queued", "placing", "preparing", "starting"]
    run = row.run
    assert run.job_id == run.pk, "the job's id is the run's"
    assert run.started_by == "maria"
    assert "VLLM_API_KEY" not in str(run.job.order) and run.job.secrets
    assert Reservation.objects.get().holder == str(run.pk)
    assert Host.objects.get().work_rev > 1
    assert row.due_at is not None and row.claim_token is None


def test_a_second_round_changes_nothing(row: Deployment) -> None:
    reconcile(row.pk)
    before = (Run.objects.count(), Job.objects.count(), Transition.objects.count(), Host.objects.get().work_rev)
    reconcile(row.pk)
    assert (Run.objects.count(), Job.objects.count(), Transition.objects.count(), Host.objects.get().work_rev) == before


def test_listening_asks_once_and_the_answer_makes_it_ready(row: Deployment, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(acts.queue, "send", lambda task, *args: asked.append(args) or True)
    reconcile(row.pk)
    row.refresh_from_db()
    say(row.run, state="running", listening=True, port=1234)
    reconcile(row.pk)
    reconcile(row.pk)
    assert asked == [(str(row.run_id),)]
    answer = Answer(200, "", 12.0, "engine", {"choices": [{"message": {"content": "Paris."}}]})
    monkeypatch.setattr(probe, "ask", lambda *args, **kwargs: answer)
    probe.ask_run(str(row.run_id))
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "ready"
    row.run.refresh_from_db()
    assert row.run.answer["answer"] == "Paris." and row.run.ready_at is not None


@pytest.mark.parametrize(
    ("answer", "tries", "failed"),
    [
        (Answer(500, "boom", 1.0, "engine", None), 1, False),
        (Answer(503, "", 1.0, "panel", {"berth": {"who": "panel"}}), 0, False),
        (Answer(0, "unreachable", 1.0), 0, False),
        (Answer(0, "timeout", 1.0), 1, False),
        (Answer(502, "", 1.0, "panel", {"berth": {"who": "engine"}}), 1, False),
    ],
)
def test_only_the_engines_own_errors_count_as_tries(row, monkeypatch, answer, tries, failed) -> None:
    reconcile(row.pk)
    row.refresh_from_db()
    monkeypatch.setattr(probe, "ask", lambda *args, **kwargs: answer)
    probe.ask_run(str(row.run_id))
    row.run.refresh_from_db()
    assert (row.run.probe["tries"], row.run.probe["failed"]) == (tries, failed)


def test_three_errors_of_the_engine_end_the_start(row: Deployment, monkeypatch) -> None:
    reconcile(row.pk)
    row.refresh_from_db()
    say(row.run, state="running", listening=True, port=1)
    monkeypatch.setattr(probe, "ask", lambda *args, **kwargs: Answer(500, "boom", 1.0, "engine", None))
    for _ in range(3):
        probe.ask_run(str(row.run_id))
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.reason["code"], row.run.job.desired) == ("stopping", "answer.failed", "stop")
    row.run.refresh_from_db()
    say(row.run, state="ended", exit_code=0, stop_asked=True)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.reason["code"]) == ("failed", "answer.failed")
    assert not Reservation.objects.exists()


def test_no_room_waits_with_reasons_and_takes_its_chance(row: Deployment) -> None:
    host = Host.objects.get()
    facts = {**host.facts, "ram_available_mib": 10}
    Host.objects.filter(pk=host.pk).update(facts=facts)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.reason["code"]) == ("queued", "place.none")
    assert row.reason["params"]["candidates"][0]["code"] == "host.ram_used"
    assert not Run.objects.exists() and not Reservation.objects.exists()
    Host.objects.filter(pk=host.pk).update(facts=builders.FACTS)
    events.room_changed()
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "starting"


def test_what_no_waiting_can_change_fails_at_once(row: Deployment) -> None:
    Host.objects.get().runtimes.all().delete()
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "failed" and row.run.job is None and row.run.outcome == "failed"
    assert row.reason["params"]["candidates"][0]["code"] == "runtime.none"


def test_a_stop_before_the_order_ends_it_without_a_job(row: Deployment, monkeypatch) -> None:
    monkeypatch.setattr(acts, "order", lambda claim, row: services.stop(row, actor=None))
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.run.outcome, row.run.job) == ("stopped", "stopped", None)
    assert not Reservation.objects.exists() and not Job.objects.exists()


def test_a_failure_is_planned_again_with_growing_pauses_and_given_up(row: Deployment, settings) -> None:
    settings.BERTH_RESTART_FIRST_S = 10
    pauses = []
    for attempt in range(7):
        reconcile(row.pk)
        row.refresh_from_db()
        if row.state != "starting":
            break
        Run.objects.filter(pk=row.run_id).update(ready_at=timezone.now())  # it was ready: dying then is curable
        say(row.run, state="ended", exit_code=1)
        reconcile(row.pk)
        row.refresh_from_db()
        assert row.state == "failed" and row.attempts == attempt
        if row.next_attempt_at is None:
            break
        pauses.append(round((row.next_attempt_at - timezone.now()).total_seconds()))
        Deployment.objects.filter(pk=row.pk).update(next_attempt_at=timezone.now())
    assert pauses == [10, 20, 40, 80, 160]
    assert row.runs.count() == 6
    assert list(row.runs.order_by("number").values_list("cause", flat=True))[:2] == ["person", "restart_policy"]


def test_a_persons_start_begins_the_count_anew(row: Deployment) -> None:
    Deployment.objects.filter(pk=row.pk).update(state="failed", attempts=5)
    services.start(row, actor=None)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.attempts, row.run.cause) == ("starting", 0, "person")


def test_an_unproven_stop_keeps_its_memory_and_starts_nothing_beside_it(row: Deployment) -> None:
    reconcile(row.pk)
    row.refresh_from_db()
    say(row.run, state="running")
    services.stop(row, actor=None)
    reconcile(row.pk)
    say(row.run, state="stopping", leftover_pids=[77])
    Deployment.objects.filter(pk=row.pk).update(deadline_at=timezone.now())
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.reason["params"]["pids"]) == ("failed", [77])
    assert Reservation.objects.exists()
    services.start(row, actor=None)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.runs.count()) == ("failed", 1)
    row.run.refresh_from_db()
    say(row.run, state="ended", exit_code=0, stop_asked=True)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.runs.count()) == ("starting", 2)
    assert Reservation.objects.get().holder == str(row.run_id)


class Slept:
    """A worker that decided, and slept through its lease before it acted: another one has the row now."""

    def __init__(self, row: Deployment) -> None:
        self.claim = claims.Claim(Deployment, row.pk)
        assert self.claim.take()
        self.row = load(row.pk)
        Deployment.objects.filter(pk=row.pk).update(claim_token=uuid.uuid4())


def started(row: Deployment) -> Deployment:
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "starting"
    say(row.run, state="running", port=1)
    return row


@pytest.mark.parametrize(
    "act",
    [
        lambda claim, row: acts.stop_run(claim, row, {"code": "start.deadline", "params": {}}),
        lambda claim, row: acts.end_run(claim, row, State.FAILED),
        lambda claim, row: acts.end_with(claim, row, State.FAILED, {"code": "x", "params": {}}),
    ],
    ids=["stop_run", "end_run", "end_with"],
)
def test_who_slept_through_the_lease_writes_nothing(row: Deployment, act: Any) -> None:
    slept = Slept(started(row))
    with pytest.raises(moves.LeaseLost):
        act(slept.claim, slept.row)
    run = Run.objects.get()
    assert (run.ended_at, run.reason, run.job.desired) == (None, {}, "run")
    assert Reservation.objects.filter(holder=str(run.pk)).exists()
    assert states(row)[-1] == "starting"


def test_who_lost_the_lease_in_a_round_leaves_it(row: Deployment, monkeypatch) -> None:
    """Not fifty more rounds that all write nothing."""
    looked = []

    def lose(claim: Any, step_row: Any, step: Any) -> None:
        looked.append(step)
        Deployment.objects.filter(pk=row.pk).update(claim_token=uuid.uuid4(), claim_until=timezone.now())

    monkeypatch.setattr("deployments.reconcile.do", lose)
    reconcile(row.pk)
    assert len(looked) == 1


def test_a_log_that_cannot_be_read_holds_up_no_end(row: Deployment, monkeypatch) -> None:
    run = started(row).run
    logstore.append(run.pk, 0, b"something\n")

    def stumble() -> Any:
        raise ZeroDivisionError

    feed = acts.phases.feed
    monkeypatch.setattr(acts.phases, "feed", lambda data, *more: stumble() if data else feed(data, *more))
    say(run, state="ended", exit_code=3, log_size=10)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.reason["code"]) == ("failed", "exit.code")


@pytest.mark.parametrize("words", ["Par\0is", "half \ud83d"])
def test_an_answer_that_json_cannot_hold_is_an_answer(row: Deployment, monkeypatch, words: str) -> None:
    started(row)
    answer = Answer(200, "", 12.0, "engine", {"choices": [{"message": {"content": words}}]})
    monkeypatch.setattr(probe, "ask", lambda *args, **kwargs: answer)
    probe.ask_run(str(row.run_id))
    assert Run.objects.get().answer["answer"].strip()
    Run.objects.update(answer=None)
    monkeypatch.setattr(probe, "ask", lambda *args, **kwargs: Answer(500, words, 1.0, "engine", None))
    probe.ask_run(str(row.run_id))
    assert Run.objects.get().probe["tries"] == 1


def test_sweep_finds_due_rows_once(row: Deployment, monkeypatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr("deployments.events.send", lambda pk: sent.append(pk) or True)
    Deployment.objects.filter(pk=row.pk).update(due_at=timezone.now())
    assert sweep() == 1
    assert sweep() == 0, "pushed into the future, so that a slow queue is not filled"
    assert sent == [row.pk]


def test_without_a_broker_the_sweep_looks_after_rows_itself(row: Deployment, monkeypatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: False)
    Deployment.objects.filter(pk=row.pk).update(due_at=timezone.now())
    sweep()
    row.refresh_from_db()
    assert row.state == "starting"


@pytest.mark.django_db(transaction=True)
def test_eight_workers_at_once_make_one_run(monkeypatch) -> None:
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, desired="running")
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        reconcile(row.pk)
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row.refresh_from_db()
    assert (row.state, Run.objects.count(), Job.objects.count()) == ("starting", 1, 1)


@pytest.mark.django_db(transaction=True)
def test_two_starts_at_once_cannot_take_the_same_memory() -> None:
    """Each alone fits; together they do not. The database's CHECK decides."""
    host = builders.make_host()
    copy = builders.make_copy(host)
    Host.objects.filter(pk=host.pk).update(ram_total_mib=12_000, facts={**builders.FACTS, "ram_available_mib": 12_000})
    rows = [builders.make_deployment(copy, f"d-{n}", desired="running") for n in range(3)]
    start = threading.Barrier(3)

    def work(pk: int) -> None:
        start.wait()
        reconcile(pk)
        connection.close()

    threads = [threading.Thread(target=work, args=(row.pk,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    host.refresh_from_db()
    started = Deployment.objects.filter(state="starting").count()
    assert started == 1
    assert Deployment.objects.filter(state="queued").count() == 2
    assert host.ram_reserved_mib == sum(Reservation.objects.values_list("mib", flat=True)) <= host.ram_total_mib


def test_without_the_broker_the_question_is_asked_beside_the_loop(row: Deployment, monkeypatch) -> None:
    asked: list[str] = []
    done = threading.Event()

    def ask(run_id: str) -> None:
        asked.append(run_id)
        done.set()

    monkeypatch.setattr("panel.core.queue.send", lambda task, *args: False)
    monkeypatch.setattr(probe, "ask_run", ask)
    reconcile(row.pk)
    row.refresh_from_db()
    say(row.run, state="running", listening=True, port=1234)
    reconcile(row.pk)
    assert done.wait(10)
    assert asked == [str(row.run_id)]


def _set_aside(copy: Any) -> None:
    hosts.drain(copy.host, actor=None)


def _forget(copy: Any) -> None:
    Host.objects.filter(pk=copy.host_id).update(is_local=False)
    hosts.forget(copy.host, actor=None)


def _remove_engine(copy: Any) -> None:
    copy.host.runtimes.update(origin="managed")
    runtimes.remove(copy.host.runtimes.get(), actor=None)


@pytest.mark.parametrize("act", [_set_aside, _forget, _remove_engine])
def test_what_changes_between_the_look_and_the_start_stops_the_start(
    row: Deployment, monkeypatch: pytest.MonkeyPatch, act: Any
) -> None:
    looked = preflight.check

    def look_then_change(*args: Any, **kwargs: Any) -> Any:
        found = looked(*args, **kwargs)
        monkeypatch.setattr(preflight, "check", looked)
        act(found.copy)
        return found

    monkeypatch.setattr(preflight, "check", look_then_change)
    reconcile(row.pk)
    row.refresh_from_db()
    assert not Job.objects.filter(kind="engine").exists() and not Reservation.objects.exists()
    assert row.run is None or row.run.job is None
    Deployment.objects.filter(pk=row.pk).update(next_attempt_at=None)
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.reason["code"], "the next look says why"


def test_a_host_that_is_forgotten_before_the_order_ends_the_start(row: Deployment, monkeypatch: Any) -> None:
    ordered = acts.order

    def forget_then_order(claim: Any, row: Deployment) -> None:
        _forget(row.run.copy)
        ordered(claim, row)

    monkeypatch.setattr(acts, "order", forget_then_order)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.run.reason["code"]) == (State.FAILED, "host_forgotten")
    assert row.run.ended_at is not None and not Reservation.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_pages_are_told_when_they_can_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page looks at once when it is told: before the commit it would see what was, and wait for its next turn."""
    told: list[tuple[str, bool]] = []

    def announce(pk: int, *, state: str = "", name: str = "") -> None:
        told.append((state, connection.in_atomic_block))

    monkeypatch.setattr("deployments.events.announce", announce)
    row = builders.make_deployment(builders.make_copy(builders.make_host()), desired="running", wanted_by="maria")
    reconcile(row.pk)
    row.refresh_from_db()
    say(row.run, state="ended", exit_code=1)
    reconcile(row.pk)
    states_told = [state for state, _inside in told if state]
    assert states_told == ["queued", "placing", "preparing", "starting", "failed"]
    assert not any(inside for _state, inside in told)
