"""Which model a caller reaches, the list of models, and what is said of one that cannot answer now."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from panel.fleet.door.access import Caller
from panel.fleet.door.errors import DoorError
from panel.fleet.door.snapshot import Route, Snapshot

NAMED = 20  # models named in a 404
RETRY_UNKNOWN_S = 5
RETRY_LONGEST_S = 60  # OpenAI's clients ignore a longer Retry-After

_WAITING = {
    "queued": "waits for a place",
    "placing": "is being placed",
    "preparing": "is being prepared",
    "starting": "is starting",
    "ready": "has no running engine at this moment",
    "lost": "runs on a host that has no contact with the panel",
}
_NO_WAY = {
    "door.none": "whose door is not open",
    "door.key_pending": "whose door does not know the panel's key yet",
}
_RESTING = {"stopping": "is being stopped", "stopped": "is stopped", "failed": "has failed"}


def seen(snapshot: Snapshot, caller: Caller) -> Iterable[Route]:
    """The routes that this caller may know of."""
    return [route for route in snapshot.routes.values() if caller.reaches(route.deployment_id)]


def choose(snapshot: Snapshot, caller: Caller, model: str, now: float) -> Route:
    """The route to forward to. Raises DoorError 404 or 503."""
    route = snapshot.routes.get(model)
    if route is None or not caller.reaches(route.deployment_id):
        raise unknown_model(snapshot, caller, model)
    if route.port is not None and (route.open or (caller.probe_run and caller.probe_run == route.run_id)):
        return route
    raise not_now(route, now)


def unknown_model(snapshot: Snapshot, caller: Caller, model: str) -> DoorError:
    names = sorted(route.name for route in seen(snapshot, caller) if route.open)
    listed = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
    return DoorError(
        404,
        "model.unknown",
        f"There is no model named {model[:120]!r} here. " + (f"Models: {listed}." if names else "No model runs now."),
        "GET /v1/models lists the models that answer now.",
        param="model",
        facts={"models": names[:NAMED]},
    )


def not_now(route: Route, now: float) -> DoorError:
    """503 for a model that exists and does not answer now: its state, phase, seconds left and reason, where known."""
    facts: dict[str, Any] = {"model": route.name, "state": route.state}
    if route.reason:
        facts["reason"] = {"code": route.reason, "params": dict(route.params)}
    if route.state in _RESTING:
        hint = "Start it on the panel's page." if route.state == "stopped" else "Its page on the panel says why."
        text = f"The model {route.name!r} {_RESTING[route.state]}."
        return DoorError(503, f"deployment.{route.state}", text, hint, param="model", facts=facts)
    if route.reason in _NO_WAY:
        return _no_way(route, facts)
    text = f"The model {route.name!r} {_WAITING.get(route.state, 'is not ready')}"
    if route.phase:
        facts["phase"] = route.phase
        text += f" (phase {route.phase}"
        if route.total:
            facts |= {"done": route.done, "total": route.total}
            text += f", {route.done or 0:g} of {route.total:g}"
        text += ")"
    left = math.ceil(route.eta_at - now) if route.eta_at is not None else 0
    if left > 0:
        facts["seconds_left"] = left
        text += f"; usually ready in about {left} s"
    retry = min(left, RETRY_LONGEST_S) if left > 0 else RETRY_UNKNOWN_S
    return DoorError(
        503, f"deployment.{route.state}", text + ".", "Ask again later.", param="model", facts=facts, retry_after=retry
    )


def _no_way(route: Route, facts: dict[str, Any]) -> DoorError:
    """It may well run, but its host has no door that the panel could go through."""
    text = f"The model {route.name!r} is on the host {route.params.get('host')!r}, {_NO_WAY[route.reason]}."
    hint = "The page of the host says what is wrong with its door."
    return DoorError(503, route.reason, text, hint, param="model", who="host", facts=facts, retry_after=RETRY_UNKNOWN_S)


def listing(snapshot: Snapshot, caller: Caller) -> dict[str, Any]:
    """GET /v1/models: the models that answer now."""
    models = sorted((r for r in seen(snapshot, caller) if r.open), key=lambda r: r.name)
    return {"object": "list", "data": [entry(route) for route in models]}


def entry(route: Route) -> dict[str, Any]:
    return {
        "id": route.name,
        "object": "model",
        "created": route.created,
        "owned_by": "berth",
        "berth": {"state": route.state, "task": route.task},
    }
