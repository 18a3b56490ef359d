"""Leases: one holder at a time, lost ones write nothing, nudges are never slept through."""

import threading
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from deployments.models import Deployment
from panel.core import claims
from panel.core.claims import Claim, hold, nudge

pytestmark = pytest.mark.django_db


@pytest.fixture
def pk(db: None) -> int:
    return Deployment.objects.create(name="a").pk


def test_one_holder_at_a_time_and_free_again(pk: int) -> None:
    with hold(Deployment, pk) as first:
        assert first is not None
        with hold(Deployment, pk) as second:
            assert second is None
    with hold(Deployment, pk) as third:
        assert third is not None


def test_a_vanished_row_gives_no_claim(db: None) -> None:
    with hold(Deployment, 999) as claim:
        assert claim is None


def test_a_lease_that_ran_out_goes_to_the_next_and_the_first_writes_nothing(pk: int) -> None:
    slow = Claim(Deployment, pk)
    assert slow.take()
    Deployment.objects.filter(pk=pk).update(claim_until=timezone.now() - timedelta(seconds=1))
    quick = Claim(Deployment, pk)
    assert quick.take()
    assert slow.rows().update(state="failed") == 0
    assert not slow.renew()
    assert not slow.release(wake=0, due_at=None)
    slow.drop()
    assert quick.rows().update(state="queued") == 1


def test_a_release_that_meets_a_nudge_is_refused(pk: int) -> None:
    claim = Claim(Deployment, pk)
    assert claim.take()
    seen = Deployment.objects.get(pk=pk).wake
    assert nudge(Deployment.objects.filter(pk=pk)) == 1
    assert not claim.release(wake=seen, due_at=None)
    assert claim.release(wake=seen + 1, due_at=None)
    row = Deployment.objects.get(pk=pk)
    assert (row.claim_token, row.due_at) == (None, None)


@pytest.mark.django_db(transaction=True)
def test_the_heartbeat_keeps_a_long_act_alive(settings) -> None:
    settings.BERTH_CLAIM_S = 2.0  # shorter would test the machine's load
    pk = Deployment.objects.create(name="long").pk
    with hold(Deployment, pk) as claim:
        assert claim is not None
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            with hold(Deployment, pk) as other:
                assert other is None, "the lease ran out under its holder"
            time.sleep(0.1)
    assert not claims._heartbeat._claims


@pytest.mark.django_db(transaction=True)
def test_of_many_that_try_at_once_one_wins() -> None:
    pk = Deployment.objects.create(name="race").pk
    start, wins, lock = threading.Barrier(8), [], threading.Lock()

    def attempt() -> None:
        start.wait()
        if Claim(Deployment, pk).take():
            with lock:
                wins.append(1)
        connection.close()

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
