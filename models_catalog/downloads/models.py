"""Downloads that people had Berth make, and the access that they gave it to hubs."""

import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from panel.core.models import TimeStamped
from panel.fleet.models import Host, Job


class Source(models.TextChoices):
    HUGGINGFACE = "huggingface", "Hugging Face"
    MODELSCOPE = "modelscope", "ModelScope"


class State(models.TextChoices):
    """waiting → running → done or failed. pausing → paused → waiting again; cancelling → cancelled.

    What was asked too late ends as done. Of a running one the host's job says whether it fetches or verifies.
    """

    WAITING = "waiting"  # for its turn (no job), or for the host to begin
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    DONE = "done"
    FAILED = "failed"


ACTIVE = (State.WAITING, State.RUNNING, State.PAUSING, State.CANCELLING)


class Download(TimeStamped):
    """Files of a repository for one host. `job` is the newest try.

    `files` are wire.DownloadFile dicts, `revision` the commit they belong to, `ref` the branch that was chosen. `made`
    are the paths of the models that came of it. Bytes are those of all files; `bytes_done` is kept when a try ends.
    `asked_by_id` is the person whose access to the hub is used, `moved_by` who paused, resumed or cancelled it last.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="downloads")
    source = models.CharField(max_length=12, choices=Source.choices)
    endpoint = models.CharField(max_length=500)
    repo = models.CharField(max_length=200)
    revision = models.CharField(max_length=200)
    ref = models.CharField(max_length=200, blank=True)
    label = models.CharField(max_length=120, blank=True)  # what of the repository, e.g. "Q4_K_M"
    licence = models.CharField(max_length=120, blank=True)
    files = models.JSONField(default=list)
    folder = models.CharField(max_length=1000)
    layout = models.CharField(max_length=10)  # hf_cache, folder
    name = models.CharField(max_length=250, blank=True)
    replace = models.BooleanField(default=False)
    limit_mib_s = models.FloatField(default=0.0)
    state = models.CharField(max_length=12, choices=State.choices, default=State.WAITING, db_index=True)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, null=True, related_name="+")
    tries = models.PositiveSmallIntegerField(default=0)
    refusal = models.JSONField(null=True)  # wire.Refusal, why it failed
    bytes_done = models.BigIntegerField(default=0)
    bytes_total = models.BigIntegerField(default=0)
    made = models.JSONField(default=list)
    asked_by = models.CharField(max_length=150, blank=True)
    asked_by_id = models.BigIntegerField(null=True)
    moved_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    queued_at = models.DateTimeField()  # its place in the host's queue
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.CheckConstraint(name="download_state_known", condition=Q(state__in=State.values))]
        indexes = [models.Index(fields=["host", "state", "queued_at"])]
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.repo} {self.label}".strip()

    @property
    def progress(self) -> dict[str, Any]:
        """What the host said last of this try (wire.Progress as a dict), {} when nothing."""
        return dict((self.job.status if self.job is not None else {}).get("progress") or {})


class HubAccess(TimeStamped):
    """A token for a hub, sealed: a person's own, or (without an owner) the team's.

    It is for the address that it was given for; another address, a mirror say, never gets it.
    """

    source = models.CharField(max_length=12, choices=Source.choices)
    endpoint = models.CharField(max_length=500)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, related_name="+")
    token = models.BinaryField()
    ending = models.CharField(max_length=4)  # its last letters, to tell one from another
    given_by = models.CharField(max_length=150)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["source", "owner"], name="hub_access_once_per_person"),
            models.UniqueConstraint(fields=["source"], condition=Q(owner=None), name="hub_access_once_for_the_team"),
        ]
        ordering = ["source", "id"]

    def __str__(self) -> str:
        return f"{self.get_source_display()} ••••{self.ending}"
