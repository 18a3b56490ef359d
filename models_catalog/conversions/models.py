"""Conversions that people had Berth make: a GGUF file becomes a Hugging Face folder with plain weights."""

import uuid
from typing import Any

from django.db import models
from django.db.models import Q

from panel.core.models import TimeStamped
from panel.fleet.models import Host, Job


class State(models.TextChoices):
    """waiting → running → done or failed; cancelling → cancelled, or done when it was too late to cancel."""

    WAITING = "waiting"  # ordered, the host has not begun
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    DONE = "done"
    FAILED = "failed"


ACTIVE = (State.WAITING, State.RUNNING, State.CANCELLING)


class Conversion(TimeStamped):
    """One copy of a GGUF model, made into a folder beside it. `job` is the newest try.

    `source_path` and `source_name` outlive the copy and its model. `bytes_total` is what the weights will take.
    `made` is the path of the model that came of it, "" until then.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="conversions")
    copy = models.ForeignKey("models_catalog.Copy", on_delete=models.SET_NULL, null=True, related_name="conversions")
    source_path = models.CharField(max_length=1000)
    source_name = models.CharField(max_length=250)  # "SmolLM2-135M-Instruct (Q4_K_M)"
    executable = models.CharField(max_length=500)  # the engine whose Python does it
    dtype = models.CharField(max_length=10)
    folder = models.CharField(max_length=1000)
    name = models.CharField(max_length=250)
    bytes_total = models.BigIntegerField(default=0)
    state = models.CharField(max_length=12, choices=State.choices, default=State.WAITING, db_index=True)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, null=True, related_name="+")
    tries = models.PositiveSmallIntegerField(default=0)
    refusal = models.JSONField(null=True)  # wire.Refusal, why it failed
    made = models.CharField(max_length=1000, blank=True)
    asked_by = models.CharField(max_length=150, blank=True)
    asked_by_id = models.BigIntegerField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(name="conversion_state_known", condition=Q(state__in=State.values)),
            # Two at once would fight for the folder.
            models.UniqueConstraint(
                fields=["host", "folder", "name"],
                condition=Q(state__in=["waiting", "running", "cancelling"]),
                name="conversion_once_per_folder",
            ),
        ]
        indexes = [models.Index(fields=["host", "-created_at"])]
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.source_name} → {self.name}"

    @property
    def target(self) -> str:
        return f"{self.folder.rstrip('/')}/{self.name}"

    @property
    def progress(self) -> dict[str, Any]:
        """What the host said last of this try (wire.Progress as a dict), {} when nothing."""
        return dict((self.job.status if self.job is not None else {}).get("progress") or {})
