"""Every finding of the check leads somewhere: a value that surely fits, a free name, or the page where it is done."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from deployments import preflight
from deployments.checklist import whole
from deployments.checklist.findings import Finding
from deployments.checklist.look import CheckList, look
from deployments.mending.around import Around
from deployments.pages import check as check_page
from deployments.patching import apply
from deployments.spec import DeploymentSpec
from models_catalog.models import Artifact, Copy
from panel.fleet.models import Gpu, Host, Job, Reservation
from tests.deployments import builders
from tests.deployments.pure.plans import CARDS, model
from tests.deployments.test_check import PASSED, answer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


def on_card(card: str) -> Copy:
    """A model of 8 billion parameters on a host with one such card."""
    host = builders.make_host("lab-1", device="cuda")
    name, total, capability = CARDS[card]
    measured = {"compute_capability": f"{capability[0]}.{capability[1]}"}
    Gpu.objects.create(host=host, uuid="GPU-a", index=0, name=name, total_mib=total, used_mib=300, measured=measured)
    made = builders.make_copy(host, "Qwen3-8B")
    Artifact.objects.filter(pk=made.artifact_id).update(facts=model(), size_bytes=16 << 30)
    return made


def of(found: CheckList, code: str) -> Finding:
    return next(finding for part in found.parts for finding in part.findings if finding.code == code)


def shown(found: CheckList, code: str) -> dict[str, Any]:
    return next(one for part in check_page.parts_of(found) for one in part["findings"] if one["code"] == code)


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("check.tight", {}),
        ("check.tight", {"people": 4}),
        ("check.unlikely", {"options": {"gpu_memory_utilization": 0.9}}),
    ],
    ids=["tight", "tight-for-four", "unlikely"],
)
def test_what_just_fits_has_a_shorter_conversation_that_surely_does(code: str, more: dict[str, Any]) -> None:
    copy = on_card("4090")
    for context in range(7168, 40_960, 1024):
        options = {**more.get("options", {}), "max_model_len": context}
        spec = DeploymentSpec(artifact_id=copy.artifact_id, **{**more, "options": options})
        placed = preflight.check(spec, name="soon").placement
        if placed is not None and code == f"check.{placed.level}":
            break
    else:
        pytest.fail("never so sure")
    fixes = of(look(spec, name="soon", ask=False), code).fixes
    assert fixes[0].patch["options"]["max_model_len"] < context
    for fix in fixes:
        after = look(apply(spec, fix.patch), name="soon", ask=False)
        assert after.check.placement is not None and after.check.placement.level == "fits"
        assert not after.parts[2].findings


def test_a_name_that_is_taken_has_one_that_is_free() -> None:
    copy = builders.make_copy(builders.make_host())
    builders.make_deployment(copy, "chat")
    builders.make_deployment(copy, "chat-2")
    (fix,) = shown(look(DeploymentSpec(artifact_id=copy.artifact_id), name="chat", ask=False), "check.name_taken")[
        "fixes"
    ]
    assert (fix["name"], fix["spec"], fix["message"]) == ("chat-3", {}, "Call it chat-3.")


def test_what_has_to_stop_leads_to_its_page() -> None:
    copy = on_card("4090")
    row = builders.make_deployment(copy, "chat", desired="running")
    run = builders.make_run(row, copy)
    Reservation.objects.create(gpu=Gpu.objects.get(), host=copy.host, holder=str(run.pk), mib=20_000)
    Gpu.objects.update(reserved_mib=20_000)
    found = look(DeploymentSpec(artifact_id=copy.artifact_id), name="other", ask=False)
    pages = [fix["page"] for fix in shown(found, "place.none")["fixes"]]
    assert reverse("deployment", args=[row.pk]) in pages


def test_what_is_to_know_of_the_place_is_said() -> None:
    copy = builders.make_copy(builders.make_host())
    found = look(DeploymentSpec(artifact_id=copy.artifact_id), name="soon", ask=False)
    assert of(found, "cpu.for_tests").level == "note" and shown(found, "cpu.for_tests")["message"]


def test_what_is_mended_elsewhere_has_its_page() -> None:
    copy = builders.make_copy(builders.make_host())
    Artifact.objects.update(facts={**copy.artifact.facts, "chat_template": False})
    Copy.objects.update(problems=[{"code": "missing_tokenizer", "params": {}}])
    spec = DeploymentSpec(artifact_id=copy.artifact_id)
    look(spec, name="soon")
    answer({**PASSED, "host": {**PASSED["host"], "open_files": 1024}})
    found = look(spec, name="soon")
    assert shown(found, "check.few_files")["fixes"][0]["page"] == reverse("host", args=[copy.host_id])
    assert reverse("models") in [fix["page"] for fix in shown(found, "check.no_chat_template")["fixes"]]
    assert shown(found, "missing_tokenizer")["fixes"][0]["page"] == reverse("model", args=[copy.artifact.model_id])


def test_the_disks_are_those_of_the_newest_report() -> None:
    """Also where nobody asked the engine, and where its answer is days old."""
    copy = builders.make_copy(builders.make_host())
    spec = DeploymentSpec(artifact_id=copy.artifact_id)
    assert look(spec, name="soon", ask=False).parts[4].state == "skipped"
    look(spec, name="soon")
    job = answer(PASSED)
    Job.objects.filter(pk=job.pk).update(ended_at=timezone.now() - timedelta(days=3))
    found = look(spec, name="soon", ask=False)
    assert shown(found, "check.host_then")["message"] and found.verdict == "passed"
    Host.objects.update(
        facts={**copy.host.facts, "log_mib": 10, "cache_mib": 90_000, "shm_mib": 9000, "open_files": -1}
    )
    found = look(spec, name="soon", ask=False)
    assert [one.code for one in found.parts[4].findings] == ["check.disk_log"]
    assert shown(found, "check.disk_log")["fixes"][0]["page"] == reverse("host", args=[copy.host_id])


def test_weights_that_went_since_they_were_found_are_errors() -> None:
    copy = builders.make_copy(builders.make_host())
    files = [
        {"name": "a.safetensors", "size": 10, "kind": "weights"},
        {"name": "config.json", "size": 1, "kind": "config"},
    ]
    Artifact.objects.update(facts={**copy.artifact.facts, "files": files})
    spec = DeploymentSpec(artifact_id=copy.artifact_id)
    look(spec, name="soon")
    assert Job.objects.get().order["files"] == [["a.safetensors", 10]]
    job = answer({**PASSED, "files": [{"name": "a.safetensors", "was": 10, "now": None}]})
    found = look(spec, name="soon")
    assert (found.verdict, found.parts[0].state) == ("refused", "error")
    said = shown(found, "check.file_gone")
    assert said["message"] == "a.safetensors is missing on the host."
    assert said["fixes"][0]["page"] == reverse("model", args=[copy.artifact.model_id])
    Job.objects.filter(pk=job.pk).update(created_at=timezone.now() - timedelta(minutes=1))
    assert look(spec, name="soon").verdict == "running", "it is looked at again: somebody may have put it back"


@pytest.mark.parametrize(
    ("files", "codes"),
    [
        ([{"name": "a", "was": 10, "now": 4}], ["check.file_short"]),
        ([{"name": "a", "was": 10, "now": 14}], ["check.file_other"]),
        ([{"name": "a", "was": 10, "now": "x"}, 7, {"name": 3}, {"name": "b", "was": 1, "now": 10**5000}], []),
        ("nonsense", []),
    ],
    ids=["shorter", "longer", "odd", "nonsense"],
)
def test_what_the_host_says_of_files_may_be_anything(files: Any, codes: list[str]) -> None:
    assert [one.code for one in whole.findings({"files": files}, Around(model=1))] == codes


@pytest.mark.parametrize(
    ("path", "form", "names", "wanted"),
    [
        ("/m/x", "hf", ["a", "b"], ["a", "b"]),
        ("/m/mine.gguf", "gguf", ["theirs.gguf"], ["mine.gguf"]),
        ("/m/x-1.gguf", "gguf", ["x-1.gguf", "x-2.gguf"], ["x-1.gguf", "x-2.gguf"]),
        ("/m/y-1.gguf", "gguf", ["x-1.gguf", "x-2.gguf"], []),
        ("/m/x", "hf", ["a\ufffd"], []),
    ],
    ids=["folder", "lone-file", "parts", "parts-renamed", "odd-name"],
)
def test_what_the_host_is_asked_to_compare(path: str, form: str, names: list[str], wanted: list[str]) -> None:
    files = [{"name": name, "size": 5, "kind": "weights"} for name in names]
    assert whole.inventory(path, form, {"files": files}) == [(name, 5) for name in wanted]
