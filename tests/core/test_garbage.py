"""The web process looks for garbage in small slices, and not through what is there for good."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from panel.core import garbage


@pytest.fixture
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Clock:
    """As much of an event loop as is used: what it is told to call later."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], Any]]] = []

    def call_later(self, seconds: float, act: Callable[[], Any]) -> None:
        self.later.append((seconds, act))


def test_what_lives_is_taken_out_of_the_search_at_the_start_and_after_the_first_visitors(as_before: None) -> None:
    clock: Any = Clock()
    garbage.settle(clock)
    assert gc.get_threshold() == garbage.THRESHOLDS
    kept = gc.get_freeze_count()
    assert kept > 10_000 and len(gc.get_objects(generation=2)) < 1000
    assert [seconds for seconds, _act in clock.later] == list(garbage.AGAIN_S)
    loaded = [[number] for number in range(5000)]  # as a template is, by the first who looks at its page
    clock.later[0][1]()
    assert gc.get_freeze_count() >= kept + len(loaded)
