"""Hosts, their GPUs, the engines found on them, the jobs ordered for them, and what is reserved."""

import uuid
from datetime import timedelta

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from panel.core.models import TimeStamped

LOST_RESULT = timedelta(seconds=60)  # a job that ended this long ago and has no result will not get one


class KnownHosts(models.Manager["Host"]):
    """All hosts but those that were forgotten: they are nobody's business except that of their runs' history."""

    def get_queryset(self) -> models.QuerySet["Host"]:
        return super().get_queryset().filter(forgotten_at=None)


class Host(TimeStamped):
    """A machine with an agent. Only the agent's report changes the measured fields.

    `work_rev` grows with every change of the host's jobs; the agent fetches work by it. A forgotten host keeps its row,
    since runs name it; its name is free again and its token is ended.
    RAM figures are MiB. `ram_reserved_mib` moves in the reservation's own transaction.
    """

    name = models.CharField(max_length=64)
    is_local = models.BooleanField(default=False)  # the panel's own machine: the door reaches engines by loopback
    token_hash = models.CharField(max_length=64, unique=True)  # SHA-256 hex of the host token
    work_rev = models.BigIntegerField(default=1)
    agent_version = models.CharField(max_length=32, blank=True)
    last_seen_at = models.DateTimeField(null=True)  # coarse while it calls: samples.py knows when it called last
    told = models.CharField(max_length=64, blank=True, default="", db_default="")  # see heartbeat.py
    report_seq = models.BigIntegerField(default=0, db_default=0)  # of the newest report that was written down
    lost_at = models.DateTimeField(null=True)  # set when the agent was silent too long, cleared by its next report
    agent_instance = models.CharField(max_length=80, blank=True)  # the agent that has the host's line, see seats.py
    clock_skew_s = models.FloatField(default=0.0)  # the host's clock minus ours; positive: it is ahead
    boot_id = models.CharField(max_length=64, blank=True)  # of the machine's newest start
    restarted_at = models.DateTimeField(null=True)  # when the machine started again, by our clock
    link_trouble = models.JSONField(default=dict)  # the newest refusal of an agent with this host's token
    facts = models.JSONField(default=dict)  # wire.HostFacts without gpus
    facts_at = models.DateTimeField(null=True)
    ram_total_mib = models.PositiveIntegerField(default=0)
    ram_reserved_mib = models.PositiveIntegerField(default=0)
    model_roots = models.JSONField(default=list)  # folders that an admin added for scans
    runtime_executables = models.JSONField(default=list)  # engines that an admin named
    runtime_folders = models.JSONField(default=list)  # folders with engines (venvs, conda) that an admin named
    schedulable = models.BooleanField(default=True)  # False: nothing new starts here
    hold = models.JSONField(null=True)  # who set it aside, when and why: {by, at, note}
    door = models.JSONField(default=dict)  # newest wire.DoorFacts; empty where no door was reported
    door_keys = models.BinaryField(null=True)  # sealed: the panel's keys for that door, the newest first
    forgotten_at = models.DateTimeField(null=True)

    objects = KnownHosts()
    everyone = models.Manager["Host"]()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["name"], condition=Q(forgotten_at__isnull=True), name="host_name_once_while_known"
            ),
            models.CheckConstraint(
                name="host_ram_not_overcommitted",
                condition=Q(ram_reserved_mib__lte=F("ram_total_mib")) | Q(ram_reserved_mib=0),
            ),
        ]
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Gpu(models.Model):
    """One GPU of a host. `reserved_mib` is what runs have claimed; `used_mib` is what NVML measured."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="gpus")
    uuid = models.CharField(max_length=80)
    index = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=120)
    total_mib = models.PositiveIntegerField()
    used_mib = models.PositiveIntegerField(default=0)
    reserved_mib = models.PositiveIntegerField(default=0)
    measured = models.JSONField(default=dict)  # utilisation, temperature, power, processes
    measured_at = models.DateTimeField(null=True)
    present = models.BooleanField(default=True)  # False when the newest report no longer lists it
    schedulable = models.BooleanField(default=True)  # False: no new run takes it
    hold = models.JSONField(null=True)  # who set it aside, when and why: {by, at, note}

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["host", "uuid"], name="gpu_once_per_host"),
            models.CheckConstraint(
                name="gpu_not_overcommitted", condition=Q(reserved_mib__lte=F("total_mib")) | Q(reserved_mib=0)
            ),
        ]
        ordering = ["host_id", "index"]

    def __str__(self) -> str:
        return f"{self.host} GPU {self.index}"


class Runtime(TimeStamped):
    """An engine that can be started on a host; `flags` is the schema of its own parser."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="runtimes")
    engine = models.CharField(max_length=16)  # vllm, sglang, llamacpp, ollama
    executable = models.CharField(max_length=500)
    version = models.CharField(max_length=60, blank=True)
    python = models.CharField(max_length=32, blank=True)
    device = models.CharField(max_length=16, blank=True)  # cuda, cpu, rocm, npu, tpu, xpu
    plugins = models.JSONField(default=list)
    flags = models.JSONField(default=list)
    origin = models.CharField(max_length=16, blank=True)
    refusal = models.JSONField(null=True)  # wire.Refusal of an engine that was found but does not work
    present = models.BooleanField(default=True)
    removed_at = models.DateTimeField(null=True)  # an admin had it deleted; runs of it keep their record
    remove_job = models.ForeignKey("Job", on_delete=models.SET_NULL, null=True, related_name="+")
    remove_refusal = models.JSONField(null=True)  # wire.Refusal of the newest try to remove it

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "executable"], name="runtime_once_per_host")]
        ordering = ["host_id", "engine", "-version"]

    def __str__(self) -> str:
        return f"{self.engine} {self.version} ({self.host})"


class Job(models.Model):
    """Something that should be, or was, on a host: an engine run, a scan, a runtime discovery.

    The panel makes the id before the first word to the host. `order` is the wire.Task without `secret_env`, which is
    kept encrypted in `secrets` until the job is closed. `state` mirrors wire.JobStatus.state ("ordered" until the
    host spoke of it).
    A job is *open* until its end and its whole log are here; open jobs are the host's work.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="jobs")
    kind = models.CharField(max_length=16)
    desired = models.CharField(max_length=8, default="run")  # run, stop
    grace_s = models.FloatField(default=30.0)
    order = models.JSONField(default=dict)
    secrets = models.BinaryField(null=True)
    trace = models.CharField(max_length=64, blank=True, default="", db_default="")  # of who asked, see core/trace.py
    state = models.CharField(max_length=16, default="ordered", db_index=True)
    status = models.JSONField(default=dict)  # newest wire.JobStatus
    status_at = models.DateTimeField(null=True)
    result = models.JSONField(null=True)  # wire.JobResult
    open = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["host", "kind", "-created_at"]),
            # Every report and page asks for the few that are open, among all that ever were.
            models.Index(fields=["host"], condition=Q(open=True), name="job_open"),
        ]
        constraints = [
            models.CheckConstraint(name="job_desired_known", condition=Q(desired__in=["run", "stop"])),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"

    @property
    def never_ran(self) -> bool:
        """Refused, or stopped before the host began: no result of it will come."""
        stopped = self.state == "ended" and bool(self.status.get("stop_asked")) and not self.status.get("started_at")
        return self.state == "refused" or stopped

    @property
    def lost_result(self) -> bool:
        """It ended so long ago that the result that is not here will not come."""
        if self.state != "ended" or self.result is not None:
            return False
        return self.ended_at is None or self.ended_at < timezone.now() - LOST_RESULT


class InstallState(models.TextChoices):
    """waiting → running → done or failed; cancelling → cancelled, or done when it was too late to cancel."""

    WAITING = "waiting"  # ordered, the host has not begun
    RUNNING = "running"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RuntimeInstall(TimeStamped):
    """One engine that an admin had Berth install. `job` is the newest try; `name` becomes the folder's on the host.

    `steps` is a list of {code, start, end, done, total, note} (Unix seconds, the panel's clock). After `deadline_at`
    the try is ended and said to have failed, so that nothing is "installing" for ever.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="installs")
    engine = models.CharField(max_length=16, default="vllm")
    variant = models.CharField(max_length=8)  # cpu, cuda
    version = models.CharField(max_length=60, blank=True)  # as asked: "" the newest, "nightly", or exact
    extras = models.JSONField(default=list)
    name = models.CharField(max_length=120)
    state = models.CharField(max_length=12, choices=InstallState.choices, default=InstallState.WAITING, db_index=True)
    job = models.ForeignKey("Job", on_delete=models.PROTECT, null=True, related_name="+")
    tries = models.PositiveSmallIntegerField(default=0)
    steps = models.JSONField(default=list)
    refusal = models.JSONField(null=True)  # wire.Refusal, why it failed
    runtime = models.ForeignKey(Runtime, on_delete=models.SET_NULL, null=True, related_name="installs")
    asked_by = models.CharField(max_length=150, blank=True)
    asked_by_id = models.BigIntegerField(null=True)
    began_at = models.DateTimeField(null=True)  # of the newest try
    deadline_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(name="install_state_known", condition=Q(state__in=InstallState.values)),
            # What goes on at the same time on a host has names of its own.
            models.UniqueConstraint(
                fields=["host", "name"],
                condition=Q(state__in=["waiting", "running", "cancelling"]),
                name="install_once_per_folder",
            ),
        ]
        indexes = [models.Index(fields=["host", "-created_at"])]
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} on {self.host}"


class JobLog(models.Model):
    """The panel's copy of a job's output. Bytes [0, size): sealed segments in storage, then `tail`.

    `segments` is a list of [start, end, name]; a name of "" is a gap (removed by a bound, never shipped).
    Appends move `size` by guarded update, so the same bytes are never stored twice.
    """

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="log")
    size = models.BigIntegerField(default=0)
    tail = models.BinaryField(default=bytes)
    segments = models.JSONField(default=list)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"log of {self.job_id}, {self.size} bytes"


class Reservation(models.Model):
    """MiB that a holder (a run, as text) has claimed of a GPU, or of the host's RAM when `gpu` is empty."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="reservations")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, null=True, related_name="reservations")
    holder = models.CharField(max_length=64, db_index=True)
    mib = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["holder", "host", "gpu"], name="reservation_once", nulls_distinct=False)
        ]

    def __str__(self) -> str:
        return f"{self.mib} MiB for {self.holder}"


class JoinCode(models.Model):
    """A one-time code with which an agent joins; 15 minutes. Only its SHA-256 is kept.

    `host` is the host that joined by it; of a code for a host that is there already (a new key for the same row) it is
    set from the beginning, and `again` is true.
    """

    code_hash = models.CharField(max_length=64, unique=True)
    host_name = models.CharField(max_length=64)
    host = models.ForeignKey(Host, on_delete=models.SET_NULL, null=True, related_name="join_codes")
    again = models.BooleanField(default=False)
    made_by = models.CharField(max_length=150, blank=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"join code for {self.host_name}"
