"""What tests share that send thousands of odd requests."""

from collections.abc import Iterator

import pytest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections


@pytest.fixture
def one_connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No broker; and one connection, so that each case can be taken back."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)
