"""Shared pieces of database models: time stamps and the claim lease."""

from django.db import models


class TimeStamped(models.Model):
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        abstract = True


class Claimable(models.Model):
    """A row that one worker at a time may act on; see panel/core/claims.py.

    `due_at` is when someone should look next; the ticker sweeps rows that are due and not claimed.
    """

    claim_token = models.UUIDField(null=True, editable=False)
    claim_until = models.DateTimeField(null=True, editable=False)
    due_at = models.DateTimeField(null=True, db_index=True, editable=False)
    wake = models.BigIntegerField(default=0, editable=False)  # counts nudges

    class Meta:
        abstract = True


class IdempotencyKey(models.Model):
    """A key that someone sent with a request that creates, and the answer to it; see panel/core/idempotency.py."""

    owner_id = models.BigIntegerField()  # the person; no foreign key, since this room knows no accounts
    key = models.CharField(max_length=100)
    digest = models.CharField(max_length=64)  # SHA-256 of address and body
    answer = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner_id", "key"], name="idempotency_key_once")]

    def __str__(self) -> str:
        return self.key
