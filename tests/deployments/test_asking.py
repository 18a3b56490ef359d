"""Who asks the test question says so while asking: one that was killed is missed soon, one that lives is not doubled."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from deployments import acts, probe
from deployments.gateway.ask import Answer
from deployments.models import Run
from deployments.reconcile import reconcile
from tests.deployments import builders
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
LEASE_S = 0.6


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run whose engine listens and whose question was sent."""
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    monkeypatch.setattr("panel.core.queue.send", lambda task, *args: True)
    row = builders.make_deployment(builders.make_copy(builders.make_host()), desired="running", wanted_by="maria")
    reconcile(row.pk)
    job = Run.objects.get().job
    job.status, job.state = {"listening": True, "port": 1234, "state": "running"}, "running"
    job.save()
    with override_settings(BERTH_CLAIM_S=LEASE_S):
        reconcile(row.pk)
        yield Run.objects.get()


def state(run: Run) -> str:
    run.refresh_from_db()
    return acts.probe_state(run, timezone.now())[0]


def test_a_question_that_nobody_takes_up_is_asked_again(run: Run) -> None:
    assert state(run) == "asked"
    until(lambda: state(run) == "idle", timeout=3, why="its task was lost with the broker")


def test_who_asks_for_long_is_not_doubled_and_who_is_gone_is_missed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    go = threading.Event()

    def ask(*args: Any, **kwargs: Any) -> Answer:
        asked.append(1)
        go.wait(30)
        return Answer(500, "boom", 1.0, "engine", None)

    monkeypatch.setattr(probe, "ask", ask)
    thread = threading.Thread(target=acts._ask_here, args=(str(run.pk),))
    thread.start()
    until(lambda: asked, why="it asks")
    end = time.monotonic() + 3 * LEASE_S
    while time.monotonic() < end:
        assert state(run) == "asked"
        probe.ask_run(str(run.pk))
    assert asked == [1], "a second one that is sent meanwhile asks nothing"
    # Another worker has it now, as after a lease that was slept through: the first one's late word is not counted.
    run.refresh_from_db()
    Run.objects.filter(pk=run.pk).update(probe={**run.probe, "by": "another", "alive_at": time.time()})
    go.set()
    thread.join(30)
    run.refresh_from_db()
    assert (run.probe.get("tries"), run.probe["by"], run.probe["done_at"]) == (None, "another", None)
    until(lambda: state(run) == "idle", timeout=3, why="the other one was killed")


def test_a_question_that_breaks_off_is_asked_again_after_a_pause(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*args: Any, **kwargs: Any) -> Answer:
        raise OSError("no more files")

    monkeypatch.setattr(probe, "ask", ask)
    with pytest.raises(OSError, match="files"):
        probe.ask_run(str(run.pk))
    run.refresh_from_db()
    name, due = acts.probe_state(run, timezone.now())
    assert name == "idle" and 0 < due <= probe.PAUSE_S
