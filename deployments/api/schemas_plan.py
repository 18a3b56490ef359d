"""Shapes of a plan in the API: where it would run, how well, why there, and where its numbers come from."""

from collections.abc import Iterable
from typing import Any, Literal

from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from ninja import Field, Schema

from deployments import measured
from deployments.api import schemas
from deployments.placement import Placement
from deployments.planner import Answer
from deployments.preflight import Check, Place, named
from deployments.wording import candidates, changes, words
from models_catalog.estimate.words import told
from panel.core.api import Reason

Level = Literal["fits", "tight", "unknown", "unlikely"]


class CandidateOut(Schema):
    """A place that cannot take it, and why."""

    name: str
    message: str
    hint: str


class NoteOut(Schema):
    """What is worth knowing of a plan that can start."""

    code: str
    message: str
    hint: str


class PlacementOut(Schema):
    """A place that could take it now, and what it would be there."""

    host: str
    gpus: list[int]
    fit: Level = Field(description=_("How surely it will start there, by the estimate."))
    share: float | None = Field(description=_("The share of each GPU that is set aside; null on a processor."))
    reserve_mib: int = Field(description=_("Memory that would be set aside, on all devices together."))
    context: int | None = Field(description=_("Tokens of each conversation that `people` counts."))
    people: float | None = Field(description=_("Conversations at the same time, estimated."))
    longest_context: int | None = Field(description=_("Tokens of the longest single conversation, estimated."))
    why: str = Field(description=_("Why it comes first, or what puts it behind the first."))
    plan: dict[str, Any] | None = Field(
        description=_("The estimate: GiB of each part, tokens and requests, with ranges, sources and reasons.")
    )


class MostOut(Schema):
    """The answer to a question the other way round, at the place where it is the largest."""

    value: int
    surely: int = Field(description=_("What works at the worst end of the estimate too."))
    host: str
    gpus: list[int]


class PlanOut(Schema):
    """What a start would do now, by the planner that starts use. Nothing is reserved."""

    ok: bool
    waits: bool = Field(description=_("It cannot start now, and would wait for room."))
    reason: Reason | None
    candidates: list[CandidateOut] = Field(description=_("Places that cannot take it, and why."))
    placements: list[PlacementOut] = Field(
        description=_("Places that could take it: the one that is taken, and the three that come next.")
    )
    changes: list[schemas.ChangeOut] = Field(description=_("What would make it fit, the nearest first."))
    notes: list[NoteOut] = Field(description=_("What is worth knowing before the start."))
    fit: Level | None = Field(description=_("How surely it will start, by the estimate; null without a place."))
    context: int | None = Field(description=_("Tokens of each conversation that `people` counts."))
    people: float | None = Field(description=_("Conversations at the same time, estimated."))
    longest_context: int | None = Field(description=_("Tokens of the longest single conversation, estimated."))
    most_people: MostOut | None = Field(
        description=_(
            "The most people at the same time with conversations of that length, wherever it could run now. Null where"
            " there is no estimate, and in a check, which does not ask it."
        )
    )
    longest_for_people: MostOut | None = Field(
        description=_("The longest conversation, in tokens, for as many people as are asked for; null likewise.")
    )
    corrected_by: int = Field(description=_("Earlier starts on this host that corrected the estimate."))
    host: str | None
    gpus: list[int]
    engine_version: str
    reserve_mib: int = Field(description=_("Memory that would be set aside, on all devices together."))
    command: str = Field(description=_("The command as it would run; secrets are named only."))


def plan_out(check: Check) -> dict[str, Any]:
    """Of a check that looked ahead (`preflight.check`), else without the questions the other way round."""
    placed = check.placement
    elsewhere = {"params": {"candidates": named(placed.elsewhere)}} if check.ok and placed is not None else check.reason
    around = check.outlook
    return {
        "ok": check.ok,
        "waits": check.retryable and not check.ok,
        "reason": schemas.reason_out(check.reason),
        "candidates": [
            {"name": item["name"], "message": item["text"], "hint": item["hint"]} for item in candidates(elsewhere)
        ],
        "placements": [_placement_out(place) for place in check.places],
        "changes": [
            {"code": said.code, "message": said.text, "hint": said.hint, "spec": dict(change.patch)}
            for change, said in zip(check.changes, changes(check.reason), strict=True)
        ],
        "notes": _notes(check),
        **_foreseen(placed),
        "most_people": _most(around.most) if around is not None else None,
        "longest_for_people": _most(around.longest) if around is not None else None,
        "corrected_by": measured.launches_of(placed.plan if placed is not None else None),
        "host": check.host.name if check.host is not None else None,
        "gpus": [gpu.index for gpu in check.gpus],
        "engine_version": check.runtime.version if check.runtime is not None else "",
        "reserve_mib": _reserved(placed),
        "command": check.preview(),
    }


def _foreseen(placed: Placement | None) -> dict[str, Any]:
    """What the estimate says of a place."""
    people = placed.at_once.value if placed is not None and placed.at_once is not None else None
    longest = placed.longest.value if placed is not None and placed.longest is not None else None
    return {
        "fit": placed.level if placed is not None else None,
        "context": placed.context if placed is not None else None,
        "people": round(people, 2) if people is not None else None,
        "longest_context": int(longest) if longest is not None else None,
    }


def _reserved(placed: Placement | None) -> int:
    return sum(mib for _device, mib in placed.reserve) if placed is not None else 0


def _placement_out(place: Place) -> dict[str, Any]:
    placed = place.placement
    why = words(placed.why.as_dict()) if placed.why is not None else None
    return {
        "host": place.host.name,
        "gpus": [gpu.index for gpu in place.gpus],
        "share": placed.utilisation if place.gpus else None,
        "reserve_mib": _reserved(placed),
        **_foreseen(placed),
        "why": why.text if why is not None else "",
        "plan": told(placed.plan, gettext) if placed.plan is not None else None,
    }


def _notes(check: Check) -> list[dict[str, str]]:
    placed = [*check.placement.notes] if check.placement is not None else []
    command = check.launch.notes if check.launch is not None else []
    said: Iterable[Any] = (words(note.as_dict()) for note in (*placed, *command))
    return [{"code": one.code, "message": one.text, "hint": one.hint} for one in said if one is not None]


def _most(answer: Answer | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    return {"value": answer.value, "surely": answer.low, "host": answer.host, "gpus": list(answer.gpus)}
