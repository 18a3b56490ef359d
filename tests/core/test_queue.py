"""Sending tasks by name."""

from typing import Any

import pytest
from celery import current_app, shared_task

from panel.core import queue, sse


@shared_task(name="tests.core.test_queue.noted")
def noted(_word: str) -> None: ...


@pytest.fixture(autouse=True)
def well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "_down_until", 0.0)


def test_a_task_is_sent_once_by_its_name_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    task = current_app.tasks[noted.name]
    monkeypatch.setattr(task, "apply_async", lambda args, _kwargs, **options: sent.append((args, options["retry"])))
    assert queue.send(noted.name, "word")
    assert sent == [(("word",), False)]


def test_one_that_this_process_does_not_know_is_sent_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(current_app._get_current_object(), "send_task", lambda *args, **_options: sent.append(args))
    assert queue.send("elsewhere.tasks.act", 7)
    assert sent == [("elsewhere.tasks.act", (7,), {})]


def test_a_broker_that_is_away_costs_one_try_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Any] = []

    def refuse(*args: Any, **_options: Any) -> None:
        tries.append(args)
        raise ConnectionError("no broker")

    monkeypatch.setattr(current_app.tasks[noted.name], "apply_async", refuse)
    assert not queue.send(noted.name, "word")
    assert sse.broker_away()
    assert not queue.send(noted.name, "word")
    assert len(tries) == 1
