"""What is asked all the time reads the few rows that go on, not all that ever were."""

from typing import Any

import pytest
from django.db import connection

from deployments.models import Run
from panel.fleet.models import Job
from tests.deployments import builders

pytestmark = [pytest.mark.django_db, pytest.mark.integration]


@pytest.mark.parametrize(
    "model, filters, index",
    [(Job, {"open": True}, "job_open"), (Run, {"ended_at": None}, "run_open")],
    ids=["jobs", "runs"],
)
def test_open_rows_have_an_index_of_their_own(model: Any, filters: dict[str, Any], index: str) -> None:
    copy = builders.make_copy(builders.make_host())
    builders.make_run(builders.make_deployment(copy, state="ready"), copy)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # a small table would be read whole
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        plan = model.objects.filter(**filters).order_by().explain()
    assert index in plan, plan
