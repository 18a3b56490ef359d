"""Deployments, their immutable revisions, and the runs that came of them."""

import uuid

from django.db import models
from django.db.models import Q

from deployments.states import Desired, State
from models_catalog.models import Copy
from panel.core.models import Claimable, TimeStamped
from panel.fleet.models import Host, Job, Runtime

STATES = [s.value for s in State]
DESIRED = [d.value for d in Desired]


class Deployment(TimeStamped, Claimable):
    """What people want to run. They write `desired`, `revision` and `restart_asked`; reconcile moves the rest.

    `name` is the model name at the door. A deleted deployment keeps its row (and its runs) with `deleted_at`.
    """

    name = models.CharField(max_length=63)
    desired = models.CharField(max_length=8, default=Desired.STOPPED.value)
    state = models.CharField(max_length=10, default=State.STOPPED.value, db_index=True)
    state_since = models.DateTimeField(auto_now_add=True)
    deadline_at = models.DateTimeField(null=True)
    looked_at = models.DateTimeField(null=True)  # when a worker last looked at it
    reason = models.JSONField(default=dict)  # {code, params}; why it waits, failed or is lost
    revision = models.ForeignKey("Revision", on_delete=models.PROTECT, null=True, related_name="+")
    run = models.ForeignKey("Run", on_delete=models.SET_NULL, null=True, related_name="+")  # the newest run
    restart_asked = models.PositiveIntegerField(default=0)  # a person's wish for another run, counted up
    restart_done = models.PositiveIntegerField(default=0)
    detail_asked = models.PositiveIntegerField(default=0)  # the wish (its number) for one run with a detailed log
    attempts = models.PositiveSmallIntegerField(default=0)  # automatic restarts since the last person's start
    next_attempt_at = models.DateTimeField(null=True)
    created_by = models.CharField(max_length=150, blank=True)
    created_by_id = models.BigIntegerField(null=True)
    trace = models.CharField(max_length=64, blank=True, default="", db_default="")  # of the newest wish
    wanted_by = models.CharField(max_length=150, blank=True)  # who pressed start or stop last
    wanted_by_id = models.BigIntegerField(null=True)
    deleted_at = models.DateTimeField(null=True)
    questions = models.JSONField(null=True)  # up to three, asked at each ready; null: golden.USUAL

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["name"], condition=Q(deleted_at=None), name="deployment_name_unique"),
            models.CheckConstraint(name="deployment_state_known", condition=Q(state__in=STATES)),
            models.CheckConstraint(name="deployment_desired_known", condition=Q(desired__in=DESIRED)),
        ]
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Revision(models.Model):
    """One immutable version of a deployment's spec."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    spec = models.JSONField()  # DeploymentSpec
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=150)
    created_by_id = models.BigIntegerField(null=True)
    # the fix that it came of: {fix, params, class, run (its number), by_itself}; {} where a person wrote it
    why = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))

    class Meta:
        constraints = [models.UniqueConstraint(fields=["deployment", "number"], name="revision_number_once")]
        ordering = ["deployment_id", "-number"]

    def __str__(self) -> str:
        return f"{self.deployment} r{self.number}"


class Run(models.Model):
    """One attempt to run a revision, kept for ever: command, environment, versions, phases, answer, end.

    `phases` is a list of {code, start, end, done, total} (Unix seconds); `log_parsed` is the log offset up to which it
    was read and `parser` the parser's memory. `env` has secrets masked; `secrets` (encrypted) holds the engine's key.
    `foreseen` is what the estimate said for this very start, `measured` what the engine's log says (measured.py has the
    names of both); `residual_gib` is their difference in the cache, from which later estimates of its family learn.
    `parent` is the failed run that it followed; `diagnosis` is what is known of a failure beyond its reason: see
    diagnosis.failure.Ending and evidence.kept.

    A start that ended before it had a place is a run too: without job and command; host, runtime, copy and placement
    are those that it would have had, where they were known.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="runs")
    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, related_name="runs")
    number = models.PositiveIntegerField()
    host = models.ForeignKey(Host, on_delete=models.PROTECT, null=True, related_name="runs")
    runtime = models.ForeignKey(Runtime, on_delete=models.SET_NULL, null=True, related_name="runs")
    copy = models.ForeignKey(Copy, on_delete=models.SET_NULL, null=True, related_name="runs")
    job = models.OneToOneField(Job, on_delete=models.PROTECT, null=True, related_name="run")
    placement = models.JSONField(default=dict)  # planner.Placement: devices, MiB reserved, reasons
    command = models.JSONField(default=list)  # argv as executed
    env = models.JSONField(default=dict)
    secrets = models.BinaryField(null=True)
    engine_version = models.CharField(max_length=60, blank=True)
    host_name = models.CharField(max_length=64, blank=True)
    model_name = models.CharField(max_length=250, blank=True)
    started_by = models.CharField(max_length=150)
    started_by_id = models.BigIntegerField(null=True)
    cause = models.CharField(max_length=16, default="person")  # person, restart_policy, host_restarted, edit
    detail = models.BooleanField(default=False)  # this one run logs in detail (VLLM_LOGGING_LEVEL=DEBUG)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    phases = models.JSONField(default=list)
    log_parsed = models.BigIntegerField(default=0)
    parser = models.JSONField(default=dict)
    probe = models.JSONField(default=dict)  # {asked_at, tries, last: {status, body}}
    answer = models.JSONField(null=True)  # {question, answer, latency_ms, at, url}
    ready_at = models.DateTimeField(null=True)
    family = models.CharField(max_length=80, blank=True, default="", db_default="")  # of architectures, as config.json
    foreseen = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    measured = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    residual_gib = models.FloatField(null=True)
    golden = models.JSONField(  # {asked_at, answers: [{question, answer, error, latency_ms}]}, see golden.py
        default=dict, db_default=models.Value({}, models.JSONField())
    )
    # While it serves: what is not well, {found: [Finding and its fix], base} (serving/watch.py), and whether it still
    # answers (serving/liveness.py).
    findings = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    live = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    outcome = models.CharField(max_length=8, blank=True)  # "", stopped, failed
    parent = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, related_name="+", db_index=False)
    diagnosis = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    reason = models.JSONField(default=dict)  # {code, params}
    error_block = models.JSONField(default=dict)  # {first_line, lines: [...]} of the first error in the log
    exit_code = models.IntegerField(null=True)
    signal = models.IntegerField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["deployment", "number"], name="run_number_once")]
        # The few that go on are asked for all the time, among all that ever were.
        indexes = [
            models.Index(fields=["deployment"], condition=models.Q(ended_at=None), name="run_open"),
            models.Index(
                fields=["family", "-created_at"], condition=models.Q(residual_gib__isnull=False), name="run_taught"
            ),
        ]
        ordering = ["deployment_id", "-number"]

    def __str__(self) -> str:
        return f"{self.deployment} run {self.number}"

    @property
    def was_placed(self) -> bool:
        """Whether a place for it was known; some starts end before that."""
        return "gpu_uuids" in self.placement


class Transition(models.Model):
    """Each move of a deployment's state, so that its story can be read later."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="transitions")
    run = models.ForeignKey(Run, on_delete=models.SET_NULL, null=True, related_name="transitions")
    old = models.CharField(max_length=10)
    new = models.CharField(max_length=10)
    reason = models.JSONField(default=dict)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["deployment_id", "id"]

    def __str__(self) -> str:
        return f"{self.old} → {self.new}"


class Failure(models.Model):
    """One start that failed, narrow enough to be counted by the thousands: its class, where, what came next.

    `code` is the class of the diagnosis, or the panel's own reason; "" where the cause was not recognised. Errors that
    say the same have the same `alike` (diagnosis/alike.py). `mended_by` is the very next start of the deployment where
    that got ready, `mended_change` what it did differently: names of settings, "same", or "" where nobody knows.
    `right` is what people say of the explanation (None: nobody has said anything).
    """

    run = models.OneToOneField(Run, on_delete=models.CASCADE, related_name="failure")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="failures")
    at = models.DateTimeField(db_index=True)  # when the run ended
    code = models.CharField(max_length=80, blank=True, default="", db_default="")
    phase = models.CharField(max_length=20, blank=True, default="", db_default="")
    engine = models.CharField(max_length=20, blank=True, default="", db_default="")
    engine_version = models.CharField(max_length=60, blank=True, default="", db_default="")
    host_name = models.CharField(max_length=64, blank=True, default="", db_default="")
    model_name = models.CharField(max_length=250, blank=True, default="", db_default="")
    alike = models.CharField(max_length=32, blank=True, default="", db_default="")
    mended_by = models.OneToOneField(Run, on_delete=models.SET_NULL, null=True, related_name="mends")
    mended_change = models.CharField(max_length=200, blank=True, default="", db_default="")
    right = models.BooleanField(null=True)
    note = models.CharField(max_length=500, blank=True, default="", db_default="")
    judged_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    judged_by_id = models.BigIntegerField(null=True)
    judged_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["code", "-at"], name="failure_of_class"),
            models.Index(fields=["alike", "-at"], name="failure_alike", condition=~Q(alike="")),
        ]
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.run}: {self.code or 'not recognised'}"
