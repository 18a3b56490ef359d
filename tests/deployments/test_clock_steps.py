"""The panel's clock is put an hour forward or back in the middle of everything: nothing fails, nothing waits for it."""

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from deployments import acts, placing, probe, ticker
from deployments import reconcile as rounds
from deployments import services as services_of_people
from deployments.models import Deployment, Run
from deployments.reconcile import reconcile, sweep
from panel.core import claims
from panel.core.clock import Clock
from panel.fleet import samples, services
from panel.fleet.models import Host
from tests.deployments import builders
from tests.deployments.test_reconcile import say

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
Move = Callable[[timedelta], None]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, broker: Any) -> None:
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    monkeypatch.setattr("panel.core.queue.send", lambda task, *args: True)


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Move:
    """Put the clock forward from where it is (back: less than nothing), in all the ways that modules ask for it."""

    def move(by: timedelta) -> None:
        real = timezone.now

        class Moved(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return real().astimezone(tz) + by

        monkeypatch.setattr(timezone, "now", lambda: real() + by)
        monkeypatch.setattr(samples, "datetime", Moved)

    return move


@pytest.fixture
def row() -> Deployment:
    return builders.make_deployment(builders.make_copy(builders.make_host()), desired="running")


def fresh(row: Deployment) -> Deployment:
    return Deployment.objects.select_related("run__job").get(pk=row.pk)


def left_s(row: Deployment) -> float:
    assert row.deadline_at is not None
    return (row.deadline_at - timezone.now()).total_seconds()


@pytest.mark.parametrize("by", [HOUR, -HOUR, 3 * HOUR])
def test_a_start_keeps_what_is_left_of_its_time(row: Deployment, put: Move, by: timedelta) -> None:
    reconcile(row.pk)
    before = left_s(fresh(row))
    assert before > 3000
    put(by)
    for _ in range(3):  # a correction is made once
        reconcile(row.pk)
        assert fresh(row).state == "starting"
        assert abs(left_s(fresh(row)) - before) < 30
    assert fresh(row).state_since <= timezone.now()


@pytest.mark.parametrize("by", [HOUR, -HOUR])
@pytest.mark.parametrize("step", ["place", "order"])
def test_a_clock_that_jumps_between_two_steps_fails_nothing(
    row: Deployment, put: Move, monkeypatch: pytest.MonkeyPatch, step: str, by: timedelta
) -> None:
    room = placing if step == "place" else acts
    real = getattr(room, step)

    def then_jump(*args: Any) -> Any:
        done = real(*args)
        put(by)
        return done

    monkeypatch.setattr(room, step, then_jump)
    reconcile(row.pk)
    assert fresh(row).state == "starting"
    assert 3000 < left_s(fresh(row)) < 3700


@pytest.mark.parametrize("by", [HOUR, -HOUR])
@pytest.mark.parametrize("at", range(7))
def test_a_clock_that_jumps_after_a_look_fails_nothing(
    row: Deployment, put: Move, monkeypatch: pytest.MonkeyPatch, at: int, by: timedelta
) -> None:
    """Whatever is decided is written by another clock than that of the look."""
    real, count = rounds.decide, itertools.count()

    def then_jump(seen: Any) -> Any:
        step = real(seen)
        if next(count) == at:
            put(by)
        return step

    monkeypatch.setattr(rounds, "decide", then_jump)
    for _ in range(4):
        reconcile(row.pk)
    assert fresh(row).state == "starting"
    assert 3000 < left_s(fresh(row)) < 3700
    say(fresh(row).run, state="running")
    services_of_people.stop(fresh(row), actor=None)
    put(timedelta(0))
    for _ in range(4):
        reconcile(row.pk)
    assert fresh(row).state == "stopping"
    assert 200 < left_s(fresh(row)) < 400


def test_a_panel_that_was_away_for_longer_than_a_start_may_take_asks_before_it_judges(
    row: Deployment, put: Move
) -> None:
    """The engine was listening all the while; nobody was there to ask it."""
    reconcile(row.pk)
    say(fresh(row).run, state="running", listening=True, port=1)
    put(2 * HOUR)
    reconcile(row.pk)
    found = fresh(row)
    assert (found.state, bool(found.run.probe.get("asked_at"))) == ("starting", True)


def test_time_in_which_someone_looked_counts(row: Deployment, put: Move) -> None:
    reconcile(row.pk)
    for _ in range(73):
        put(timedelta(seconds=50))
        reconcile(row.pk)
    assert fresh(row).state == "stopping" and fresh(row).reason["code"] == "start.deadline"


def test_a_stop_that_nobody_watched_is_not_called_unproven(row: Deployment, put: Move) -> None:
    reconcile(row.pk)
    Deployment.objects.update(desired="stopped")
    reconcile(row.pk)
    assert fresh(row).state == "stopping"
    put(HOUR)
    reconcile(row.pk)
    assert fresh(row).state == "stopping"
    say(fresh(row).run, state="ended", signal=15, stop_asked=True)
    reconcile(row.pk)
    assert fresh(row).state == "stopped"


def test_a_planned_restart_does_not_wait_an_hour_more(row: Deployment, put: Move) -> None:
    reconcile(row.pk)
    Run.objects.update(ready_at=timezone.now())
    say(fresh(row).run, state="ended", exit_code=1)
    reconcile(row.pk)
    assert fresh(row).state == "failed"
    planned = (fresh(row).next_attempt_at - timezone.now()).total_seconds()
    assert 0 < planned <= 10
    put(-HOUR)
    ticker.clock_moved()
    reconcile(row.pk)
    assert 0 < (fresh(row).next_attempt_at - timezone.now()).total_seconds() <= planned + 5
    put(timedelta(seconds=planned + 6))
    reconcile(row.pk)
    assert fresh(row).state == "starting"


def test_what_was_due_soon_is_not_due_in_an_hour(row: Deployment, put: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    reconcile(row.pk)
    put(-HOUR)
    monkeypatch.setattr("deployments.events.send", lambda pk: sent.append(pk) or True)
    sweep()
    assert sent == []
    ticker.clock_moved()
    sweep()
    assert sent == [row.pk]


def test_a_lease_of_before_the_clock_was_put_back_is_nobodys(row: Deployment) -> None:
    gone = claims.Claim(Deployment, row.pk)
    assert gone.take()
    Deployment.objects.update(claim_until=timezone.now() + HOUR)
    assert claims.Claim(Deployment, row.pk).take()
    Deployment.objects.update(claim_until=timezone.now() + HOUR, due_at=timezone.now())
    assert sweep() == 1
    held = claims.Claim(Deployment, row.pk)
    assert held.take() and not claims.Claim(Deployment, row.pk).take(), "a lease of now holds"


def test_a_question_of_before_the_clock_was_put_back_is_asked_again(row: Deployment) -> None:
    now = timezone.now().timestamp()
    assert probe.lease({"asked_at": now}, now) > 0
    assert probe.lease({"asked_at": now + 3600}, now) == 0
    run = Run(probe={"asked_at": now + 3599, "done_at": now + 3600, "next_at": now + 3602})
    from deployments.acts import probe_state

    state, pause = probe_state(run, timezone.now())
    assert state == "idle" and pause <= probe.PAUSE_S


@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_no_host_is_lost_by_it_and_a_silent_one_is(row: Deployment, put: Move, settings: Any, by: timedelta) -> None:
    host = Host.objects.get()
    samples.keep(host.pk, {"at": timezone.now().timestamp()})
    put(by)
    ticker.clock_moved()
    assert services.mark_lost_hosts() == []
    put(timedelta(seconds=settings.BERTH_HOST_LOST_S + 1))
    assert services.mark_lost_hosts() == [host.pk], "an hour does not pass until its silence is noticed"


def test_a_step_is_noticed_once_and_small_differences_never(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = [1000.0]
    monkeypatch.setattr("panel.core.clock._ahead", lambda: ahead[0])
    clock = Clock()
    for _ in range(50):
        ahead[0] += 0.5
        assert clock.moved_s() == 0.0
    ahead[0] -= 3600
    assert clock.moved_s() == -3600
    assert clock.moved_s() == 0.0
