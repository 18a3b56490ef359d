"""One timer for all waits: a limit ends the wait it was set for, and takes nobody else's cancellation for its own."""

import asyncio

import pytest

from panel.fleet.door.deadline import STEP_S, Limit, Rounds


async def test_a_wait_that_lasts_too_long_ends_and_one_that_does_not_goes_on() -> None:
    limit = Limit(Rounds())
    with limit.within(5):
        await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError), limit.within(0.05):
        await asyncio.sleep(5)
    with limit.within(5):  # and it can be used again
        await asyncio.sleep(STEP_S * 2)
    limit.close()


async def test_the_end_of_all_waits_counts_too() -> None:
    limit = Limit(Rounds())
    with pytest.raises(TimeoutError), limit.within(50, limit.now() + 0.05):
        await asyncio.sleep(5)
    limit.close()


async def test_a_cancellation_by_someone_else_stays_one() -> None:
    async def waiting() -> None:
        limit = Limit(Rounds())
        with limit.within(0.05):
            try:
                await asyncio.sleep(5)
            finally:
                await asyncio.sleep(STEP_S * 3)  # its time is over while it ends

    task = asyncio.ensure_future(waiting())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nothing_is_looked_at_when_nothing_is_open() -> None:
    rounds = Rounds()
    limit = Limit(rounds)
    assert rounds._timer is not None
    limit.close()
    await asyncio.sleep(STEP_S * 2.5)
    assert rounds._timer is None
    called = []
    limit = Limit(rounds)
    limit.soon = lambda: called.append(1)
    await asyncio.sleep(STEP_S * 3.5)
    assert called == [1]
    limit.close()
