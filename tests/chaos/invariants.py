"""What must be true after a fault, each as a function that gives sentences about what is not."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import httpx
import redis
from django.db.models import Sum

from tests.chaos.berth import Seen, fresh, visible_cards
from tests.chaos.scene import VERBS, Goal, Scene

ASKING = ("deployment.started", "deployment.restarted", "deployment.started_in_detail",
          "deployment.fixed", "deployment.mended")  # fmt: skip
LETHAL = {"exit.signal", "exit.unknown", "exit_unknown", "exit.code", "exit.zero", "host_restarted", "spawn_failed"}
LEAST_SAMPLES = 12
MOVING = ("queued", "placing", "preparing", "starting", "stopping", "lost")


def broken(scene: Scene, goal: Goal) -> list[str]:
    """All that is not true (yet); empty when Berth is as it should be."""

    def look() -> list[str]:
        now = time.monotonic()
        scene.refresh()
        if early := list(_state(scene, goal, Seen())):  # the cheap question first: most looks end with it
            return early
        seen = scene.berth.seen(since=now)
        found = [text for check in CHECKS for text in check(scene, goal, seen)]
        # The engine writes a line for each question: asked before, the log would never be whole.
        return found or list(_ready_is_true(scene, goal, seen))

    try:
        return fresh(look)
    finally:
        scene.release()


def wanted(scene: Scene, goal: Goal, row: Any) -> str:
    if goal.want == "deleted" or row.deleted_at is not None:
        return "deleted" if row.deleted_at is not None else "not deleted"
    return goal.want or row.desired


def _state(s: Scene, goal: Goal, seen: Seen) -> Iterator[str]:
    """State, reason and what people wanted agree."""
    row = s.row()
    want = wanted(s, goal, row)
    if goal.want == "deleted" and row.deleted_at is None:
        yield "the deletion was taken but the deployment is still there"
    if goal.want and row.desired != {"running": "running"}.get(goal.want, "stopped"):
        yield f"people want {goal.want}, desired says {row.desired}"
    if row.state in MOVING:
        yield f"it is {row.state} {row.reason.get('code', '')} where {want} was wanted"
    elif want == "running" and row.state == "stopped":
        yield "it is stopped where running was wanted"
    elif want != "running" and row.state == "ready":
        yield f"it is ready where {want} was wanted"
    elif row.state == "failed":
        yield from _failed(s, row, want)
    elif row.reason:
        yield f"{row.state} with a reason of before: {row.reason}"
    if row.state == "ready" and (row.run.revision_id != row.revision_id or row.restart_asked != row.restart_done):
        yield f"it runs other settings, or an older start, than people asked for ({row.restart_asked} {row.restart_done})"


def _failed(s: Scene, row: Any, want: str) -> Iterator[str]:
    code = row.reason.get("code", "")
    if not s.fault.kills_engine:
        yield f"it failed ({row.reason}) by a fault that ends no engine"
    elif code not in LETHAL:
        yield f"it failed for another reason than its engine's end: {row.reason}"
    if row.next_attempt_at is not None and want == "running":
        yield "it failed and is to be tried again"


def _processes(s: Scene, goal: Goal, seen: Seen) -> Iterator[str]:
    """One engine where one is wanted, none elsewhere: no process without a run, no live run without a process."""
    from deployments.models import Run

    live = {str(pk) for pk in Run.objects.filter(ended_at=None).values_list("pk", flat=True) if s.mine(str(pk))}
    row = s.row()
    should = {str(row.run_id)} if row.state == "ready" else set()
    processes, mains, shims = ({k: v for k, v in found.items() if s.mine(k)} for found in
                               (seen.processes, seen.mains, seen.shims))  # fmt: skip
    for job in processes.keys() - live:
        yield f"processes {processes[job]} of run {job[:8]}, which is over or unknown"
    for job in live - processes.keys():
        yield f"run {job[:8]} is alive in the record and has no process"
    if set(mains) != should:
        yield f"engines of {sorted(j[:8] for j in mains)} run, wanted are {sorted(j[:8] for j in should)}"
    for job, pids in mains.items():
        if len(pids) != 1:
            yield f"run {job[:8]} has {len(pids)} engines"
    for job in shims.keys() - live:
        yield f"a shim of run {job[:8]} is left"


def _ready_is_true(s: Scene, goal: Goal, seen: Seen) -> Iterator[str]:
    """Ready means that it answered, and answers: its port accepts, and its phases came in order."""
    row = s.row()
    if row.state != "ready":
        return
    if not row.run.answer:
        yield "ready without an answer"
    codes = [phase["code"] for phase in row.run.phases]
    if len(set(codes)) != len(codes) or any(a["start"] > b["start"] + 0.001 for a, b in pairwise(row.run.phases)):
        yield f"phases are not in order: {codes}"
    port = row.run.job.status.get("port")
    if not port:
        yield "ready, and nobody knows its port"
        return
    try:
        if s.berth.http.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code != 200:
            yield "ready, and the engine is not healthy"
    except httpx.HTTPError as exc:
        yield f"ready, and nothing answers at its port: {exc}"


def _runs(s: Scene, goal: Goal, seen: Seen) -> Iterator[str]:
    """No start too many, and none that was not asked for."""
    row = s.row()
    count, (least, most) = row.runs.count(), goal.runs
    if s.fault.kills_engine:
        most += row.attempts + 1
        least = 0
    if not least <= count <= most + max(0, s.presses.get("restart", 0) - 1):
        yield f"{count} runs where {least} to {most} were asked for"
    if row.runs.filter(ended_at=None).count() > 1:
        yield "two runs at the same time"
    moves = list(row.transitions.order_by("pk").values_list("old", "new"))
    for before, after in pairwise(moves):
        if before[1] != after[0]:
            yield f"the story of its states has a gap: {moves}"
    if not s.fault.kills_engine and ("failed" in [new for _old, new in moves]):
        yield f"it was called failed meanwhile: {moves}"


def _record(s: Scene, goal: Goal, seen: Seen) -> Iterator[str]:
    """Each act of a person stands once in the record, and the record tells what is."""
    from panel.audit.models import Event

    row = s.row()
    rows = Event.objects.filter(target_kind="deployment", target_id=str(row.pk)).order_by("pk")
    verbs = Counter(rows.values_list("verb", flat=True))
    if verbs["deployment.created"] != 1:
        yield f"created {verbs['deployment.created']} times in the record"
    if sum(verbs[verb] for verb in ASKING) != row.restart_asked:
        yield f"{row.restart_asked} starts were asked for, the record has {dict(verbs)}"
    if verbs["deployment.edited"] != row.revisions.count() - 1:
        yield f"{row.revisions.count()} revisions, the record has {verbs['deployment.edited']} edits"
    if verbs["deployment.deleted"] != (row.deleted_at is not None):
        yield f"deleted {verbs['deployment.deleted']} times in the record"
    last = rows.filter(after__has_key="desired").last()
    if last is None or last.after["desired"] != row.desired:
        yield f"the record's last word is {last and last.after}, desired is {row.desired}"
    for verb, name in VERBS.items():
        pressed = s.presses.get(verb, 0)
        lost = pressed and not verbs[name] and verb != "start" and verb not in s.given_up
        if verbs[name] > pressed or (lost and goal.want):
            yield f"{verb} was pressed {pressed} times and is {verbs[name]} times in the record"


def _memory_reserved(s: Scene, goal: Goal, seen: Seen) -> Iterator[str]:
    """What is reserved is what runs, device by device."""
    from deployments.models import Run
    from panel.fleet.models import Reservation

    live = {str(pk) for pk in Run.objects.filter(ended_at=None).values_list("pk", flat=True) if s.mine(str(pk))}
    held = {holder for holder in Reservation.objects.values_list("holder", flat=True) if s.mine(holder)}
    if held != live:
        yield f"reserved for {sorted(h[:8] for h in held)}, alive are {sorted(j[:8] for j in live)}"
    host = s.berth.host()
    mib = Reservation.objects.filter(host=host, gpu=None).aggregate(sum=Sum("mib"))["sum"] or 0
    if host.ram_reserved_mib != mib:
        yield f"the host says {host.ram_reserved_mib} MiB are reserved, the reservations {mib}"
    yield from _cards_reserved(s, host, seen)


def _cards_reserved(s: Scene, host: Any, seen: Seen) -> Iterator[str]:
    """Of each card: its sum is that of its reservations and fits; of each engine: it sees the cards it has reserved."""
    from panel.fleet.models import Gpu, Reservation

    for gpu in Gpu.objects.filter(host=host).annotate(claimed=Sum("reservations__mib")):
        if gpu.reserved_mib != (gpu.claimed or 0):
            yield f"card {gpu.index} says {gpu.reserved_mib} MiB are reserved, its reservations {gpu.claimed or 0}"
        if gpu.reserved_mib > gpu.total_mib:
            yield f"card {gpu.index} has {gpu.total_mib} MiB, {gpu.reserved_mib} are reserved"
    held: dict[str, set[str]] = defaultdict(set)
    for holder, uuid in Reservation.objects.exclude(gpu=None).values_list("holder", "gpu__uuid"):
        held[holder].add(uuid)
    for job, pids in seen.mains.items():
        if not s.mine(job):
            continue
        sees = {uuid for pid in pids for uuid in visible_cards(pid)}
        if sees != held[job] or bool(sees) != (s.device == "gpu"):
            yield f"run {job[:8]} ({s.device}) sees the cards {sorted(sees)}, reserved for it are {sorted(held[job])}"


def _log(s: Scene, goal: Goal, seen: Seen) -> Iterator[str]:
    """The stored log is, byte for byte, what the engine wrote."""
    from panel.fleet import logstore
    from panel.fleet.models import JobLog

    for run in s.row().runs.all():
        written = s.berth.written(str(run.pk))
        if not JobLog.objects.filter(pk=run.pk).exists():
            if written:
                yield f"run {str(run.pk)[:8]} wrote and has no log"
            continue
        stored = b"".join(part.data for part in logstore.read_all(run.pk))
        # An engine that is killed between its line and its own copy of it leaves that line in the log alone.
        rest = stored[len(written) :]
        if not stored.startswith(written) or (rest and not (run.ended_at and rest.count(b"\n") <= 1)):
            same = next((i for i, (a, b) in enumerate(zip(stored, written, strict=False)) if a != b), -1)
            yield f"log of {str(run.pk)[:8]}: {len(stored)} bytes stored, {len(written)} written, differ at {same}"


def _nothing_waits(s: Scene, goal: Goal, seen: Seen) -> Iterator[str]:
    """No task is retried for ever, no claim is kept, no job stays open, no folder stays on the host."""
    from deployments.models import Deployment, Run
    from panel.fleet.models import Job

    try:
        if any(queued := s.berth.queued().values()):
            yield f"tasks wait: {list(queued)}"
    except redis.RedisError as exc:
        yield f"the broker does not answer: {exc}"
    live = {str(pk) for pk in Run.objects.filter(ended_at=None).values_list("pk", flat=True)}
    opened = {str(pk) for pk in Job.objects.filter(open=True).values_list("pk", flat=True) if s.mine(str(pk))}
    if opened - live:
        yield f"jobs {sorted(j[:8] for j in opened - live)} are not closed"
    jobs = s.berth.data / "agent" / "jobs"
    folders = {path.name for path in jobs.iterdir() if path.is_dir() and s.mine(path.name)}
    if folders - live:
        kept = {f[:8]: sorted(p.name for p in (jobs / f).iterdir()) for f in folders - live if (jobs / f).is_dir()}
        yield f"folders are left on the host: {kept}"
    if s.berth.host().lost_at is not None:
        yield "the host is called lost"
    if held := Deployment.objects.filter(pk=s.pk).exclude(claim_token=None).first():
        yield f"a worker holds it: until {held.claim_until}"


CHECKS: tuple[Callable[[Scene, Goal, Seen], Iterator[str]], ...] = (
    _state, _processes, _runs, _record, _memory_reserved, _log, _nothing_waits,
)  # fmt: skip


def without_contact(scene: Scene) -> list[str]:
    """While the agent is silent: said so, and never called a failure. Empty when true, or when nothing of it runs."""
    row = scene.row()
    if row.state == "failed":
        return [f"called failed while its agent is silent: {row.reason}"]
    if row.state in ("starting", "ready") or (row.state == "stopping" and row.run.job_id):
        if row.state == "stopping" and row.reason.get("code") == "lost.no_contact":
            return []
        return [f"the agent is silent and it is called {row.state} {row.reason}"]
    if row.state == "lost" and row.reason.get("code") != "lost.no_contact":
        return [f"lost without saying why: {row.reason}"]
    return []


def memory_grows(
    samples: dict[tuple[str, int], list[float]], most_mib: float = 16.0, *, expected: Iterable[str] = ()
) -> list[str]:
    """Of each process that lived long: the last third of its life against the middle, after it warmed up.

    `expected`: names of which at least one process must have lived long enough to be judged.
    """
    judged = {name for (name, _pid), sizes in samples.items() if len(sizes) >= LEAST_SAMPLES}
    found = [
        f"{name} was not looked at often enough to tell whether it grows" for name in expected if name not in judged
    ]
    for (name, pid), sizes in samples.items():
        if len(sizes) < LEAST_SAMPLES:
            continue
        third = len(sizes) // 3
        middle, last = sorted(sizes[third : 2 * third]), sorted(sizes[-third:])
        grown = last[len(last) // 2] - middle[len(middle) // 2]
        if grown > most_mib:
            found.append(f"{name} ({pid}) grew by {grown:.0f} MiB: {sizes[0]:.0f} … {sizes[-1]:.0f}")
    return found
