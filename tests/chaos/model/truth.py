"""What people asked for, as simply as it can be said, and everything that must hold of Berth because of it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Sum

from deployments.models import Deployment, Run, Transition
from deployments.spec import DeploymentSpec
from deployments.states import may_move
from panel.audit.models import Event
from panel.fleet import logstore
from panel.fleet.models import Gpu, Host, Job, Reservation
from tests.chaos.model.world import World

MAX_HOST_RESTARTS = 3


@dataclass
class Wanted:
    """One deployment as people see it."""

    pk: int
    name: str
    running: bool
    specs: list[DeploymentSpec]
    deleted: bool = False
    crashed: bool = False  # since a person last started it
    acts: Counter[str] = field(default_factory=Counter)

    @property
    def spec(self) -> DeploymentSpec:
        return self.specs[-1]


def always(world: World, wanted: list[Wanted]) -> list[str]:
    """What holds in every moment, however things are moving."""
    said = []
    for want in wanted:
        run_ids = {str(pk) for pk in Run.objects.filter(deployment_id=want.pk).values_list("pk", flat=True)}
        mine = [process for process in world.engines() if process.id in run_ids]
        if len(mine) > 1:
            said.append(f"{want.name} has {len(mine)} engines at once: {[p.id for p in mine]}")
    for uuid in world.agent.gpus:
        users = [process.id for process in world.engines() if uuid in process.gpus]
        if len(users) > 1:
            said.append(f"{uuid} is used by {users} at once, each of which wants most of it")
    said += [f"job {job_id} was started {count} times" for job_id, count in world.agent.ran.items() if count > 1]
    said += _books_add_up(world)
    said += _acts_recorded(wanted)
    return said


def _books_add_up(world: World) -> list[str]:
    """The columns with the sums are the sums, and none is more than there is."""
    said = []
    rows = Reservation.objects.filter(host=world.host)
    sums = dict(rows.exclude(gpu=None).values_list("gpu").annotate(mib=Sum("mib")))
    for gpu in Gpu.objects.filter(host=world.host):
        if gpu.reserved_mib != sums.get(gpu.pk, 0) or gpu.reserved_mib > gpu.total_mib:
            said.append(f"{gpu.uuid}: {gpu.reserved_mib} MiB reserved, the rows say {sums.get(gpu.pk, 0)}")
    host, ram = Host.objects.get(pk=world.host.pk), rows.filter(gpu=None).aggregate(mib=Sum("mib"))["mib"] or 0
    if host.ram_reserved_mib != ram or ram > host.ram_total_mib:
        said.append(f"RAM: {host.ram_reserved_mib} MiB reserved, the rows say {ram}")
    return said


def _acts_recorded(wanted: list[Wanted]) -> list[str]:
    """Each act of a person has exactly one row."""
    said = []
    for want in wanted:
        rows = Event.objects.filter(target_kind="deployment", target_id=str(want.pk), actor="maria")
        found = Counter(rows.values_list("verb", flat=True))
        if found != want.acts:
            said.append(f"{want.name}: recorded {dict(found)}, done {dict(want.acts)}")
    return said


def at_rest(world: World, wanted: list[Wanted]) -> list[str]:
    """What holds once everything had its time, with the host reachable or away."""
    said = always(world, wanted)
    holders = set()
    for want in wanted:
        row = Deployment.objects.select_related("run__job", "revision").get(pk=want.pk)
        said += [f"{want.name} ({row.state} {row.reason.get('code', '')}): {text}" for text in _row(world, want, row)]
        run = row.run
        if run is not None and run.ended_at is None:
            holders.add(str(run.pk))
    reserved = set(Reservation.objects.filter(host=world.host).values_list("holder", flat=True))
    if reserved != holders:
        said.append(f"reserved for {reserved}, running are {holders}")
    if not world.agent.down:
        said += _host_agrees(world, holders)
    return said


def _host_agrees(world: World, holders: set[str]) -> list[str]:
    living = {process.id for process in world.engines()}
    said = []
    if living != holders:
        said.append(f"on the host live {living}, runs are {holders}")
    opened = set(Job.objects.filter(host=world.host, open=True).values_list("pk", flat=True))
    if left := opened - set(Run.objects.filter(ended_at=None).values_list("pk", flat=True)):
        said.append(f"jobs are still open: {left}")
    if left := world.agent.jobs.keys() - living:
        said.append(f"the host still keeps {left}")
    return said


def _row(world: World, want: Wanted, row: Deployment) -> list[str]:
    said = []
    if row.claim_token is not None and world.stalled is None:
        said.append("someone still holds it")
    if row.revision.spec != want.spec.model_dump(mode="json") or row.revision.number != len(want.specs):
        said.append(f"revision {row.revision.number} is not what people said last ({len(want.specs)})")
    if (row.desired == "running") != want.running:
        said.append(f"desired is {row.desired}")
    said += _story(row)
    for run in Run.objects.filter(deployment=row).select_related("job"):
        said += _run(world, row, run)
    if world.agent.down:
        return said + _away(want, row)
    return said + (_runs(world, want, row) if want.running else _rests(world, row))


def _rests(world: World, row: Deployment) -> list[str]:
    ended = row.run is None or row.run.ended_at is not None
    if row.state == "stopped" and ended:
        return []
    if row.state == "failed" and ended and row.run is not None and row.run.outcome == "failed":
        return []  # it had failed before it was stopped
    return ["it should rest"]


def _runs(world: World, want: Wanted, row: Deployment) -> list[str]:
    if row.restart_asked != row.restart_done:
        return ["a wish for another run is open"]
    if row.state == "queued":
        return _waits_rightly(world, row)
    if row.state == "failed":
        return _failed_rightly(want, row)
    if row.state != "ready" or row.run is None:
        return ["it should be ready"]
    run, process = row.run, world.agent.jobs.get(str(row.run_id))
    if run.revision_id != row.revision_id:
        return ["an older revision runs"]
    if process is None or not process.listening:
        return ["no engine listens"]
    if row.reason or run.answer is None or run.ready_at is None:
        return [f"ready, with {row.reason}, answer {run.answer}"]
    status = row.run.job.status
    said = (status["pid"], status["port"], status["listening"], row.run.job.state)
    is_so = (process.pid, process.port, True, "running")
    return [] if said == is_so else [f"the panel says {said}, the host {is_so}"]


def _waits_rightly(world: World, row: Deployment) -> list[str]:
    """It waits for room, says so, and there is none: its kind takes most of a card, or more RAM than is left."""
    candidates = row.reason.get("params", {}).get("candidates", [])
    codes = {candidate["code"] for candidate in candidates}
    used = {uuid for process in world.engines() for uuid in process.gpus}
    if row.reason.get("code") != "place.none" or not codes:
        return [f"it waits for {row.reason}"]
    if codes <= {"gpu.reserved", "gpu.busy"} and used == set(world.agent.gpus):
        return []
    return [] if codes == {"host.ram_reserved"} else [f"it waits for {codes}, used are {used}"]


def _failed_rightly(want: Wanted, row: Deployment) -> list[str]:
    code = row.reason.get("code", "")
    if row.next_attempt_at is not None:
        return ["it is about to be tried again"]
    if code == "host_restarted":
        count = Run.objects.filter(deployment=row, reason__code=code).count()
        return [] if count > MAX_HOST_RESTARTS else [f"given up after {count} restarts of the machine"]
    if want.crashed and code in ("exit.code", "exit.signal"):
        return []
    return ["it failed for no reason of its own"]


def _away(want: Wanted, row: Deployment) -> list[str]:
    """The host cannot be reached: nothing is known, and that is what is said."""
    run = row.run
    live = run is not None and run.ended_at is None
    if row.state == "failed":
        return _failed_rightly(want, row)
    if not live:
        rests = row.state in ("stopped", "queued") if not want.running else row.state == "queued"
        return [] if rests else ["nothing of it runs"]
    if row.state == "stopping":
        ordered = run.job is not None and run.job.desired == "stop"
        return [] if ordered and row.reason.get("code") == "lost.no_contact" else ["no contact is not said"]
    lost = row.state == "lost" and row.reason.get("code") == "lost.no_contact" and want.running
    return [] if lost else ["no contact is not said"]


def _story(row: Deployment) -> list[str]:
    """The transitions are one unbroken chain of allowed arrows that ends where the row is."""
    said, last = [], "stopped"
    for old, new in Transition.objects.filter(deployment=row).order_by("pk").values_list("old", "new"):
        if old != last or not may_move(old, new):
            said.append(f"the story breaks at {old} → {new} after {last}")
        last = new
    return said if last == row.state else [*said, f"the story ends at {last}"]


def _run(world: World, row: Deployment, run: Run) -> list[str]:
    said = []
    name = f"run {run.number}"
    if run.ended_at is None:
        if run.pk != row.run_id:
            said.append(f"{name} has no end and is not the newest")
        return said
    if run.outcome not in ("stopped", "failed") or (run.outcome == "failed") != bool(run.reason):
        said.append(f"{name} ended {run.outcome!r} for {run.reason}")
    if str(run.pk) in {process.id for process in world.engines()}:
        said.append(f"{name} is over and its engine lives")
    return said if world.agent.down else said + _log_is_whole(world, run, name)


def _log_is_whole(world: World, run: Run, name: str) -> list[str]:
    if run.job is None:
        return []
    stored = b"".join(part.data for part in logstore.read_all(run.job_id))
    wrote = world.wrote.get(str(run.pk), b"")
    whole = wrote.startswith(stored) if str(run.pk) in world.torn else stored == wrote
    return [] if whole else [f"{name} wrote {wrote!r}, stored is {stored!r}"]


def open_acts(row: Any) -> bool:
    """Whether a person's wish for another run waits to begin."""
    return bool(row.restart_asked > row.restart_done)
