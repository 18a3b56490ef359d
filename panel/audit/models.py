"""The record of who did what. Append-only: the ORM refuses changes, and so does a database trigger.

The table is parted by month (migration 0002): panel/audit/months.py makes the tables of the months and drops old ones.
"""

from datetime import datetime
from typing import Any, NoReturn

from django.db import models
from django.utils import timezone

from panel.core.errors import PanelError


class AppendOnly(PanelError):
    """Code tried to change or delete a record of the audit; a bug of the caller."""

    code = "audit_append_only"
    message: Any = "The record of who did what can only grow."
    status = 500


def minute_of(at: datetime) -> datetime:
    """The minute that a moment falls into; its month decides in which table the row lies."""
    return at.replace(second=0, microsecond=0)


class EventQuerySet(models.QuerySet["Event"]):
    """Reads and appends. Every way to change or delete rows raises AppendOnly."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnly

    update = delete = bulk_update = update_or_create = _raw_delete = _update = _refuse

    def bulk_create(self, objs: Any, *args: Any, **kwargs: Any) -> Any:
        objs = list(objs)
        if kwargs.get("update_conflicts") or any(not event._state.adding for event in objs):
            raise AppendOnly
        for event in objs:
            event.minute = minute_of(event.at)
        return super().bulk_create(objs, *args, **kwargs)


class Outcome(models.TextChoices):
    DONE = "done"
    DENIED = "denied"  # a refusal; those of one address, actor, verb and minute share a row
    FAILED = "failed"


class Event(models.Model):
    """One act, in the past tense: "deployment.started". Actor and target are text and id, without foreign keys,
    so that the record outlives both. `before`/`after` hold only what changed, secrets masked.

    A refusal (outcome "denied") carries the right that was missing as its verb, and counts. `story` names what the act
    belongs to besides its target: the end of a run belongs to its deployment.
    """

    at = models.DateTimeField(default=timezone.now, db_index=True)
    verb = models.CharField(max_length=64, db_index=True)
    actor = models.CharField(max_length=150)  # name at the time; "system" for the loop itself, empty for a stranger
    actor_id = models.BigIntegerField(null=True, db_index=True)
    address = models.CharField(max_length=64, blank=True)
    target_kind = models.CharField(max_length=32, blank=True)
    target_id = models.CharField(max_length=64, blank=True)
    target = models.CharField(max_length=200, blank=True)  # name at the time
    outcome = models.CharField(max_length=8, default=Outcome.DONE, choices=Outcome.choices)
    minute = models.DateTimeField()  # that of `at`: parts the table by month, and refusals are counted by it
    count = models.PositiveIntegerField(default=1)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    facts = models.JSONField(default=dict)
    story = models.CharField(max_length=64, blank=True)  # "deployment:12"

    objects = EventQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        base_manager_name = "objects"
        indexes = [
            models.Index(fields=["target_kind", "target_id", "-id"]),
            models.Index(fields=["story", "-id"], name="audit_event_story"),
            models.Index(fields=["actor", "-id"], name="audit_event_actor"),
            models.Index(fields=["outcome", "-id"], name="audit_event_outcome"),
            models.Index(fields=["verb", "-id"], name="audit_event_verb_id"),
        ]
        constraints = [
            # led by the minute, so that the newest refusals can also be counted by it
            models.UniqueConstraint(
                fields=["minute", "address", "verb", "actor_id"],
                condition=models.Q(outcome="denied"),
                nulls_distinct=False,
                name="audit_refusals_once_per_minute",
            ),
            models.CheckConstraint(
                name="audit_only_refusals_count",
                condition=models.Q(outcome="denied") | models.Q(count=1, outcome__in=["done", "failed"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.verb} {self.target}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding or self.pk is not None:
            raise AppendOnly
        self.minute = minute_of(self.at)
        super().save(*args, **{**kwargs, "force_insert": True})

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnly
