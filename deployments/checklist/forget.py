"""Checks whose verdict counts no more: their jobs are deleted, but for those that a start ended by."""

from datetime import datetime

from django.db.models import Exists, OuterRef, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.utils import timezone

from deployments.checklist.engine import KEPT
from deployments.models import Run
from panel.fleet.models import Job

AT_ONCE = 500


def old_checks(now: datetime | None = None) -> bool:
    """Once a day; True when more are left. What a start ended by is its log, which is kept for ever."""
    before = (now or timezone.now()) - KEPT
    ended = Run.objects.alias(job_checked=KT("placement__check__job")).filter(job_checked=OuterRef("number"))
    jobs = Job.objects.filter(kind="check", open=False, created_at__lt=before)
    rows = jobs.alias(number=Cast("pk", TextField())).filter(~Exists(ended))
    gone = list(rows.order_by("created_at").values_list("pk", flat=True)[:AT_ONCE])
    Job.objects.filter(pk__in=gone).delete()
    return len(gone) == AT_ONCE
