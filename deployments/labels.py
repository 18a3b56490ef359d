"""How this room names its jobs for the rooms below: an engine run is called by its deployment."""

import uuid

from django.urls import reverse

from deployments.models import Run
from panel.fleet.labels import Label


def of_jobs(job_ids: list[uuid.UUID]) -> dict[uuid.UUID, Label]:
    """Labels of the jobs that are runs; the address leads to the deployment while it exists."""
    runs = Run.objects.filter(job_id__in=job_ids).select_related("deployment")
    return {
        run.job_id: Label(
            run.deployment.name,
            "" if run.deployment.deleted_at else reverse("deployment", args=[run.deployment_id]),
        )
        for run in runs
        if run.job_id is not None
    }
