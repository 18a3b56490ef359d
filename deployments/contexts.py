"""What pages show, as plain values: rows in, words and numbers out. Nothing is decided or written here."""

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from deployments import queries
from deployments.models import Deployment, Run
from deployments.spec import DeploymentSpec
from deployments.states import Desired, State
from deployments.wording import BADGES, STEP_NAMES, STEP_NOTES, Words, words
from panel.accounts.forms import TokenForm
from panel.core.templatetags.ui import approx, duration, gib, ngroup

KINDS = {State.READY: "ready", State.FAILED: "failed", State.STOPPED: "stopped"}  # every other state is "moving"
RUNS_SHOWN = 20
DOTS = {"yes": "", "skip": "", "now": "x", "todo": "t"}
LOG_TAIL = 64 << 10  # bytes of a ready engine's log that its page begins with


@dataclass(frozen=True)
class Badge:
    kind: str
    word: str


@dataclass(frozen=True)
class StepView:
    kind: str  # yes, now, no, todo
    name: str
    detail: str = ""
    took: str = ""
    usual: str = ""
    value: float | None = None


def badge(state: str) -> Badge:
    kind, word = BADGES[State(state)]
    return Badge(kind, str(word))


def kind_of(row: Deployment) -> str:
    return KINDS.get(State(row.state), "moving")


def place(run: Run) -> str:
    gpus = run.placement.get("gpus") or []
    return f"{run.host_name}, {' + '.join(f'GPU {g}' for g in gpus)}" if gpus else run.host_name


# --- one deployment -------------------------------------------------------------------------------------------------


def detail(row: Deployment, *, may_operate: bool, may_delete: bool) -> dict[str, Any]:
    run, kind = row.run, kind_of(row)
    context: dict[str, Any] = {
        "section": "deployments",
        "d": row,
        "run": run,
        "kind": kind,
        "badge": badge(row.state),
        "summary": _summary(row),
        "reason": words(row.reason),
        "candidates": candidates(row.reason),
        "can_operate": may_operate,
        "can_ask": may_operate,
        "can_delete": may_delete,
        "can_stop": may_operate and (kind in ("ready", "moving") and row.desired == Desired.RUNNING),
        "can_start": may_operate and (kind in ("failed", "stopped") or row.desired == Desired.STOPPED),
        "can_restart": may_operate and kind == "ready",
        "runs": [run_row(r) for r in queries.runs_of(row)[:RUNS_SHOWN]],
    }
    if run is not None:
        context |= _log_of(run)
        context["process"] = process(run)
    if kind == "moving":
        context |= moving(row)
    elif kind == "ready" and run is not None:
        context |= ready(row, run)
    elif kind == "failed":
        context |= failed(row, run)
    elif run is not None:
        context["proof"] = _proof(run)
    return context


def _summary(row: Deployment) -> list[str]:
    run = row.run
    parts = []
    if run is not None:
        parts += [run.model_name, f"{run.runtime.engine if run.runtime else 'vLLM'} {run.engine_version}", place(run)]
    who = row.wanted_by
    if who and row.desired == Desired.RUNNING:
        parts.append(_("started by %(who)s") % {"who": who})
    elif who:
        parts.append(_("stopped by %(who)s") % {"who": who})
    return [p for p in parts if p.strip()]


def _log_of(run: Run) -> dict[str, Any]:
    size = run.job.log.size if run.job is not None else 0
    return {
        "job_id": str(run.job_id) if run.job_id else "",
        "log_url": reverse("run-log", args=[run.pk]),
        "log_file": reverse("run-log-file", args=[run.pk]),
        "log_offset": max(0, size - LOG_TAIL),
    }


def process(run: Run) -> dict[str, Any] | None:
    """What was last measured of the run's processes on the host."""
    if run.job is None or not run.job.status or run.ended_at is not None:
        return None
    status = run.job.status
    facts: list[tuple[str, str]] = []
    if status.get("gpu_used_mib") is not None:
        facts.append((_("GPU memory"), gib(status["gpu_used_mib"])))
    facts.append((_("Memory of its processes"), gib(status.get("rss_mib", 0))))
    facts.append((_("Read from disk"), gib((status.get("read_bytes") or 0) / (1 << 20))))
    facts.append((_("Processes"), str(status.get("processes", 0))))
    return {"title": place(run), "at": run.job.status_at, "facts": facts}


# --- while it moves ---------------------------------------------------------------------------------------------------


def current_step(run: Run) -> str:
    return next((s.code for s in queries.steps_of(run) if s.state == "now"), "")


def moving(row: Deployment) -> dict[str, Any]:
    run = row.run if row.run is not None and row.run.ended_at is None else None
    usual = queries.usual_times(run) if run is not None else {}
    now = timezone.now()
    so_far = (now - run.created_at).total_seconds() if run is not None else None
    left = usual["all"]["median"] - so_far if "all" in usual and so_far is not None else None
    context: dict[str, Any] = {
        "lead": _lead(row, left),
        "so_far": so_far if row.state in (State.STARTING, State.PREPARING) else None,
        "usually": _usually(run, usual),
        "percent": None,
        "deadline": _deadline(row, now),
        "stalled": stalled(run, now) if row.state == State.STARTING else None,
    }
    if run is not None and row.state in (State.STARTING, State.PREPARING, State.LOST):
        context["steps"] = steps(run, usual)
        at = current_step(run)
        context["step_note"] = tuple(map(str, STEP_NOTES[at])) if at in STEP_NOTES else None
        if left is not None and so_far is not None:
            context["percent"] = max(2, min(97, round(100 * so_far / usual["all"]["median"])))
    if row.state == State.STOPPING and run is not None and run.job is not None:
        left_pids = run.job.status.get("leftover_pids") or []
        if left_pids:
            context["reason"] = words({"code": "stop.leftover", "params": {"pids": left_pids}})
    return context


def _lead(row: Deployment, left: float | None) -> str:
    if row.state == State.STARTING:
        return approx(_("%(time)s left") % {"time": duration(left)}) if left and left > 0 else _("It is starting")
    return {
        State.QUEUED: _("It waits for room"),
        State.PLACING: _("Choosing a place"),
        State.PREPARING: _("Preparing the start"),
        State.STOPPING: _("Finishing and stopping"),
        State.LOST: _("No contact with its host"),
    }[State(row.state)]


def _usually(run: Run | None, usual: dict[str, Any]) -> str:
    if run is None or "all" not in usual:
        return ""
    n = usual["all"]["runs"]
    text = ngettext(
        "Usually %(time)s on %(host)s, from %(n)s earlier start.",
        "Usually %(time)s on %(host)s, from %(n)s earlier starts.",
        n,
    )
    return text % {"time": duration(usual["all"]["median"]), "host": run.host_name, "n": n}


def _deadline(row: Deployment, now: dt.datetime) -> str:
    if row.deadline_at is None:
        return ""
    left = duration((row.deadline_at - now).total_seconds())
    if row.state == State.STARTING:
        return _("Not ready within %(time)s? Berth then ends it and says here why, and what to do.") % {"time": left}
    return _("If this is not done within %(time)s, Berth says here what holds it up.") % {"time": left}


def steps(run: Run, usual: dict[str, Any], *, failed: bool = False) -> list[StepView]:
    """The eight steps with what each took and usually takes."""
    found = []
    for s in queries.steps_of(run):
        kind = "no" if failed and s.state == "now" else "yes" if s.state == "skip" else s.state
        counted = s.total and s.done is not None
        value = 100 * s.done / s.total if s.state == "now" and counted else None
        detail = f"{ngroup(s.done)} / {ngroup(s.total)}" if counted else ""
        if s.code == "placed":
            detail = place(run)
        elif s.state == "skip":
            detail = _("not needed here")
        often = usual.get(s.code)
        span = _("usually %(time)s") % {"time": duration(often["median"])} if often else ""
        found.append(StepView(kind, str(STEP_NAMES[s.code]), detail, duration(s.seconds), span, value))
    return found


def stalled(run: Run | None, now: dt.datetime) -> Words | None:
    """Nothing written, read or grown for a long time: said, with the next step, and never ended for it."""
    since = run.job.status.get("still_since") if run is not None and run.job is not None else None
    if since is None or now.timestamp() - since < settings.BERTH_STALL_S:
        return None
    minutes = int((now.timestamp() - since) // 60)
    return words({"code": "start.stalled", "params": {"minutes": minutes}})


# --- ready ------------------------------------------------------------------------------------------------------------


def ready(row: Deployment, run: Run) -> dict[str, Any]:
    from deployments.snippets import snippets

    spec = DeploymentSpec.model_validate(run.revision.spec)
    base_url = f"{settings.BERTH_PUBLIC_URL}/v1"
    answer = run.answer or {}
    source = _("answered in %(ms)s ms") % {"ms": ngroup(answer.get("latency_ms"))} if answer else ""
    return {
        "base_url": base_url,
        "token_form": TokenForm(),
        "snippets": snippets(spec.task, row.name, base_url),
        "answer": {**answer, "source": source} if answer else None,
        "measured_facts": _measured(run),
    }


def _measured(run: Run) -> list[tuple[str, str, str]]:
    seen = run.parser.get("facts", {})
    facts = []
    if run.ready_at:
        facts.append((_("Ready after"), duration((run.ready_at - run.created_at).total_seconds()), ""))
    if run.answer:
        facts.append((_("Test answer"), f"{ngroup(run.answer['latency_ms'])} ms", _("through this address")))
    if seen.get("kv_tokens"):
        facts.append((_("Room for conversations"), ngroup(seen["kv_tokens"]), _("KV cache tokens")))
    if seen.get("max_model_len"):
        facts.append((_("Longest conversation"), ngroup(seen["max_model_len"]), _("tokens")))
    status = run.job.status if run.job is not None else {}
    if status.get("gpu_used_mib") is not None:
        facts.append((_("GPU memory"), gib(status["gpu_used_mib"]), place(run)))
    facts.append((_("Memory of its processes"), gib(status.get("rss_mib", 0)), run.host_name))
    return facts


# --- ended ------------------------------------------------------------------------------------------------------------


def failed(row: Deployment, run: Run | None) -> dict[str, Any]:
    """The failed page. `row.reason` may be of a placing that failed before any run was made."""
    of_run = run is not None and run.outcome == "failed" and run.reason == row.reason
    context: dict[str, Any] = {"run_failed": of_run, "retry": _retry(row), "ways": ways(row)}
    if run is None or not of_run:
        return context
    states = queries.steps_of(run)
    reached = [s for s in states if s.state in ("yes", "now")]
    block = run.error_block or {}
    return {
        **context,
        "error_block": block,
        "error_text": "\n".join(block.get("lines", [])),
        "last_answer": run.probe.get("last") if row.reason.get("code") == "answer.failed" else None,
        "reached": str(STEP_NAMES[reached[-1].code]) if reached else _("nothing was started"),
        "dots": [DOTS[s.state] for s in states],
        "ending": ending(run),
    }


def ending(run: Run) -> str:
    """Exit code or signal by name, as it was recorded on the host."""
    from deployments.diagnosis.failure import signal_name

    if run.signal:
        return _("Ended by signal %(name)s.") % {"name": signal_name(run.signal)}
    if run.exit_code is not None:
        return _("Exit code %(code)s.") % {"code": run.exit_code}
    return _("No exit code was recorded.") if run.ended_at else ""


def _retry(row: Deployment) -> dict[str, str] | None:
    if row.next_attempt_at is None or row.desired != Desired.RUNNING:
        return None
    left = max(0.0, (row.next_attempt_at - timezone.now()).total_seconds())
    text = _("Berth starts it again by itself in %(time)s (attempt %(n)s of %(most)s).")
    spec = DeploymentSpec.model_validate(row.revision.spec)
    return {"text": text % {"time": duration(left), "n": row.attempts + 1, "most": spec.restart.max_attempts}}


def ways(row: Deployment) -> list[dict[str, str]]:
    """Ways out of a failure, without a diagnosis: settings, the same again, the record."""
    spec = DeploymentSpec.model_validate(row.revision.spec)
    found = [
        {
            "title": _("Change the settings"),
            "text": _("A new revision is made and this one is kept."),
            "url": reverse("deployment-edit", args=[row.pk]),
            "label": _("Open the settings"),
        },
        {
            "title": _("Start again unchanged"),
            "text": _("Helps when the cause was outside, such as a full disk or a busy GPU."),
            "post": reverse("deployment-start", args=[row.pk]),
            "label": _("Start again"),
        },
    ]
    if row.attempts >= spec.restart.max_attempts:
        gave_up = _("Berth tried %(n)s times and stopped trying.") % {"n": row.attempts}
        found[1]["text"] = f"{gave_up} {found[1]['text']}"
    if row.run_id:
        found.append(
            {
                "title": _("Look at the whole record"),
                "text": _("Command, environment, versions, times and the log of this start."),
                "url": reverse("run", args=[row.run_id]),
                "label": _("Open the record"),
            }
        )
    return found


def _proof(run: Run) -> str:
    if run.ended_at is None or run.job is None:
        return ""
    ended = ending(run)
    text = _("Every process of the last start has ended; the host reported it.")
    return f"{text} {ended}".strip()


def candidates(reason: dict[str, Any]) -> list[dict[str, str]]:
    """Why each place was not taken."""
    found = []
    for item in (reason or {}).get("params", {}).get("candidates", []):
        said = words((item.get("params") or {}).get("problem") or item)
        found.append(
            {"name": item.get("name", ""), "text": said.text if said else "", "hint": said.hint if said else ""}
        )
    return found


def run_row(run: Run) -> dict[str, Any]:
    end = run.ended_at or timezone.now()
    if run.ended_at is None:
        shown = Badge("ok", _("Ready")) if run.ready_at else Badge("busy", _("Running"))
    else:
        shown = Badge("bad", _("Failed")) if run.outcome == "failed" else Badge("off", _("Stopped"))
    why = words(run.reason) if run.outcome == "failed" else None
    engine = f"{run.runtime.engine} " if run.runtime_id and run.runtime else ""
    return {
        "run": run,
        "badge": shown,
        "why": why.text if why else "",
        "where": f"{engine}{run.engine_version} · {place(run)}",
        "ran": (end - run.created_at).total_seconds(),
    }


def run_record(run: Run) -> dict[str, Any]:
    """Everything kept of one start."""
    import shlex

    argv = (run.job.status.get("argv") if run.job else None) or run.command
    env = [f"{key}={shlex.quote(str(value))}" for key, value in sorted(run.env.items())]
    return {
        "section": "deployments",
        "run": run,
        "d": run.deployment,
        "row": run_row(run),
        "command": " \\\n  ".join([*env, shlex.join(argv)]) if argv else "",
        "steps": steps(run, {}, failed=run.outcome == "failed"),
        "ending": ending(run),
        "reason": words(run.reason) if run.outcome == "failed" else None,
        "transitions": [
            {"badge": badge(t.new), "at": t.at, "why": w.text if (w := words(t.reason)) else ""}
            for t in run.transitions.order_by("pk")
        ],
        **_log_of(run),
    }
