"""What came of settings and starts, for programs: revisions with their numbers, golden answers, closeness."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.http import HttpRequest
from django.utils.translation import gettext_noop as _
from ninja import Query, Router, Schema
from pydantic import ConfigDict, Field

from deployments import golden, measured_runs, queries, revisions
from deployments.api.deployments import reached
from deployments.models import Deployment, Revision, Run
from deployments.spec import DeploymentSpec, diff
from panel.core.api import Page, Paging, Token, answers, page_of
from panel.core.mask import mask

router = Router(tags=["deployments"])


class CameOut(Schema):
    """The newest start that got ready; where none did, the newest. Memory is GiB of one GPU; `foreseen` is what the
    estimate said before it."""

    run: UUID
    ready_s: float | None = Field(description=_("Null: it did not get ready."))
    outcome: Literal["", "stopped", "failed"] = Field(description=_("How it ended; empty while it goes on."))
    reason: str = Field(description=_("The code of why it failed; empty otherwise."))
    first_answer_ms: int | None
    foreseen: dict[str, Any]
    measured: dict[str, Any] = Field(description=_("What the engine's log said."))


class RevisionOut(Schema):
    number: int
    current: bool
    created_at: datetime
    created_by: str
    changes: dict[str, list[Any]] = Field(description=_("Each value that differs from the one before: before, after."))
    came: CameOut | None


class AnswerOut(Schema):
    question: str
    answer: str | None
    error: str
    differs: bool = Field(description=_("From the newest answer to this question."))


class AnswersOut(Schema):
    run: UUID
    revision: int
    engine_version: str
    tensor_parallel: int
    answers: list[AnswerOut]


class GoldenOut(Schema):
    questions: list[str] = Field(description=_("Asked at the next start that gets ready."))
    usual: bool = Field(description=_("Nobody chose them."))
    starts: list[AnswersOut] = Field(description=_("The newest first; one for each revision, version and size."))


class QuestionsIn(Schema):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"questions": ["What is 17 + 25?"]}]})

    questions: list[str] | None = Field(
        max_length=golden.MOST, description=_("At most three. Null: the usual ones; an empty list: none.")
    )


class ClosenessOut(Schema):
    name: str
    runs: int
    median: float | None = Field(description=_("Half of the starts were closer; a share of the measured value."))
    p90: float | None


class AccuracyOut(Schema):
    engine: str
    version: str
    family: str = Field(description=_("The model's architecture, as its configuration names it."))
    runs: int
    corrected: int = Field(description=_("Starts whose estimate was corrected by earlier ones on their host."))
    closeness: list[ClosenessOut]


class AccuraciesOut(Schema):
    items: list[AccuracyOut]


@router.get(
    "/deployments/{int:deployment_id}/revisions",
    response=answers({200: Page[RevisionOut]}, 404),
    auth=Token("deployments.view"),
    summary=_("The settings it had"),
    description=_("Newest first, each with what it changed and what came of it."),
)
def list_revisions(request: HttpRequest, deployment_id: int, asked: Query[Paging]) -> Any:
    row = reached(request, deployment_id)

    def shown(found: list[Revision]) -> list[dict[str, Any]]:
        return _revisions(row, found)

    return page_of(row.revisions.all(), asked, shown, key="number", newest=True)


def _revisions(row: Deployment, found: list[Revision]) -> list[dict[str, Any]]:
    """Rows, the newest first; one query for the settings before the last of them, one for the starts."""
    found = list(found)
    starts = revisions.best_starts(found)
    specs = {each.number: each.spec for each in row.revisions.filter(number__in=[each.number - 1 for each in found])}
    return [
        {
            "number": each.number,
            "current": each.pk == row.revision_id,
            "created_at": each.created_at,
            "created_by": each.created_by,
            "changes": _changes(specs.get(each.number - 1), each.spec),
            "came": _came(starts.get(each.pk)),
        }
        for each in found
    ]


def _changes(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, list[Any]]:
    if before is None:
        return {}
    changed = diff(DeploymentSpec.model_validate(before), DeploymentSpec.model_validate(after))
    old, new = (mask({name: pair[place] for name, pair in changed.items()}) for place in (0, 1))
    return {name: [old[name], new[name]] for name in changed}


def _came(run: Run | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "run": run.pk,
        "ready_s": round((run.ready_at - run.created_at).total_seconds(), 1) if run.ready_at else None,
        "outcome": run.outcome,
        "reason": str(run.reason.get("code") or "") if run.outcome == "failed" else "",
        "first_answer_ms": (run.answer or {}).get("latency_ms"),
        "foreseen": run.foreseen,
        "measured": run.measured,
    }


@router.get(
    "/deployments/{int:deployment_id}/golden",
    response=answers({200: GoldenOut}, 404),
    auth=Token("deployments.view"),
    summary=_("Golden questions and their answers"),
)
def get_golden(request: HttpRequest, deployment_id: int) -> Any:
    reached(request, deployment_id)
    return _golden(queries.one(deployment_id))


@router.put(
    "/deployments/{int:deployment_id}/golden",
    response=answers({200: GoldenOut}, 404, 409, 413),
    auth=Token("deployments.edit"),
    summary=_("Change the golden questions"),
)
def put_golden(request: HttpRequest, deployment_id: int, body: QuestionsIn) -> Any:
    golden.set_questions(reached(request, deployment_id), body.questions, actor=request.auth)
    return _golden(queries.one(deployment_id))


def _golden(row: Deployment) -> dict[str, Any]:
    assert row.revision is not None
    table = revisions.answers(row)
    return {
        "questions": golden.questions_of(row, DeploymentSpec.model_validate(row.revision.spec)),
        "usual": row.questions is None,
        "starts": [
            {
                "run": column.run.pk,
                "revision": column.revision,
                "engine_version": column.version,
                "tensor_parallel": column.tp,
                "answers": [
                    {"question": question, "answer": cell.answer, "error": cell.error, "differs": cell.differs}
                    for question, cells in table.rows
                    if (cell := cells[place]).answer is not None or cell.error
                ],
            }
            for place, column in enumerate(table.columns)
        ],
    }


@router.get(
    "/accuracy",
    response=answers({200: AccuraciesOut}),
    auth=Token("runtimes.view"),  # it is of all deployments, so nothing for a token of some
    summary=_("How close the estimates were"),
    description=_("Over the newest 2,000 starts that got ready, by engine version and architecture, most first."),
    tags=["runs"],
)
def get_accuracy(request: HttpRequest) -> Any:
    return {"items": measured_runs.accuracy()}
