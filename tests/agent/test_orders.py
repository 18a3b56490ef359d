"""The panel's work is read without trust."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from panel.fleet.agent import orders

ONE, TWO = str(uuid.uuid4()), str(uuid.uuid4())
SCAN = {"kind": "scan", "roots": ["/models"]}


def parse(*jobs: Any, rev: Any = 3) -> list[orders.Order]:
    got, found = orders.parse(json.dumps({"rev": rev, "jobs": list(jobs)}).encode())
    assert got == rev
    return found


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"rev": "3"}',
        b'{"rev": -1}',
        b'{"rev": true}',
        b'{"rev": 1.5}',
        b"\xff\xfe",
        b'{"rev": 1, "jobs": {}}',
        b'{"rev": 1, "jobs": [null]}',
        b'{"rev": 1, "jobs": [{}]}',
        b"[" * 100000,
        b'{"rev": 1, "jobs": [{"id": "../../x"}]}',
        b'{"rev": 99999999999999999999999}',
        b"<html>login</html>",
    ],
)
def test_nonsense_as_a_whole(raw: bytes) -> None:
    with pytest.raises(orders.Unreadable):
        orders.parse(raw)


def test_too_many_orders() -> None:
    with pytest.raises(orders.Unreadable):
        parse(*({"id": ONE, "task": SCAN} for _ in range(orders.MAX_ORDERS + 1)))


@pytest.mark.parametrize(
    ("task", "code"),
    [
        (None, "kind_unknown"),
        ({"kind": "shell", "command": "id"}, "kind_unknown"),
        ({"kind": "engine", "argv": [], "model_path": "/m"}, "order_unreadable"),
        ({"kind": "engine", "argv": "id", "model_path": "/m"}, "order_unreadable"),
        ({"kind": "engine", "argv": ["x"] * 501, "model_path": "/m"}, "order_unreadable"),
        ({"kind": "engine", "argv": ["x"]}, "order_unreadable"),
        ({"kind": "engine", "argv": ["x"], "model_path": "/m", "env": {"A": 1}}, "order_unreadable"),
        ({"kind": "scan", "roots": "/"}, "order_unreadable"),
    ],
)
def test_one_bad_order_hides_no_other(task: Any, code: str) -> None:
    bad, good = parse({"id": ONE, "task": task}, {"id": TWO, "task": SCAN})
    assert bad.task is None and bad.refusal is not None and bad.refusal.code == code
    assert good.task is not None and good.kind == "scan"


def test_a_stop_works_whatever_the_rest_looks_like() -> None:
    (order,) = parse({"id": ONE, "desired": "stop", "task": {"kind": "engine"}})
    assert order.desired == "stop"


@pytest.mark.parametrize(("given", "taken"), [(5, 5.0), (-1, 0.0), (1e9, orders.MAX_GRACE_S), (float("nan"), 30.0)])
def test_the_grace_is_bounded(given: float, taken: float) -> None:
    (order,) = parse({"id": ONE, "task": SCAN, "grace_s": given})
    assert order.grace_s == taken


def test_unknown_fields_of_a_newer_panel_are_ignored() -> None:
    (order,) = parse({"id": ONE, "task": {**SCAN, "depth": 3}, "colour": "blue"})
    assert order.refusal is None
