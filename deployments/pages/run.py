"""One start and what is kept of it, as plain values: rows in, words and numbers out. Nothing is decided here."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from deployments import checking, describing, queries
from deployments.diagnosis.failure import signal_name
from deployments.diagnosis.phases import StepState
from deployments.models import Run
from deployments.pages import failed as failed_page
from deployments.pages import proof
from deployments.pages.measured import compared, note_of
from deployments.states import State
from deployments.wording import BADGES, STEP_NAMES, STEPS_NOW, candidates, changes, person, words
from panel.core.numbers import duration, gib, ngroup
from panel.fleet import logstore, retention, samples
from panel.fleet.wording import ENGINES

LOG_TAIL = 64 << 10  # bytes of a ready engine's log that its page begins with


@dataclass(frozen=True)
class Badge:
    kind: str
    word: str


@dataclass(frozen=True)
class StepView:
    kind: str  # yes, now, no, todo, over
    name: str
    detail: str = ""
    took: str = ""
    usual: str = ""
    value: float | None = None


def badge(state: str) -> Badge:
    kind, word = BADGES[State(state)]
    return Badge(kind, str(word))


def engine(run: Run) -> str:
    """Name and version of the engine that a run used."""
    name = ENGINES.get(run.runtime.engine, run.runtime.engine) if run.runtime is not None else ""
    return f"{name} {run.engine_version}".strip()


def place(run: Run) -> str:
    gpus = run.placement.get("gpus") or []
    return f"{run.host_name}, {' + '.join(f'GPU {g}' for g in gpus)}" if gpus else run.host_name


def on_cpu(run: Run) -> bool:
    """Placed, and without a GPU."""
    return run.was_placed and not run.placement.get("gpus")


def log_of(run: Run) -> dict[str, Any]:
    job = checking.log_job_of(run)
    size = job.log.size if job is not None else 0
    return {
        "job_id": str(job.pk) if job is not None and (size or run.job_id) else "",
        "log_url": reverse("run-log", args=[run.pk]),
        "log_file": reverse("run-log-file", args=[run.pk]),
        "log_offset": max(0, size - LOG_TAIL),
    }


def process(run: Run) -> dict[str, Any] | None:
    """What was last measured of the run's processes on the host."""
    if run.job is None or not run.job.status or run.ended_at is not None:
        return None
    samples.freshen(run.job)
    status = run.job.status
    facts: list[tuple[str, str]] = []
    if status.get("gpu_used_mib") is not None:
        facts.append((_("GPU memory"), gib(status["gpu_used_mib"])))
    facts.append((_("Main memory"), gib(status.get("rss_mib", 0))))
    facts.append((_("Read from disk"), gib((status.get("read_bytes") or 0) / (1 << 20))))
    facts.append((_("Processes"), str(status.get("processes", 0))))
    return {"title": place(run), "at": run.job.status_at, "facts": facts}


def steps(run: Run, usual: dict[str, Any], *, failed: bool = False) -> list[StepView]:
    """The steps with what each took and usually takes; of a start that ended without a process those that it took."""
    found = []
    for s in queries.steps_of(run):
        if s.code == "graphs" and s.state in ("todo", "skip") and on_cpu(run):
            continue  # a step of GPUs
        kind = "no" if failed and s.state == "now" else "over" if s.state == "skip" else s.state
        value = 100 * s.done / s.total if kind == "now" and s.total and s.done is not None else None
        going = kind == "now" and s.start is not None and run.ended_at is None
        seconds = timezone.now().timestamp() - (s.start or 0) if going else s.seconds
        often = usual.get(s.code)
        span = _("usually %(time)s") % {"time": duration(often["median"])} if often else ""
        found.append(StepView(kind, step_name(s), _step_detail(s, run), duration(seconds), span, value))
    found = _before_process(run, found, failed=failed)
    if run.job_id is None and run.ended_at is not None:
        return [step for step in found if step.kind != "todo"] if found[0].kind == "yes" else []
    return found


def _before_process(run: Run, found: list[StepView], *, failed: bool) -> list[StepView]:
    """With the steps that a host takes between the place and the process, where a start has them."""
    more = [*_described(run, failed=failed), *_asked(run, failed=failed)]
    going = any(step.kind in ("now", "no") for step in more)
    first = StepView("yes", str(STEP_NAMES["placed"]), place(run)) if going else found[0]
    return [first, *more, *found[1:]]


def _described(run: Run, *, failed: bool) -> Iterator[StepView]:
    """Of a model whose file says too little to its engine."""
    if describing.wanted(run):
        yield StepView("no" if failed else "now", _("Describing the model's file"))
    elif describing.KEY in run.placement:
        yield StepView("yes", _("Model's file described"))


def _asked(run: Run, *, failed: bool) -> Iterator[StepView]:
    """Of settings that nobody had shown to their engine before."""
    if checking.KEY not in run.placement or (checking.wanted(run) and describing.wanted(run)):
        return
    over, name = checking.over(run), _("Settings checked by the engine")
    if over in ("passed", "refused"):
        yield StepView("yes" if over == "passed" else "no", name)
    elif over:
        yield StepView("over", name, _("no answer in time") if over == "late" else _("not this time"))
    else:
        yield StepView("no" if failed else "now", _("The engine is asked about the settings"))


def step_name(step: StepState) -> str:
    """What was done, what is being done, or what a failed start was about to do."""
    name = str((STEPS_NOW if step.state == "now" else STEP_NAMES)[step.code])
    return f"{name} {round(100 * step.done / step.total)}\u00a0%" if step.state == "now" and step.total else name


def _step_detail(step: StepState, run: Run) -> str:
    if step.state == "skip":
        return _("not needed here")
    if step.total and step.done is not None:
        return f"{ngroup(step.done)} / {ngroup(step.total)}"
    status = run.job.status if run.job is not None else {}
    if step.code == "process" and status.get("pid") and status.get("port"):
        return _("process %(pid)s, port %(port)s") % {"pid": status["pid"], "port": status["port"]}
    if step.code == "answered" and step.state == "todo":
        return _("only then it counts as ready")
    return place(run) if step.code == "placed" else ""


def error_of(run: Run) -> dict[str, Any]:
    """The first error of the log, as it was kept when the run ended."""
    block = run.error_block or {}
    return {"error_block": block, "error_text": "\n".join(block.get("lines", []))}


def ending(run: Run) -> str:
    """Exit code or signal by name, as it was recorded on the host."""
    if run.signal:
        return _("Ended by signal %(name)s.") % {"name": signal_name(run.signal)}
    if run.exit_code is not None:
        return _("Exit code %(code)s.") % {"code": run.exit_code}
    return _("No exit code was recorded.") if run.ended_at and run.job_id else ""


def run_row(run: Run) -> dict[str, Any]:
    end = run.ended_at or timezone.now()
    if run.ended_at is None:
        shown = Badge("ok", _("Ready")) if run.ready_at else Badge("busy", _("Running"))
    else:
        shown = Badge("bad", _("Failed")) if run.outcome == "failed" else Badge("off", _("Stopped"))
    why = words(run.reason) if run.outcome == "failed" else None
    return {
        "run": run,
        "by": person(run.started_by),
        "badge": shown,
        "why": why.text if why else "",
        "where": " · ".join(part for part in (engine(run), place(run)) if part),
        "ran": (end - run.created_at).total_seconds() if run.ready_at or (run.ended_at and run.job_id) else None,
    }


def can_repeat(run: Run) -> bool:
    """Whether this start failed and could be made again just so: the settings are still those of its deployment."""
    row = run.deployment
    same = row.deleted_at is None and row.revision_id == run.revision_id and row.state in ("failed", "stopped")
    return run.outcome == "failed" and run.job_id is not None and same


def run_record(run: Run, *, may_operate: bool, may_edit: bool) -> dict[str, Any]:
    """Everything kept of one start."""
    argv = (run.job.status.get("argv") if run.job else None) or run.command
    env = [f"{key}={shlex.quote(str(value))}" for key, value in sorted(run.env.items())]
    return {
        "section": "deployments",
        "run": run,
        "d": run.deployment,
        "row": run_row(run),
        "engine": engine(run),
        "can_repeat": may_operate and can_repeat(run),
        "can_go_back": may_edit and run.deployment.deleted_at is None and run.deployment.revision_id != run.revision_id,
        "command": " \\\n  ".join([*env, shlex.join(argv)]) if argv else "",
        "steps": steps(run, {}, failed=run.outcome == "failed"),
        "ending": ending(run),
        "compared": compared(run),
        "learned_note": note_of(run),
        "golden": run.golden.get("answers", []),
        "reason": words(run.reason) if run.outcome == "failed" else None,
        "candidates": candidates(run.reason),
        "changes": changes(run.reason),
        **error_of(run),
        "dx": failed_page.diagnosis(run, may_judge=may_operate),
        "log_root": failed_page.log_root(run),
        "itself": proof.itself(run),
        "transitions": [
            {"badge": badge(t.new), "at": t.at, "why": w.text if (w := words(t.reason)) else ""}
            for t in run.transitions.order_by("pk")
        ],
        **log_of(run),
        "log_went_to": retention.file_of(run.job) if run.job is not None and logstore.kept_nothing(run.job.log) else "",
    }
