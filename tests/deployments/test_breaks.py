"""What comes in between: a stop while Berth looks for a fix, an edit under a finding, a fix that would show a secret."""

import json
from typing import Any

import pytest
from django.urls import reverse

from deployments import queries, remedies, services
from deployments.api.schemas import deployment_out
from deployments.models import Deployment, Run
from deployments.reconcile import reconcile
from deployments.spec import DeploymentSpec
from models_catalog.models import Copy
from panel.audit.models import Event
from panel.fleet.models import Host
from tests.deployments import builders, test_fixes
from tests.deployments.test_fixes import as_role

pytestmark = pytest.mark.django_db
SECRET = "hf_" + "Q7x" * 10


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.queue.send", lambda task, *args: True)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy() -> Copy:
    return builders.make_copy(builders.make_host(gpus=1))


# --- a fix by itself --------------------------------------------------------------------------------------------------


def test_a_stop_while_berth_looks_for_a_fix_is_not_undone(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    row = test_fixes.broken(copy, fix_once=True)
    look = remedies.of

    def meanwhile(whole: Deployment) -> Any:
        found = look(whole)
        services.stop(row, actor=None)
        return found

    monkeypatch.setattr(remedies, "of", meanwhile)
    reconcile(row.pk)
    row = queries.one(row.pk)
    assert (row.desired, row.revision.number, row.run.number) == ("stopped", 1, 1)
    assert not Event.objects.filter(verb="deployment.mended").exists()


def test_a_person_who_starts_it_after_berths_fix_has_started_it(copy: Copy) -> None:
    row = test_fixes.broken(copy, fix_once=True)
    second = test_fixes.again(row)
    assert second.cause == "fix"
    test_fixes.fail(second)
    services.start(row, actor=None)
    reconcile(row.pk)
    third = queries.one(row.pk).run
    assert (third.number, third.cause) == (3, "person")


# --- a finding --------------------------------------------------------------------------------------------------------


def serving(copy: Copy, fix: dict[str, Any], **values: Any) -> Deployment:
    row = builders.make_deployment(copy, state="ready")
    row.revision.spec = DeploymentSpec(artifact_id=copy.artifact_id, **values).model_dump(mode="json")
    row.revision.save()
    run = builders.make_run(row, copy)
    builders.ready(row, run)
    said = {
        "family": "serve.kv_full",
        "code": "serve.kv_full",
        "level": "warn",
        "since": 1.0,
        "params": {"percent": 95},
    }
    Run.objects.filter(pk=run.pk).update(findings={"found": [{**said, "fix": fix}], "base": {}})
    return queries.one(row.pk)


SEQUENCES = {"code": "fix.fewer_sequences", "params": {"after": 8}, "patch": {"options": {"max_num_seqs": 8}}}


def press(row: Deployment, number: int) -> int:
    where = f"/deployments/{row.pk}/findings/serve.kv_full/apply"
    return as_role("operator").post(where, {"revision": str(number)}).status_code


def test_a_finding_of_the_settings_before_does_not_undo_an_edit(copy: Copy) -> None:
    row = serving(copy, SEQUENCES)
    services.edit(row, spec=DeploymentSpec(artifact_id=copy.artifact_id, options={"max_model_len": 1024}), actor=None)
    assert press(row, 2) == 409
    assert queries.one(row.pk).revision.spec["options"] == {"max_model_len": 1024}


def test_what_has_stopped_is_not_changed_by_a_finding(copy: Copy) -> None:
    row = serving(copy, SEQUENCES)
    Deployment.objects.update(state="stopped", desired="stopped")
    assert press(row, 1) == 409 and queries.one(row.pk).revision.number == 1


def test_what_serves_is_not_stopped_for_a_change_that_would_not_start_any_more(copy: Copy) -> None:
    row = serving(copy, SEQUENCES)
    Host.objects.update(schedulable=False)
    assert press(row, 1) == 409 and queries.one(row.pk).revision.number == 1
    assert Run.objects.get(pk=row.run_id).findings["found"][0]["fix"] is None, "it is offered no more"


def test_a_finding_shows_no_secret_of_the_options(copy: Copy) -> None:
    options = {"hf_overrides": {"token": SECRET}}
    row = serving(copy, {**SEQUENCES, "patch": {"options": {**options, "max_num_seqs": 8}}}, options=options)
    told = json.dumps(deployment_out(row, "m", None), default=str)
    assert SECRET not in told and '"max_num_seqs": 8' in told


# --- the check --------------------------------------------------------------------------------------------------------


def test_a_fix_of_the_check_shows_no_secret_and_is_what_the_field_reads(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="stopped")
    env = {"VLLM_LOGGING_PREFIX": SECRET, "LD_PRELOAD": "/tmp/x.so"}
    row.revision.spec = DeploymentSpec(artifact_id=copy.artifact_id, env=env).model_dump(mode="json")
    row.revision.save()
    sent = {"artifact": copy.artifact_id, "name": row.name, "own": row.pk, "device": "auto", "task": "generate",
            "restart": "on_failure", "priority": "quality"}  # fmt: skip
    page = as_role("operator").post(reverse("deployment-check"), sent)
    patches = [json.loads(f["patch"]) for p in page.context["parts"] for one in p["findings"] for f in one["fixes"]]
    (found,) = [patch["env"] for patch in patches if "env" in patch][:1]
    assert SECRET not in page.content.decode()
    assert found.startswith("VLLM_LOGGING_PREFIX=") and "LD_PRELOAD" not in found
