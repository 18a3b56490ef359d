"""The record of who did what. Append-only: the ORM refuses changes, and so does a database trigger."""

from django.db import models


class Event(models.Model):
    """One act, in the past tense: "deployment.started". Actor and target are text and id, without foreign keys,
    so that the record outlives both. `before`/`after` hold only what changed, secrets masked.
    """

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    verb = models.CharField(max_length=64, db_index=True)
    actor = models.CharField(max_length=150)  # name at the time; "system" for the loop itself
    actor_id = models.BigIntegerField(null=True, db_index=True)
    address = models.CharField(max_length=64, blank=True)
    target_kind = models.CharField(max_length=32, blank=True)
    target_id = models.CharField(max_length=64, blank=True)
    target = models.CharField(max_length=200, blank=True)  # name at the time
    outcome = models.CharField(max_length=8, default="done")  # done, denied, failed
    count = models.PositiveIntegerField(default=1)  # refusals of one address in one minute share a row
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    facts = models.JSONField(default=dict)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["target_kind", "target_id", "-id"])]

    def __str__(self) -> str:
        return f"{self.actor} {self.verb} {self.target}"
