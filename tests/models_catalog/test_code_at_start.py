"""Trust in a model's own code holds at the start: the order names the files, a refusal of the host ends it."""

import uuid
from typing import Any

import pytest

from models_catalog import code_at_start, events, shelf, sweep, tasks
from models_catalog.models import CatalogModel, Copy
from models_catalog.services import record_scan
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.audit.models import Event
from panel.core.errors import Conflict
from panel.fleet import reports, services, wire
from panel.fleet.models import Host, Job
from tests.deployments import builders
from tests.models_catalog.test_shelf import code_item

pytestmark = pytest.mark.django_db

PIN = ("modeling_own.py", "11" * 32)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here; tasks run at once."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(events, "send", found.append)
    return found


@pytest.fixture
def admin() -> Actor:
    return Actor.from_user(User.objects.create(username="s-admin", role="admin"))


@pytest.fixture
def copy(admin: Actor) -> Copy:
    """A trusted model on a host that can run it."""
    record_scan(builders.make_host(gpus=1), [code_item()])
    shelf.set_remote_code(CatalogModel.objects.get(), True, actor=admin)
    return Copy.objects.select_related("artifact__model", "host").get()


def start(copy: Copy) -> Job:
    task = wire.EngineTask(
        argv=["/e/vllm", "serve", copy.path], model_path=copy.path, allow_remote_code=True, code=[PIN]
    )
    return services.order_job(host=copy.host, task=task, job_id=uuid.uuid4())


def refuse(job: Job, code: str = "code_changed", **params: Any) -> None:
    said = {"id": str(job.pk), "kind": "engine", "state": "refused", "refusal": {"code": code, "params": params}}
    reports.take_report(job.host, wire.Report(agent_version="1", sent_at=0, rev=1, jobs=[said]))


def model() -> CatalogModel:
    return CatalogModel.objects.get()


def test_the_order_names_what_an_admin_allowed(copy: Copy) -> None:
    assert code_at_start.may_run(copy) and code_at_start.files_for(copy) == [PIN]
    copy.artifact.facts = {**copy.artifact.facts, "needs_remote_code": False}
    assert not code_at_start.may_run(copy)  # another form of the model, which brings none


def test_trust_from_before_sums_were_kept_is_about_what_was_found(copy: Copy) -> None:
    CatalogModel.objects.update(code_pins=[], code_at=None)
    assert code_at_start.files_for(Copy.objects.select_related("artifact__model").get()) == [PIN]


def test_a_refused_start_ends_the_trust_and_looks_again(copy: Copy, sent: list[str]) -> None:
    job = start(copy)
    refuse(job, files=["modeling_own.py", "new.py"], model=copy.path)
    assert sent == [str(job.pk)]
    tasks.take_scan(str(job.pk))
    row = model()
    assert not row.allow_remote_code and row.code_withdrawn == ["modeling_own.py", "new.py"]
    event = Event.objects.get(verb="model.code_withdrawn")
    assert event.facts["host"] == copy.host.name and event.facts["files"] == row.code_withdrawn
    assert Job.objects.filter(kind="scan", host=copy.host).count() == 1
    assert not code_at_start.take(job)  # a second nudge
    assert Event.objects.filter(verb="model.code_withdrawn").count() == 1


def test_a_decision_made_since_stands(copy: Copy, admin: Actor, sent: list[str]) -> None:
    job = start(copy)
    record_scan(copy.host, [code_item(sums={"modeling_own.py": "22" * 32})])
    shelf.set_remote_code(model(), True, actor=admin)
    refuse(job, files=["modeling_own.py"])
    assert not code_at_start.take(Job.objects.get(pk=job.pk))
    assert model().allow_remote_code


def test_other_refusals_say_nothing_of_code(copy: Copy, sent: list[str]) -> None:
    job = start(copy)
    refuse(job, "path_missing", path=copy.path)
    assert not code_at_start.take(Job.objects.get(pk=job.pk)) and model().allow_remote_code


def test_a_lost_nudge_is_made_up_for(copy: Copy, sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "measure_fits", lambda: None)
    job = start(copy)
    refuse(job, "code_elsewhere", place="org/repo")
    sent.clear()
    assert code_at_start.untaken() == []  # the nudge has its time
    monkeypatch.setattr(code_at_start, "PATIENCE", -code_at_start.PATIENCE)
    sweep.sweep_jobs(every_s=0)
    assert sent == [str(job.pk)]
    tasks.take_scan(str(job.pk))
    assert model().code_withdrawn == ["org/repo"] and code_at_start.untaken() == []


def test_code_that_lies_elsewhere_cannot_be_allowed(admin: Actor) -> None:
    item = code_item()
    item["facts"]["code_elsewhere"] = ["org/repo"]
    record_scan(Host.objects.create(name="h", token_hash="h"), [item])
    with pytest.raises(Conflict) as caught:
        shelf.set_remote_code(model(), True, actor=admin)
    assert caught.value.code == "model.code_elsewhere" and "org/repo" in caught.value.text
