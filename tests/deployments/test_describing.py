"""A lone GGUF for vLLM: the start has its description made on the host first, and says so while it waits."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from deployments import describing, preflight
from deployments.models import Deployment
from deployments.moves import spec_of
from deployments.pages.run import steps
from deployments.reconcile import reconcile
from deployments.wording import words
from models_catalog.models import Copy
from panel.accounts.models import User
from panel.fleet.models import Job, Reservation, Runtime
from tests.deployments import builders

pytestmark = pytest.mark.django_db

PATH = "/models/tiny/tiny-Q8_0.gguf"
FOLDER = "/var/agent/sidecars/0123456789abcdef"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def row(db: None) -> Deployment:
    host = builders.make_host(gpus=1)
    Runtime.objects.update(plugins=["gguf"])
    copy = builders.make_copy(host)
    copy.path = PATH
    copy.save()
    artifact = copy.artifact
    artifact.format, artifact.facts = "gguf", {**artifact.facts, "format": "gguf"}
    artifact.save()
    return builders.make_deployment(copy, desired="running", wanted_by="maria")


def sidecar() -> Job:
    return Job.objects.filter(kind="sidecar").latest("created_at")


def say(job: Job, state: str, result: dict[str, Any] | None = None, **status: Any) -> None:
    """What the host reports of it."""
    job.state, job.status, job.result = state, {"state": state, **status}, result
    job.ended_at = timezone.now() if state in ("ended", "refused") else None
    job.save()


def looked_at(row: Deployment) -> Deployment:
    reconcile(row.pk)
    row.refresh_from_db()
    return row


def test_the_description_is_made_first_and_the_launch_uses_it(row: Deployment) -> None:
    assert looked_at(row).state == "preparing"
    job = sidecar()
    assert (job.order["path"], job.order["executable"]) == (PATH, row.run.runtime.executable)
    assert row.reason["code"] == "preparing.sidecar" and words(row.reason).text and row.run.job is None
    assert looked_at(row).state == "preparing" and Job.objects.count() == 1, "it is ordered once"
    now = {step.name: step.kind for step in steps(row.run, {})}
    assert now["Placed"] == "yes" and now["Describing the model's file"] == "now"
    say(job, "running")
    assert looked_at(row).state == "preparing"
    say(job, "ended")
    assert looked_at(row).state == "preparing", "the result is on the way"
    say(job, "ended", {"items": [{"folder": FOLDER, "made": True}], "refusal": None})
    assert looked_at(row).state == "starting" and row.reason == {}
    argv = row.run.job.order["argv"]
    assert argv[argv.index("--tokenizer") + 1] == argv[argv.index("--hf-config-path") + 1] == FOLDER
    assert argv[2] == PATH
    assert "Model's file described" in [step.name for step in steps(row.run, {})]


def test_a_failure_is_a_cause_with_a_next_step_and_gives_the_memory_back(row: Deployment) -> None:
    looked_at(row)
    refusal = {"code": "sidecar.unknown_architecture", "params": {"architecture": "falcon-h1"}}
    say(sidecar(), "ended", {"items": [], "refusal": refusal})
    assert looked_at(row).state == "failed"
    said = words(row.reason)
    assert "falcon-h1" in said.text and "llama.cpp" in said.hint
    assert row.run.ended_at and row.run.reason == refusal and not Reservation.objects.exists()


@pytest.mark.parametrize(
    ("status", "result", "code"),
    [
        ({"refusal": {"code": "kind_unknown", "params": {}}}, None, "sidecar.kind_unknown"),
        ({"refusal": {"code": "path_missing", "params": {"path": PATH}}}, None, "path_missing"),
    ],
    ids=["an older agent", "the file is gone"],
)
def test_what_the_host_refuses_is_told(row: Deployment, status: dict, result: Any, code: str) -> None:
    looked_at(row)
    say(sidecar(), "refused", result, **status)
    assert looked_at(row).state == "failed" and row.reason["code"] == code
    assert words(row.reason).text and "%(" not in words(row.reason).text


def test_a_result_that_never_comes_is_not_waited_for(row: Deployment) -> None:
    looked_at(row)
    job = sidecar()
    say(job, "ended")
    Job.objects.filter(pk=job.pk).update(ended_at=timezone.now() - 2 * describing.LOST_RESULT)
    assert looked_at(row).state == "failed" and row.reason["code"] == "sidecar.task_failed"


def test_a_machine_that_went_down_meanwhile_is_asked_once_more(row: Deployment) -> None:
    looked_at(row)
    first = sidecar()
    say(first, "ended", {"items": [], "refusal": {"code": "host_restarted", "params": {}}})
    assert looked_at(row).state == "preparing" and sidecar().pk != first.pk


def test_a_stop_ends_the_work_too(row: Deployment) -> None:
    looked_at(row)
    Deployment.objects.filter(pk=row.pk).update(desired="stopped")
    assert looked_at(row).state == "stopped"
    assert sidecar().desired == "stop" and not Reservation.objects.exists()


def test_it_does_not_wait_for_ever(row: Deployment) -> None:
    looked_at(row)
    now = timezone.now()
    Deployment.objects.filter(pk=row.pk).update(deadline_at=now, looked_at=now)
    assert looked_at(row).state == "failed" and sidecar().desired == "stop"


def test_where_the_files_lie_beside_it_nothing_is_made(row: Deployment) -> None:
    copy = Copy.objects.get()
    copy.extra = {"config_beside": True}
    copy.save()
    assert looked_at(row).state == "starting"
    argv = row.run.job.order["argv"]
    assert argv[argv.index("--tokenizer") + 1] == "/models/tiny" and "--hf-config-path" not in argv
    assert not Job.objects.filter(kind="sidecar").exists()


def test_the_preview_says_it_before_the_start(row: Deployment) -> None:
    check = preflight.check(spec_of(row), name=row.name)
    assert check.ok and "{description}" in check.preview()
    assert "chosen.sidecar" in [note.code for note in check.launch.notes]
    looked_at(row)
    say(sidecar(), "ended", {"items": [{"folder": FOLDER}], "refusal": None})
    Deployment.objects.filter(pk=row.pk).update(desired="stopped")
    assert looked_at(row).state == "stopped"
    assert FOLDER in preflight.check(spec_of(row), name=row.name).preview(), "the same answer twice"


def test_where_it_cannot_start_the_plan_offers_the_conversion(row: Deployment) -> None:
    Runtime.objects.update(device="cpu", plugins=[])
    artifact = Copy.objects.get().artifact
    artifact.facts = {**artifact.facts, "parameters": 1_000_000_000}
    artifact.save()
    client = Client()
    client.force_login(User.objects.create_user(username="ada", role="operator"))
    form = {
        "artifact": artifact.pk,
        "name": "x",
        "device": "auto",
        "gpu_count": 1,
        "task": "generate",
        "restart": "never",
    }
    shown = (
        client.post("/deployments/plan", form, headers={"HX-Request": "true"}).content.decode().replace("\u00a0", " ")
    )
    assert "its kernels need a GPU" in shown and f"/models/copies/{Copy.objects.get().pk}/convert" in shown
    assert "≈ 1.9 GiB" in shown
    opened = client.get(f"/deployments/new?artifact={artifact.pk}").content.decode()
    assert "No engine on quay can serve a GGUF file" in opened
