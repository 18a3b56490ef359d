"""Who uses a model and an engine: what runs, what settings name; only what is shown of it is read."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from deployments import model_use, runtime_use
from models_catalog.models import Artifact
from tests.deployments import builders

pytestmark = [pytest.mark.django_db, pytest.mark.integration]


def names(uses: list[Any]) -> list[tuple[str, str]]:
    return [(use.text, use.kind) for use in uses]


def test_what_runs_comes_first_and_the_first_ones_say_more() -> None:
    copy = builders.make_copy(builders.make_host())
    for name in ("c", "a"):
        builders.make_deployment(copy, name)
    running = builders.make_deployment(copy, "z", state="ready")
    builders.make_run(running, copy)
    found = model_use.of_artifacts([copy.artifact_id], 2)[copy.artifact_id]
    assert names(found) == [("z", "running"), ("a", "chosen"), ("c", "chosen")]
    assert found[0].copy_ids == {copy.pk} and found[0].url == f"/deployments/{running.pk}/"
    assert (found[0].state, found[0].by, found[0].engine) == ("ok", "maria", "vLLM 0.32.0")
    assert found[1].by == "maria" and found[2].by == ""


def test_a_run_is_a_use_of_what_it_runs_and_of_what_its_settings_name_now() -> None:
    host = builders.make_host()
    copy, other = builders.make_copy(host), builders.make_copy(host, "Other-2B")
    row = builders.make_deployment(copy, state="ready")
    builders.make_run(row, copy)
    row.revision.spec["artifact_id"] = other.artifact_id
    row.revision.save()
    found = model_use.of_artifacts([copy.artifact_id, other.artifact_id])
    assert names(found[copy.artifact_id]) == [("team-chat", "running")]
    assert names(found[other.artifact_id]) == [("team-chat", "chosen")]
    row.deleted_at = timezone.now()
    row.save()
    found = model_use.of_artifacts([copy.artifact_id, other.artifact_id])
    assert found[copy.artifact_id][0].url == "" and other.artifact_id not in found


def test_an_engine_is_used_by_what_runs_on_it_names_it_or_ran_on_it_last() -> None:
    copy = builders.make_copy(builders.make_host())
    runtime = copy.host.runtimes.get()
    builders.make_run(builders.make_deployment(copy, "runs", state="ready"), copy)
    builders.make_run(builders.make_deployment(copy, "ran"), copy, job_state="ended", ended_at=timezone.now())
    named = builders.make_deployment(copy, "named")
    named.revision.spec["runtime_id"] = runtime.pk
    named.revision.save()
    builders.make_deployment(copy, "never")
    found = runtime_use.of_runtimes([runtime.pk])[runtime.pk]
    assert names(found) == [("runs", "running"), ("named", "chosen"), ("ran", "last")]


@pytest.mark.parametrize("detailed, most", [(0, 2), (5, 3)], ids=["names", "details"])
def test_the_number_of_queries_does_not_grow(detailed: int, most: int) -> None:
    copy = builders.make_copy(builders.make_host())
    for number in range(4):
        builders.make_run(builders.make_deployment(copy, f"chat-{number}", state="ready"), copy)
    ids = list(Artifact.objects.values_list("pk", flat=True))
    with CaptureQueriesContext(
        connection,
    ) as asked:
        model_use.of_artifacts(ids, detailed)
    assert len(asked) <= most


def test_a_list_gets_the_first_ones_and_how_many_there_are() -> None:
    copy = builders.make_copy(builders.make_host())
    for name in ("c", "a", "b"):
        builders.make_deployment(copy, name)
    builders.make_run(builders.make_deployment(copy, "z", state="ready"), copy)
    ids = [copy.artifact_id]
    some, count = model_use.few(ids, 2)[copy.artifact_id]
    assert (names(some), count) == ([("z", "running"), ("a", "chosen")], 4)
    every, count = model_use.few(ids, 9)[copy.artifact_id]
    assert names(every) == names(model_use.of_artifacts(ids)[copy.artifact_id]) and count == 4
    assert [use.url for use in every] == [use.url for use in model_use.of_artifacts(ids)[copy.artifact_id]]
    assert model_use.few([copy.artifact_id + 1], 2) == {}
