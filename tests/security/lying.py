"""What tests of hosts that lie share: an honest message of every kind with every field, lies in it, and who reads it.

A message is made from the fields of the wire itself, so that a field that comes later is lied about as well.
"""

import copy
import functools
import itertools
import json
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import current_app
from django.db import connection, transaction
from django.dispatch import Signal
from django.test import Client
from hypothesis import strategies as st
from pydantic import BaseModel

import deployments.tasks  # noqa: F401
import models_catalog.tasks  # noqa: F401  (they are known by name then)
from panel.accounts.models import User
from panel.accounts.services import create_token
from panel.fleet import samples, services, wire
from panel.fleet.models import Host
from tests.deployments import builders
from tests.security.fuzzing import LONG, count, numbers, texts

TOKEN = "the token of a host"
MOST_TASKS = 40  # that one message makes; more go round in circles
NOT_HERE = ("deployments.tasks.probe", "deployments.tasks.live_probe")  # they ask an engine, and there is none

wide = st.sampled_from([float("nan"), float("inf"), 10**400, -(10**400), 4e11, 1 << 62, -(1 << 40), 1e300])
odd = st.one_of(
    texts, numbers, wide, st.sampled_from([None, True, [], {}, [None], {"a": {"b": []}}]),
    st.lists(texts, max_size=3), st.dictionaries(texts, texts, max_size=2),
)  # fmt: skip


# --- honest messages --------------------------------------------------------------------------------------------------


def full(model: type[BaseModel], **known: Any) -> dict[str, Any]:
    """A message with a value in every field, as JSON; `known` are those that matter, at any depth."""
    made = {name: example(field.annotation) for name, field in model.model_fields.items()}
    return merged(made, known)


def merged(made: Any, known: Any) -> Any:
    if isinstance(made, dict) and isinstance(known, dict):
        return {**made, **{name: merged(made.get(name), value) for name, value in known.items()}}
    if isinstance(made, list) and isinstance(known, list) and made and isinstance(made[0], dict):
        return [merged(made[0], value) for value in known]
    return known


def example(kind: Any) -> Any:
    """A value of a type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return example(inner[0])
    if origin is typing.Literal:
        return inner[0]
    if origin in (typing.Union, types.UnionType):
        return example(next(one for one in inner if one is not type(None)))
    if origin is tuple:
        return [example(one) for one in inner]
    if origin is list:
        return [example(inner[0])]
    if origin is dict:
        return {"a": example(inner[1])}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return full(kind)
    return {str: "x", int: 3, float: 1.5, bool: True, Any: 1}[kind]


GPU = {
    "index": 0,
    "uuid": "GPU-1",
    "name": "NVIDIA L40S",
    "total_mib": 46_068,
    "used_mib": 600,
    "compute_capability": "8.9",
}
DOOR = {"address": "10.0.0.7", "port": 8443, "certificate": "c" * 64, "accepts": ["a" * 64], "problem": ""}


def status(job_id: str, kind: str = "engine", **values: Any) -> dict[str, Any]:
    """What a host says of a job, every field of it."""
    usual = {"id": job_id, "kind": kind, "state": "running", "pid": 7, "port": 18_100, "argv": ["a"], "ended_at": None,
             "exit_code": None, "signal": None, "log_size": 4, "log_hole": [1, 2], "progress": {"phase": "checking"}}  # fmt: skip
    return full(wire.JobStatus, **{**usual, **values})


def report(*jobs: dict[str, Any]) -> dict[str, Any]:
    """A report with every field; `seq` 0, so that none is older than another."""
    facts = {**builders.FACTS, "gpus": [GPU], "disks": [{"path": "/", "total_mib": 100_000, "free_mib": 50_000}],
             "gpu_error": None, "allow_install": True}  # fmt: skip
    return full(
        wire.Report,
        wire=1,
        agent_version="0.1.0",
        seq=0,
        rev=1,
        facts=facts,
        jobs=list(jobs),
        door=DOOR,
        instance="a.b",
    )


# --- lies -------------------------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a message."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        found += places(item, (*path, key))
    return found


def put(message: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(message)
    at: Any = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


def lies(messages: list[dict[str, Any]], *skip: str, within: Callable[[tuple[Any, ...]], bool] = bool) -> Any:
    """(index of a message, the same with one lie). Where a number is, the lie is mostly another number."""
    where = [
        (n, path) for n, one in enumerate(messages) for path in places(one) if path[0] not in skip and within(path)
    ]

    def told(place: tuple[int, tuple[Any, ...]]) -> Any:
        message, path = messages[place[0]], place[1]
        is_number = isinstance(functools.reduce(lambda at, key: at[key], path, message), int | float)  # type: ignore[call-overload]
        values = st.one_of(numbers, wide, odd) if is_number else odd
        return values.map(lambda value: (place[0], put(message, path, value)))

    return st.sampled_from(where).flatmap(told)


def post(agent: Client, path: str, body: Any) -> int:
    """The status. Python writes NaN and Infinity into JSON, as an agent that lies would."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode("utf-8", "surrogatepass")
    status: int = agent.post(path, data, content_type="application/json").status_code
    return status


# --- who takes them ---------------------------------------------------------------------------------------------------


@pytest.fixture
def host(db: None) -> Iterator[Host]:
    made = builders.make_host("atlas", gpus=1)
    Host.objects.filter(pk=made.pk).update(token_hash=services.digest(TOKEN), is_local=False, door=builders.DOOR)
    samples.drop(made.pk)
    yield Host.objects.get(pk=made.pk)
    samples.drop(made.pk)


@pytest.fixture
def agent() -> Client:
    return Client(headers={"Authorization": f"Bearer {TOKEN}"}, raise_request_exception=True)


class Panel:
    """What the workers do after a message: the hooks of its commit, then the tasks that were sent, and theirs.

    A receiver or a hook that fails is a failure here; elsewhere it is a line in the log.
    """

    def __init__(self, agent: Client, host: Host, patch: pytest.MonkeyPatch) -> None:
        self.agent, self.host = agent, host
        self.tasks: list[tuple[str, tuple[Any, ...]]] = []
        self.sample: dict[str, Any] | None = None
        patch.setattr("panel.core.queue.send", self._send)
        patch.setattr("deployments.events.send", functools.partial(self._send, "deployments.tasks.reconcile"))
        patch.setattr(Signal, "send_robust", Signal.send)

    def _send(self, task: str, *args: Any) -> bool:
        self.tasks.append((task, args))
        return True

    def says(self, path: str, message: Any) -> int:
        """The answer's status, when everything that comes of it is done."""
        before = len(connection.run_on_commit)
        status = post(self.agent, f"/agent/v1/{path}", message)
        for _turn in range(MOST_TASKS):
            hooks, connection.run_on_commit[before:] = connection.run_on_commit[before:], []
            for _sids, hook, _robust in hooks:
                hook()
            if not self.tasks:
                return status
            name, args = self.tasks.pop(0)
            self.tasks = [task for task in self.tasks if task != (name, args)]
            if name not in NOT_HERE:
                current_app.tasks[name](*args)
        raise AssertionError(f"tasks without end: {self.tasks}")

    def lie(self, path: str, message: Any, look: Callable[[], None]) -> None:
        """One lie: taken or refused in words; when it was taken, everything can still be read. Then it never was."""
        with transaction.atomic():
            status = self.says(path, message)
            assert status in (200, 204, 422), status
            if status != 422:
                look()
            transaction.set_rollback(True)
        self.tasks.clear()
        if self.sample is None:
            samples.drop(self.host.pk)
        else:
            samples.keep(self.host.pk, self.sample)
        count(1)


@pytest.fixture
def panel(agent: Client, host: Host, monkeypatch: pytest.MonkeyPatch, one_connection: None) -> Panel:
    return Panel(agent, host, monkeypatch)


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


class Reader:
    """Opens every page and list that shows what this host says."""

    def __init__(self, host: Host) -> None:
        admin = User.objects.create_user(username="ada", role="admin")
        token = create_token(admin, "x", actor=admin, scope="api:read")[1]
        self.browser = Client(headers={"Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
        self.browser.force_login(admin)
        self.program = Client(headers={"Authorization": f"Bearer {token}"})
        self.copy = builders.make_copy(host)
        self.row = row = builders.make_deployment(self.copy, state="ready")
        self.run = run = builders.make_run(row, self.copy)
        self.job = str(run.job_id)
        model = self.copy.artifact.model_id
        pages = ["/", "/hosts/", f"/hosts/{host.pk}/", f"/deployments/{row.pk}/", f"/runs/{run.pk}/", "/runtimes/",
                 f"/deployments/new?artifact={self.copy.artifact_id}", "/models/", f"/models/{model}/"]  # fmt: skip
        lists = ["/api/v1/hosts", f"/api/v1/hosts/{host.pk}", "/api/v1/runtimes", "/api/v1/models",
                 f"/api/v1/deployments/{row.pk}", f"/api/v1/runs/{run.pk}"]  # fmt: skip
        self.all = (pages, lists)
        self.turns = itertools.cycle([(pages[:3], lists[:2]), (pages[3:6], lists[2:4]), (pages[6:], lists[4:])])

    def __call__(self, every: bool = bool(LONG)) -> None:
        """Everything; in a short run a third of it, in turn."""
        self.show(*(self.all if every else next(self.turns)))

    def show(self, pages: list[str], lists: list[str] = []) -> None:  # noqa: B006  (read only)
        for path in pages:
            self.good(self.browser.get(path), path)
        for path in lists:
            answer = self.program.get(path)
            assert answer.status_code == 200, path
            json.loads(answer.content, parse_constant=_no_number)

    def good(self, answer: Any, where: str) -> None:
        assert answer.status_code == 200, where
        content = b"".join(answer.streaming_content) if answer.streaming else answer.content
        assert b"<script>alert" not in content and b"\x1b[" not in content, where


@pytest.fixture
def reading(host: Host, one_connection: None) -> Reader:
    return Reader(host)
