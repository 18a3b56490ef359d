"""Why a start failed, for programs: what its page says of it, with numbers as numbers."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from ninja import Field, Schema

from deployments import failures, failures_read
from deployments.diagnosis.result import SURE
from deployments.diagnosis.rules import BY_CODE
from deployments.models import Run
from deployments.pages import failed, proof
from panel.core.mask import mask_text

Reaches = Callable[[int], bool]


class BarsOut(Schema):
    """What was needed and what there was, or what was asked for and what is allowed (`limit`)."""

    need: float
    have: float
    unit: str = Field(description=gettext_noop("GiB, tokens, or empty for a plain number."))
    limit: bool


class ExcludedOut(Schema):
    code: str
    message: str
    why: str


class LogClassOut(Schema):
    code: str = Field(description=gettext_noop("A class of failures, as in docs/diagnosis.md."))
    message: str
    line: int | None


class NoticeOut(Schema):
    code: str
    message: str
    line: int | None


class ChangedOut(Schema):
    name: str
    before: str
    after: str


class AlikeOut(Schema):
    run: UUID
    deployment: str
    number: int
    mended: str = Field(description=gettext_noop("What the next start did differently, when that got ready."))
    note: str


class DiagnosisOut(Schema):
    """Why it failed. `code` is null where the cause was not recognised; then `root` is the first error."""

    code: str | None
    title: str
    why: str = Field(description=gettext_noop("With the numbers of the log line in it."))
    causes: list[str] = Field(description=gettext_noop("What it may come from, where that may be several things."))
    phase: str
    confidence: float | None = Field(description=gettext_noop("0 to 1; null where the cause was not recognised."))
    certainty: str
    root_line: int | None = Field(description=gettext_noop("Line of the log that proves it, counted from 1."))
    root: str
    marks: list[list[int]] = Field(description=gettext_noop("Parts of `root` that tell: [from, to) in characters."))
    bars: BarsOut | None
    ruled_out: list[LogClassOut] = Field(description=gettext_noop("What looked like a cause and only follows from it."))
    excluded: list[ExcludedOut] = Field(description=gettext_noop("What it was not, by what was measured."))
    notices: list[NoticeOut] = Field(description=gettext_noop("What the engine warned of, as far as it matters."))
    facts: dict[str, Any] = Field(description=gettext_noop("What the engine said of itself; GiB, seconds, tokens."))
    versions: str = Field(description=gettext_noop("Versions of the engine that fail so."))
    doc: str = Field(description=gettext_noop("Where the engine's own documentation says more."))
    changed: list[ChangedOut] | None = Field(
        description=gettext_noop("Since the last start that worked; null in lists, ask for the one start.")
    )
    alike: list[AlikeOut] | None = Field(
        description=gettext_noop("Other starts that failed with the same words; null in lists, ask for the one start.")
    )


def diagnosis_out(run: Run, reaches: Reaches | None = None) -> dict[str, Any] | None:
    """Null for a start that did not fail. Without `reaches` (which deployments who asks may know) nothing is asked of
    the database.
    """
    if run.outcome != "failed":
        return None
    params = run.reason.get("params") or {}
    rule = BY_CODE.get(str(params.get("cause") or ""))
    told = proof.numbers(run)
    block, known = run.error_block or {}, run.diagnosis.get("facts") or {}
    root, bars = mask_text(failures.root_of(block)), told.get("bars")
    explained = rule is not None or run.reason.get("code") not in failures.UNEXPLAINED
    sure = failed.certainty(params) if rule is not None else "" if explained else _("Not recognised")
    return {
        "code": rule.code if rule is not None else None,
        "title": failed.title_of(failures.class_of(run.reason)),
        "why": proof.why(run, told),
        "phase": str(params.get("phase") or ""),
        "confidence": params.get("confidence") if float(params.get("confidence") or 0) >= SURE else None,
        "certainty": sure,
        "root_line": block.get("root_line"),
        "root": root,
        "marks": [list(mark) for mark in told.get("marks") or [] if mark[1] <= len(root)],
        "bars": {"need": bars[0], "have": bars[1], "unit": bars[2], "limit": told["limit"]} if bars else None,
        "ruled_out": [
            {"code": each["code"], "message": each["title"], "line": each["line"]} for each in failed.ruled_out(run)
        ],
        "excluded": [
            {"code": each["code"], "message": each["title"], "why": each["text"]} for each in proof.excluded(run)
        ],
        "notices": [
            {"code": each["code"], "message": each["text"], "line": each["line"]} for each in proof.notices(known)
        ],
        "facts": {name: value for name, value in known.items() if name != "notices"},
        **failed.more(rule.code if rule is not None else ""),
        **(_asked(run, reaches, explained=explained) if reaches is not None else {"changed": None, "alike": None}),
    }


def _asked(run: Run, reaches: Reaches, *, explained: bool) -> dict[str, Any]:
    row = failures_read.of_run(run.pk)
    alike = map(failed.line, failures_read.alike(row)) if row is not None and not explained else []
    return {
        "changed": [
            {name: str(value) for name, value in item.items() if name in ("name", "before", "after")}
            for item in failed.changed_since(run).get("items_of", [])
        ],
        "alike": [
            {
                "run": each["row"].run_id,
                "deployment": each["name"],
                "number": each["number"],
                "mended": each["mended"],
                "note": mask_text(each["row"].note),
            }
            for each in alike
            if reaches(each["row"].deployment_id)
        ],
    }
