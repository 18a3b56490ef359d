"""What pages show, as plain values: rows in, words and numbers out. Nothing is decided or written here."""

import datetime as dt
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from deployments import checking, contact, describing, queries, remedies, stalls
from deployments.models import Deployment, Run
from deployments.pages import failed as failed_page
from deployments.pages import fixes as fixes_page
from deployments.pages import proof
from deployments.pages.measured import came_of, compared, note_of, other_answers
from deployments.pages.revisions import revisions
from deployments.pages.run import (
    badge,
    ending,
    engine,
    error_of,
    log_of,
    on_cpu,
    place,
    process,
    run_row,
    step_name,
    steps,
)
from deployments.pages.ways import ways
from deployments.serving.contexts import findings_of, numbers
from deployments.spec import DeploymentSpec
from deployments.states import Desired, State
from deployments.steps import HOST_RESTARTED, NO_CONTACT
from deployments.wording import STEP_NOTES, STEP_NOTES_CPU, candidates, changes, person, words
from panel.accounts.forms import TokenForm
from panel.core.numbers import approx, duration, gib, ngroup

KINDS = {State.READY: "ready", State.FAILED: "failed", State.STOPPED: "stopped"}  # every other state is "moving"
RUNS_SHOWN = 20
AFTER_KILL_S = 5  # until then it is no news that processes of a stopping run are still there
AS_LONG_AS_IT_TAKES = {  # these states have no end of their own: what is waited for, and what a person can do
    State.QUEUED: gettext_lazy(
        "It waits as long as it takes, looks again by itself and starts when it can. Stop ends the waiting; in its "
        "settings another place can be chosen."
    ),
    State.LOST: gettext_lazy(
        "Berth waits for the host as long as it takes, and ends nothing meanwhile. You need not stay here."
    ),
}
WHY_NOT_YET = {  # while a state says no reason of its own
    State.QUEUED: {"code": "queued.waiting"},
    State.PLACING: {"code": "placing.now"},
    State.PREPARING: {"code": "preparing.now"},
    State.STOPPING: {"code": "stopping.now"},
    State.LOST: NO_CONTACT,
}
DOTS = {"yes": "", "skip": "", "now": "x", "todo": "t"}


def kind_of(row: Deployment) -> str:
    return KINDS.get(State(row.state), "moving")


def look_of(row: Deployment) -> str:
    """What the page's frame is made of: its kind and, on the way, the job whose log it follows.

    Parts of a page refresh themselves; when the look differs, the page is loaded whole.
    """
    kind, run = kind_of(row), row.run
    if kind == "failed" and run is not None:  # the next attempt may fail before anybody looks
        return f"failed-{run.pk}"
    follows = kind == "moving" and run is not None and run.job_id is not None and run.ended_at is None
    return f"{kind}-{run.job_id}" if run is not None and follows else kind


# --- one deployment -------------------------------------------------------------------------------------------------


def detail(
    row: Deployment, *, may_operate: bool, may_delete: bool, may_ask: bool, may_edit: bool, part: str | None = None,
    actor: Any = None, before: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """`part`: only that is shown, so what it does not show is not made. `actor` is who looks; `before`: the settings
    with a smaller number are listed."""
    run, kind = row.run, kind_of(row)
    context: dict[str, Any] = {
        "section": "deployments",
        "d": row,
        "run": run,
        "kind": kind,
        "look": look_of(row),
        "badge": badge(row.state),
        "summary": _summary(row),
        "reason": words(row.reason),
        "candidates": candidates(row.reason),
        "changes": changes(row.reason),
        "can_operate": may_operate,
        "can_ask": may_ask,
        "can_delete": may_delete,
        "can_stop": may_operate and (kind in ("ready", "moving") and row.desired == Desired.RUNNING),
        "can_rest": may_operate and kind == "failed" and row.desired == Desired.RUNNING,
        "can_start": may_operate and (kind in ("failed", "stopped") or row.desired == Desired.STOPPED),
        "can_restart": may_operate and kind == "ready",
        "runs": [run_row(r) for r in queries.runs_of(row)[:RUNS_SHOWN]],
        "can_go_back": may_edit,
        "can_change": may_edit and row.desired == Desired.RUNNING,
        "can_fix": may_edit and may_operate,
    }
    if part is None:
        context |= settings_had(row, before)
    if run is not None:
        context["process"] = process(run)
        if kind != "moving" or run.ended_at is None:  # the log of an earlier start is in its record
            context |= log_of(run)
    if kind == "moving":
        context |= moving(row)
    elif kind == "ready" and run is not None:
        context |= ready(row, run)
    elif kind == "failed" and part != "live":  # fixes are tried by the planner, which costs something
        context |= failed(row, run, may_operate=may_operate, actor=actor)
    elif run is not None:
        context["proof"] = _proof(run)
    return context


def settings_had(row: Deployment, before: int | None) -> dict[str, Any]:
    """The settings that it had, each with what came of it."""
    found = revisions(row, before)
    return {**found, "revisions": [{**each, "came": came_of(each["run"])} for each in found.get("revisions", [])]}


def _summary(row: Deployment) -> list[str]:
    run = row.run
    if run is None:
        parts = [queries.model_names([row])[row.pk]]
    elif row.state in (State.QUEUED, State.PLACING):  # where it ran before says nothing of where it will
        parts = [run.model_name]
    else:
        parts = [run.model_name, engine(run), place(run)]
    who = person(row.wanted_by)
    if who and row.desired == Desired.RUNNING:
        parts.append(_("started by %(who)s") % {"who": who})
    elif who:
        parts.append(_("stopped by %(who)s") % {"who": who})
    return [p for p in parts if p.strip()]


# --- while it moves ---------------------------------------------------------------------------------------------------


def moving(row: Deployment) -> dict[str, Any]:
    run = row.run if row.run is not None and row.run.ended_at is None else None
    now = timezone.now()
    going = run if row.state in (State.STARTING, State.PREPARING) else None
    usual = queries.usual_times(run) if run is not None else {}
    so_far = (now - going.created_at).total_seconds() if going is not None else None
    left = usual["all"]["median"] - so_far if "all" in usual and so_far is not None else None
    context: dict[str, Any] = {
        "reason": words(row.reason or WHY_NOT_YET.get(State(row.state))),
        "lead": _no_contact(row) or _lead(row, left),
        "so_far": so_far,
        "again": _again(row),
        "usually": _usually(going, usual),
        "percent": None,
        "deadline": _deadline(row, now),
        "stalled": stalls.note(stalls.quiet(run, now), usual) if row.state == State.STARTING else None,
    }
    if run is not None and row.state in (State.STARTING, State.PREPARING, State.LOST):
        context["steps"] = steps(run, usual)
        at = stalls.current_step(run) if going is not None else ""
        notes = STEP_NOTES_CPU if on_cpu(run) else STEP_NOTES
        before = run.job_id is None and (describing.wanted(run) or checking.wanted(run))  # the reason says what goes on
        context["step_note"] = tuple(map(str, notes[at])) if at in notes and not before else None
        context["step_usual"] = stalls.usually(at, usual, run.host_name, _at_step_s(run, now)) if at else ""
        if left is not None and left > 0 and so_far is not None:
            context["percent"] = max(2, round(100 * so_far / usual["all"]["median"]))
    if row.state == State.STOPPING and run is not None and run.job is not None:
        left_pids = run.job.status.get("leftover_pids") or []
        grace = DeploymentSpec.model_validate(run.revision.spec).grace_s
        if left_pids and (now - row.state_since).total_seconds() > grace + AFTER_KILL_S:
            context["reason"] = words({"code": "stop.leftover", "params": {"pids": left_pids}})
    return context


def _at_step_s(run: Run, now: dt.datetime) -> float | None:
    """Seconds since the step that goes on began."""
    began = next((s.start for s in queries.steps_of(run) if s.state == "now"), None)
    return now.timestamp() - began if began is not None else None


def _again(row: Deployment) -> str:
    """That this start is Berth's own, after a restart of the machine or a failure, and how many are left."""
    run = row.run
    if run is not None and HOST_RESTARTED in (run.reason.get("code"), run.cause):
        at = run.host.restarted_at if run.host is not None else None
        time = date_format(timezone.localtime(at), "TIME_FORMAT") if at is not None else ""
        host = run.host_name
        said = (
            _("The machine %(host)s started again at %(time)s.") if time else _("The machine %(host)s started again.")
        )
        return f"{said % {'host': host, 'time': time}} {_('This deployment is being started again.')}"
    if not row.attempts:
        return ""
    most = DeploymentSpec.model_validate(row.revision.spec).restart.max_attempts
    return _("Started again by itself after a failure: attempt %(n)s of %(most)s.") % {"n": row.attempts, "most": most}


def _no_contact(row: Deployment) -> str:
    found = contact.silent([row]).get(row.pk)
    return _("No contact with %(host)s since %(since)s") % found.params if found is not None else ""


def _lead(row: Deployment, left: float | None) -> str:
    if row.state == State.STARTING and left is not None:
        return approx(_("%(time)s left") % {"time": rough(left)}) if left > 0 else _("It takes longer than usual")
    if row.state == State.QUEUED and not row.reason:  # nobody has looked yet whether there is room
        return _("Choosing a place")
    return {
        State.QUEUED: _("It waits for room"),
        State.PLACING: _("Choosing a place"),
        State.PREPARING: _("Preparing the start"),
        State.STARTING: _("It is starting"),
        State.STOPPING: _("Finishing and stopping"),
        State.LOST: _("No contact with its host"),
    }[State(row.state)]


def rough(seconds: float) -> str:
    """A time to come, which nobody knows to the second: steps of 5 s, from 2 min on whole minutes."""
    return duration(max(5, round(seconds / 5) * 5) if seconds < 120 else round(seconds / 60) * 60)


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
    if row.state in AS_LONG_AS_IT_TAKES or row.reason.get("code") == NO_CONTACT["code"]:
        return str(AS_LONG_AS_IT_TAKES.get(State(row.state), AS_LONG_AS_IT_TAKES[State.LOST]))
    if row.deadline_at is None:
        return ""
    left = rough((row.deadline_at - now).total_seconds())
    if row.state == State.STARTING:
        text = _("If it is not ready within %(time)s, Berth ends it and says here why, and what to do.")
        return text % {"time": left}
    return _("If this is not done within %(time)s, Berth says here what holds it up.") % {"time": left}


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
        "findings": findings_of(row),
        "numbers": numbers(run),
        "compared": compared(run),
        "learned_note": note_of(run),
        "other_answers": other_answers(row, run.revision.number),
    }


def _measured(run: Run) -> list[tuple[str, str, str]]:
    seen = run.parser.get("facts", {})
    facts = []
    if run.ready_at:
        facts.append((_("Ready after"), duration((run.ready_at - run.created_at).total_seconds()), ""))
    if seen.get("kv_tokens"):
        facts.append((_("Room for conversations"), ngroup(seen["kv_tokens"]), _("KV cache tokens")))
    if seen.get("max_model_len"):
        facts.append((_("Longest conversation"), ngroup(seen["max_model_len"]), _("tokens")))
    status = run.job.status if run.job is not None else {}
    if status.get("gpu_used_mib") is not None:
        facts.append((_("GPU memory"), gib(status["gpu_used_mib"]), place(run)))
    facts.append((_("Main memory"), gib(status.get("rss_mib", 0)), run.host_name))
    return facts


# --- ended ------------------------------------------------------------------------------------------------------------


def failed(row: Deployment, run: Run | None, *, may_operate: bool, actor: Any = None) -> dict[str, Any]:
    """The failed page. `row.reason` may be of a placing that failed before any run was made."""
    of_run = run is not None and run.outcome == "failed" and run.reason == row.reason
    fixes = fixes_page.views(row, remedies.of(row, actor))
    context: dict[str, Any] = {
        "run_failed": of_run,
        "retry": _retry(row),
        "fixes": fixes,
        "fixes_note": fixes_page.note(row, fixes),
        "effects_by": proof.effects_by(run, fixes),
        "rest": _rest(row),
        "whom_to_ask": fixes_page.whom_to_ask(row),
        "ways": ways(row, fixes),
        "attempts": fixes_page.attempts(run if of_run else None),
    }
    if run is None or not of_run:
        return context
    states = queries.steps_of(run) if run.job_id is not None else []
    at = next((n for n, s in enumerate(states, 1) if s.state == "now"), 0)
    return {
        **context,
        **error_of(run),
        "dx": failed_page.diagnosis(run, may_judge=may_operate),
        "log_root": failed_page.log_root(run),
        "itself": proof.itself(run),
        "last_answer": run.probe.get("last") if row.reason.get("code") == "answer.failed" else None,
        "failed_at": f"{at} / {len(states)} · {step_name(states[at - 1])}" if at else "",
        "dots": [DOTS[s.state] for s in states],
        "ending": ending(run),
    }


def _retry(row: Deployment) -> dict[str, str] | None:
    if row.next_attempt_at is None or row.desired != Desired.RUNNING:
        return None
    left = max(0.0, (row.next_attempt_at - timezone.now()).total_seconds())
    text = _("Berth starts it again by itself in %(time)s (attempt %(n)s of %(most)s).")
    spec = DeploymentSpec.model_validate(row.revision.spec)
    return {"text": text % {"time": duration(left), "n": row.attempts + 1, "most": spec.restart.max_attempts}}


def _rest(row: Deployment) -> str:
    """That nothing happens by itself any more, so that nobody waits for it; "" while Berth tries again."""
    if row.next_attempt_at is not None and row.desired == Desired.RUNNING:
        return ""
    if row.reason.get("code") == "stop.not_proven":
        return _("Berth goes on looking, and says here when they are gone. Until then nothing new starts.")
    return _("Berth does not start it again by itself. It stays so until someone does.")


def _proof(run: Run) -> str:
    if run.ended_at is None or run.job is None:
        return ""
    ended = ending(run)
    text = _("Every process of the last start has ended; the host reported it.")
    return f"{text} {ended}".strip()
