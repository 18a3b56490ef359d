"""What people say about models, what they allow, and what goes: notes, approval, code, deletion, repair, filters, disks."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client
from django.urls import reverse

from deployments import preflight, services
from deployments.models import Deployment
from deployments.spec import DeploymentSpec
from models_catalog import deleting, disk, events, fits, queries, repairs, shelf, sweep, tasks
from models_catalog.downloads import origins
from models_catalog.estimate.table import table
from models_catalog.facts import ModelFacts
from models_catalog.models import Artifact, CatalogModel, Copy, Download
from models_catalog.services import record_scan
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.audit.models import Event
from panel.core.errors import Conflict, Denied, Invalid
from panel.fleet import reports, wire
from panel.fleet.models import Gpu, Host, Job
from tests.deployments import builders

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def host() -> Host:
    return builders.make_host(gpus=2)


@pytest.fixture
def copy(host: Host) -> Copy:
    return builders.make_copy(host)


def actor(role: str) -> Actor:
    user, _made = User.objects.get_or_create(username=f"s-{role}", defaults={"role": role})
    return Actor.from_user(user)


def verbs() -> list[str]:
    return list(Event.objects.filter(verb__startswith="model.").order_by("pk").values_list("verb", flat=True))


# --- notes, tags, approval --------------------------------------------------------------------------------------------


def test_notes_and_tags_are_kept_with_who_wrote_them(copy: Copy) -> None:
    model = copy.artifact.model
    shelf.describe(
        model, actor=actor("operator"), notes=" good \r\n with tables ", tags=["chat", " Chat ", "客服  组", ""]
    )
    model.refresh_from_db()
    assert (model.notes, model.tags, model.notes_by) == ("good \n with tables", ["chat", "客服 组"], "s-operator")
    shelf.describe(model, actor=actor("admin"), tags=["chat", "客服 组"])  # the same again
    assert verbs() == ["model.described"]
    event = Event.objects.get(verb="model.described")
    assert event.before["tags"] == [] and event.after["tags"] == ["chat", "客服 组"]


@pytest.mark.parametrize(
    "words",
    [
        {"tags": ["x" * 41]},
        {"tags": [f"t{n}" for n in range(21)]},
        {"tags": ["a\x00b"]},
        {"tags": ["a,b"]},
        {"notes": "x" * 10_001},
        {"notes": "\x00"},
        {"source_url": "javascript:alert(1)"},
        {"source_url": "https://a b"},
        {"licence": "x" * 101},
    ],
)
def test_impossible_words_are_refused(copy: Copy, words: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        shelf.describe(copy.artifact.model, actor=actor("operator"), **words)
    assert verbs() == []


def test_each_act_needs_its_role(copy: Copy) -> None:
    model = copy.artifact.model
    for role, act in (
        ("viewer", lambda who: shelf.describe(model, actor=who, notes="x")),
        ("operator", lambda who: shelf.approve(model, True, actor=who)),
        ("operator", lambda who: shelf.set_remote_code(model, True, actor=who)),
        ("operator", lambda who: deleting.delete(copy, actor=who)),
    ):
        with pytest.raises(Denied):
            act(actor(role))
    assert Event.objects.filter(outcome="denied").count() == 4
    assert not Job.objects.exists()


def test_operators_are_held_to_approved_models(copy: Copy, settings: LazySettings) -> None:
    spec = DeploymentSpec(artifact_id=copy.artifact_id, device="auto")
    services.create(name="before", spec=spec, actor=actor("operator"))
    settings.BERTH_APPROVED_MODELS_ONLY = True
    old = builders.make_deployment(copy, "old")
    for act in (
        lambda who: services.create(name="new", spec=spec, actor=who),
        lambda who: services.edit(old, spec=spec.model_copy(update={"gpu_count": 2}), actor=who),
        lambda who: services.start(old, actor=who),
        lambda who: services.restart(old, actor=who),
    ):
        with pytest.raises(shelf.NotApproved) as caught:
            act(actor("operator"))
        assert "Tiny-1B-Instruct" in caught.value.text
    assert not Deployment.objects.filter(name="new").exists()
    services.stop(Deployment.objects.get(name="before"), actor=actor("operator"))  # stopping is always allowed
    services.start(old, actor=actor("admin"))
    assert shelf.approve(copy.artifact.model, True, actor=actor("admin"))
    assert not shelf.approve(copy.artifact.model, True, actor=actor("admin"))
    services.create(name="new", spec=spec, actor=actor("operator"))
    copy.artifact.model.refresh_from_db()
    assert copy.artifact.model.approved_by == "s-admin"
    assert verbs() == ["model.approved"]


def test_the_refusal_is_a_page_with_a_plain_sentence(copy: Copy, settings: LazySettings) -> None:
    settings.BERTH_APPROVED_MODELS_ONLY = True
    row = builders.make_deployment(copy, "old")
    client = Client()
    client.force_login(User.objects.get(pk=actor("operator").id))
    answer = client.post(reverse("deployment-start", args=[row.pk]), headers={"accept": "text/html"})
    assert answer.status_code == 403
    assert "Tiny-1B-Instruct is not approved" in answer.content.decode()
    text = client.get(reverse("model", args=[copy.artifact.model_id])).content.decode()
    assert "may only use approved models" in text
    assert "It is not approved" in client.get(reverse("deployment-new")).content.decode()
    wish = {"artifact": copy.artifact_id, "name": "new", "device": "cpu", "task": "generate", "kv_cache_gib": 1}
    wish["restart"] = "on_failure"
    answer = client.post(reverse("deployment-new"), wish)
    assert answer.status_code == 422 and "Tiny-1B-Instruct is not approved" in answer.content.decode()


def test_whoever_may_not_deploy_it_sees_why_in_the_list_and_the_api(copy: Copy, settings: LazySettings) -> None:
    from panel.fleet.models import Runtime
    from tests.api.conftest import person, program

    settings.BERTH_APPROVED_MODELS_ONLY = True
    Runtime.objects.create(host=copy.host, engine="vllm", executable="/opt/vllm", device="cuda")
    for role, may in (("operator", False), ("admin", True)):
        client = Client()
        client.force_login(User.objects.get(pk=actor(role).id))
        text = client.get(reverse("models")).content.decode()
        assert (f"?artifact={copy.artifact_id}" in text) is may
        page = client.get(reverse("model", args=[copy.artifact.model_id])).content.decode()
        assert (f"?artifact={copy.artifact_id}" in page) is may
        assert ("people who can deploy may only use approved models here" in text) is not may
        api = program(person(role))
        assert api.get("/api/v1/models").json()["items"][0]["may_deploy"] is may
        assert api.get(f"/api/v1/models/{copy.artifact.model_id}").json()["may_deploy"] is may
        wish = {"name": f"by-{role}", "spec": {"artifact_id": copy.artifact_id}}
        answer = api.post("/api/v1/deployments", wish, content_type="application/json")
        assert answer.status_code == (201 if may else 403), answer.content
        assert may or answer.json()["code"] == "model.not_approved"


# --- its own code -----------------------------------------------------------------------------------------------------


def code_item(path: str = "/models/own", sums: dict[str, str] | None = None, mark: str = "a") -> dict[str, Any]:
    code = {"modeling_own.py": "11" * 32} if sums is None else sums
    files = [{"name": name, "size": 9, "kind": "code", "sha256": sum_} for name, sum_ in code.items()]
    facts = {
        "fingerprint": mark * 64, "tasks": ["generate"], "needs_remote_code": True, "code_files": list(code), "files": files,
    }  # fmt: skip
    return {"path": path, "root": "/models", "format": "hf", "name": "own", "size_bytes": 10, "files": 2,
            "facts": facts, "problems": []}  # fmt: skip


def test_a_change_of_code_withdraws_the_trust(host: Host) -> None:
    record_scan(host, [code_item()])
    model = CatalogModel.objects.get()
    assert shelf.set_remote_code(model, True, actor=actor("admin"), seen=shelf.digest([["modeling_own.py", "11" * 32]]))
    record_scan(host, [code_item()])
    model.refresh_from_db()
    assert model.allow_remote_code and model.code_pins == [["modeling_own.py", "11" * 32]]
    record_scan(host, [code_item(sums={"modeling_own.py": "22" * 32})])
    model.refresh_from_db()
    assert not model.allow_remote_code and model.code_withdrawn == ["modeling_own.py"]
    assert verbs() == ["model.code_allowed", "model.code_withdrawn"]
    assert shelf.set_remote_code(model, True, actor=actor("admin"))
    model.refresh_from_db()
    assert model.code_withdrawn == []


def test_other_code_on_another_host_counts_and_a_new_file_too(host: Host) -> None:
    record_scan(host, [code_item()])
    model = CatalogModel.objects.get()
    shelf.set_remote_code(model, True, actor=actor("admin"))
    record_scan(builders.make_host("other"), [code_item(sums={"modeling_own.py": "33" * 32})])
    model.refresh_from_db()
    assert not model.allow_remote_code
    assert len(shelf.code_of(Copy.objects.all())) == 2
    shelf.set_remote_code(model, True, actor=actor("admin"))
    record_scan(host, [code_item(sums={"modeling_own.py": "11" * 32, "more.py": "44" * 32})])
    model.refresh_from_db()
    assert model.code_withdrawn == ["more.py"]


def test_code_that_nobody_can_compare_is_not_allowed(host: Host) -> None:
    record_scan(host, [code_item(sums={"huge.py": ""})])
    model = CatalogModel.objects.get()
    with pytest.raises(Conflict) as caught:
        shelf.set_remote_code(model, True, actor=actor("admin"))
    assert "huge.py" in caught.value.text
    record_scan(host, [code_item(sums={f"m{n}.py": "11" * 32 for n in range(100)})])  # the list may be cut off
    with pytest.raises(Conflict):
        shelf.set_remote_code(model, True, actor=actor("admin"))


def test_trust_from_before_sums_were_kept_takes_those_of_the_next_look(host: Host) -> None:
    record_scan(host, [code_item()])
    CatalogModel.objects.update(allow_remote_code=True)
    record_scan(host, [code_item()])
    model = CatalogModel.objects.get()
    assert model.allow_remote_code and model.code_pins == [["modeling_own.py", "11" * 32]]


# --- deleting ---------------------------------------------------------------------------------------------------------


def finish(job: Job, item: dict[str, Any] | None = None, refusal: str = "") -> None:
    said = {"id": str(job.pk), "kind": "delete", "state": "ended", "exit_code": 0}
    report = wire.Report.model_validate({"agent_version": "1", "sent_at": 0, "rev": 1, "jobs": [said]})
    reports.take_report(job.host, report)
    result = wire.JobResult(items=[item] if item else [], refusal=wire.Refusal(code=refusal) if refusal else None)
    reports.take_result(job.host, job.pk, result)
    tasks.take_scan(str(job.pk))


def test_deleting_orders_once_and_tells_what_came_back(copy: Copy) -> None:
    job = deleting.delete(copy, actor=actor("admin"))
    assert deleting.delete(copy, actor=actor("admin")).pk == job.pk
    assert job.order == {"kind": "delete", "paths": [copy.path]}
    check = preflight.check(DeploymentSpec(artifact_id=copy.artifact_id, device="auto"), name="x")
    assert not check.ok  # nothing new starts from it
    finish(job, {"path": copy.path, "freed_bytes": 123, "refusal": None})
    copy.refresh_from_db()
    assert not copy.present and copy.delete_job is None and copy.deleted_by == "s-admin"
    assert verbs() == ["model.delete_asked", "model.deleted"]
    assert Event.objects.get(verb="model.deleted").facts["freed_bytes"] == 123
    with pytest.raises(Conflict):
        deleting.delete(copy, actor=actor("admin"))


@pytest.mark.parametrize(
    ("item", "refusal", "code"),
    [
        ({"refusal": {"code": "delete.path_not_allowed", "params": {"path": "/x"}}}, "", "delete.path_not_allowed"),
        (None, "task_failed", "task_failed"),
        (None, "", "delete.no_answer"),
    ],
)
def test_a_deletion_that_failed_says_why_and_can_be_repeated(
    copy: Copy, item: dict[str, Any] | None, refusal: str, code: str
) -> None:
    job = deleting.delete(copy, actor=actor("admin"))
    finish(job, {"path": copy.path, "freed_bytes": 0, **item} if item else None, refusal)
    copy.refresh_from_db()
    assert copy.present and copy.delete_refusal["code"] == code
    assert verbs()[-1] == "model.delete_failed"
    assert deleting.delete(copy, actor=actor("admin")).pk != job.pk


def test_a_run_keeps_its_files(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="ready")
    builders.make_run(row, copy)
    found = deleting.outlook(copy)
    assert [use.text for use in found.running] == ["team-chat"]
    with pytest.raises(deleting.InUse) as caught:
        deleting.delete(copy, actor=actor("admin"), confirmed=True)
    assert "team-chat" in caught.value.text
    other = builders.make_copy(builders.make_host("other"))
    deleting.delete(other, actor=actor("admin"))  # the other copy is nobody's


def test_the_last_copy_of_a_stopped_deployment_needs_a_second_word(copy: Copy) -> None:
    builders.make_deployment(copy)
    with pytest.raises(deleting.Chosen):
        deleting.delete(copy, actor=actor("admin"))
    deleting.delete(copy, actor=actor("admin"), confirmed=True)


@pytest.mark.parametrize("state", ["stopped", "ready"])
def test_what_lies_in_the_same_folder_goes_with_it_and_counts(
    copy: Copy, host: Host, state: str, client: Client
) -> None:
    model = CatalogModel.objects.create(name="acme/beside")
    facts = {"format": "gguf", "tasks": ["generate"], "weight_bytes": 5}
    form = Artifact.objects.create(
        model=model, format="gguf", label="Q4_K_M", fingerprint="beside", size_bytes=5, facts=facts
    )
    inner = Copy.objects.create(artifact=form, host=host, path=f"{copy.path}/beside-Q4_K_M.gguf", root="/models")
    Copy.objects.create(artifact=form, host=host, path=f"{copy.path}-2/x.gguf", root="/models", present=False)
    row = builders.make_deployment(inner, "beside", state=state)
    if state == "ready":
        builders.make_run(row, inner)
    client.force_login(User.objects.get_or_create(username="s-admin", defaults={"role": "admin"})[0])
    page = client.get(reverse("model-delete-copy", args=[copy.pk])).content.decode()
    assert reverse("model", args=[model.pk]) in page and "beside" in page
    with pytest.raises(deleting.InUse if state == "ready" else deleting.Chosen) as caught:
        deleting.delete(copy, actor=actor("admin"))
    assert "beside" in caught.value.text
    if state == "ready":
        return
    job = deleting.delete(copy, actor=actor("admin"), confirmed=True)
    done = {"path": copy.path, "freed_bytes": 7, "refusal": None}
    Job.objects.filter(pk=job.pk).update(state="ended", result=wire.JobResult(items=[done]).model_dump(mode="json"))
    assert deleting.take(Job.objects.get(pk=job.pk))
    inner.refresh_from_db()
    assert not inner.present and inner.deleted_at is not None


def test_what_others_need_too_does_not_come_back(copy: Copy) -> None:
    Copy.objects.update(extra={"own_bytes": 1 << 30})
    found = deleting.outlook(Copy.objects.get())
    assert (found.bytes, found.shared) == (1 << 30, 1 << 30)


def test_the_files_are_gone_when_the_agent_did_what_was_ordered(host: Host, tmp_path: Path) -> None:
    from models_catalog.inspect.scan import scan_roots
    from panel.fleet.agent import delete as agent
    from tests.models_catalog.builders import hf_folder

    hf_folder(tmp_path / "keep")
    hf_folder(tmp_path / "go", config={"num_hidden_layers": 3})
    record_scan(host, list(scan_roots([tmp_path])))
    row = Copy.objects.get(path=str(tmp_path / "go"))
    job = deleting.delete(row, actor=actor("admin"))
    task = wire.DeleteTask.model_validate(job.order)
    limits = agent.Limits([tmp_path])
    agent.check(task, limits)
    freed = agent.delete(agent.place_of(task.paths[0], limits))
    finish(job, {"path": task.paths[0], "freed_bytes": freed, "refusal": None})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keep"]
    record_scan(host, list(scan_roots([tmp_path])))
    assert list(Copy.objects.filter(present=True).values_list("path", flat=True)) == [str(tmp_path / "keep")]


def test_a_deletion_whose_nudge_was_lost_is_found(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    job = deleting.delete(copy, actor=actor("admin"))
    Job.objects.filter(pk=job.pk).update(
        state="refused", status={"refusal": {"code": "delete.forbidden", "params": {}}}
    )
    sent: list[str] = []
    monkeypatch.setattr(events, "send", sent.append)
    monkeypatch.setattr(events, "measure_fits", lambda: None)
    sweep.sweep_jobs(every_s=0)
    assert sent == [str(job.pk)]
    tasks.take_scan(str(job.pk))
    copy.refresh_from_db()
    assert copy.delete_refusal["code"] == "delete.forbidden"


def test_the_page_before_deleting(copy: Copy) -> None:
    builders.make_deployment(copy)
    client = Client()
    client.force_login(User.objects.get(pk=actor("admin").id))
    where = reverse("model-delete-copy", args=[copy.pk])
    text = client.get(where).content.decode()
    assert "Up to 2.0\xa0GiB of the disk come back" in text and "team-chat" in text
    assert client.post(where).status_code == 422
    assert client.post(where, {"confirmed": "1"}).status_code == 302
    assert "Being deleted" in client.get(reverse("model", args=[copy.artifact.model_id])).content.decode()


# --- repair -----------------------------------------------------------------------------------------------------------


def test_damaged_files_are_offered_again_where_someone_can_fetch_them(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairs, "_fetcher", [])
    files = [{"name": f"model-{n}.safetensors", "size": 9, "kind": "weights"} for n in range(1, 5)]
    Artifact.objects.update(facts={**copy.artifact.facts, "files": files})
    Copy.objects.update(usable=False, problems=[{"code": "truncated", "params": {"file": "model-2.safetensors"}}])
    row = Copy.objects.get()
    with pytest.raises(Conflict):
        repairs.repair(row, actor=actor("operator"))
    asked: list[int] = []
    repairs.register(lambda rows: {one.pk for one in rows}, lambda one, *, actor: asked.append(one.pk))
    assert repairs.offers([row]) == {row.pk: repairs.Offer(1, 4)}
    builders.make_download(row.host, name="Tiny-1B-Instruct")
    assert origins.running([row]) == {row.pk: f"/models/downloads/{Download.objects.get().pk}/"}
    Download.objects.update(state="done")
    assert origins.running([row]) == {} and origins.known([row]) == {row.pk}
    client = Client()
    client.force_login(User.objects.get(pk=actor("operator").id))
    text = client.get(reverse("model", args=[row.artifact.model_id])).content.decode()
    assert "Download 1 of 4 weight files again" in text
    client.post(reverse("model-repair-copy", args=[row.pk]))
    assert asked == [row.pk]


def test_files_that_only_an_engine_found_damaged_are_compared_when_that_is_said(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairs, "_fetcher", [])
    assert not repairs.possible(copy), "nobody knows where the files came from"
    asked: list[int] = []
    repairs.register(lambda rows: {one.pk for one in rows}, lambda one, *, actor: asked.append(one.pk))
    assert repairs.possible(copy)
    with pytest.raises(Conflict):
        repairs.repair(copy, actor=actor("operator"))
    client = Client()
    client.force_login(User.objects.get(pk=actor("operator").id))
    client.post(reverse("model-repair-copy", args=[copy.pk]))
    assert asked == []
    client.post(reverse("model-repair-copy", args=[copy.pk]), {"suspected": "1"})
    assert asked == [copy.pk]


# --- where it fits, filters, disks ------------------------------------------------------------------------------------


def test_the_word_of_the_list_is_kept_and_made_anew_when_gpus_change(copy: Copy) -> None:
    assert fits.any_stale()
    assert fits.freshen() == 1
    assert not fits.any_stale() and fits.freshen() == 0
    Gpu.objects.update(total_mib=8 << 10)
    assert fits.any_stale()


def test_groups_are_what_one_host_has(host: Host) -> None:
    builders.make_host("plain")
    found = {(group.name, group.count): group for group in fits.groups()}
    assert found["NVIDIA L40S", 2].hosts == ("quay",)
    assert found["CPU", 1].hosts == ("plain",)


def test_the_table_says_what_fits(host: Host, tmp_path: Any) -> None:
    from models_catalog.inspect.scan import scan_roots
    from tests.models_catalog.builders import hf_folder

    hf_folder(tmp_path / "m")
    record_scan(host, list(scan_roots([tmp_path])))
    artifact = Artifact.objects.get()
    rows = table(ModelFacts.from_dict(artifact.facts), fits.groups(), "0.32.0")
    assert {row.group.count for row in rows} == {1, 2}
    assert all(cell.requests is not None for cell in rows[0].cells)
    client = Client()
    client.force_login(User.objects.get(pk=actor("viewer").id))
    assert "1\xa0×\xa0L40S" in client.get(reverse("model", args=[artifact.model_id])).content.decode()
    assert fits.freshen()
    assert Artifact.objects.get().fits["best"] in ("fits", "tight", "unknown", "does_not_fit")


def test_a_gguf_file_fits_no_machine_without_a_gpu(copy: Copy) -> None:
    """Its room would be there, and no engine could calculate with it: nothing may say that it fits."""
    Gpu.objects.all().delete()
    machine = fits.Group("CPU", 64 << 10, 1, ("quay",), cpu=True)
    whole = {**copy.artifact.facts, "format": "hf"}
    as_gguf = ModelFacts.from_dict({**whole, "format": "gguf"})
    assert len(table(ModelFacts.from_dict(whole), [machine], "0.32.0")) == 1
    assert table(as_gguf, [machine], "0.32.0") == [] and fits.word(as_gguf, [machine], "0.32.0")["best"] == ""
    card = fits.Group("NVIDIA L40S", 45 << 10, 1, ("quay",))
    assert [row.group for row in table(as_gguf, [machine, card], "0.32.0")] == [card]


def names(**wish: str) -> list[str]:
    return [row.name for row in queries.listed(queries.Wish(**wish))]


def test_each_filter_narrows_by_one_and_the_same_form(host: Host) -> None:
    big, small = builders.make_copy(host, "Big"), builders.make_copy(host, "small")
    Artifact.objects.filter(pk=big.artifact_id).update(size_bytes=70 << 30, label="Q4_K_M", format="gguf")
    big.artifact.model.artifacts.create(format="hf", label="bfloat16", fingerprint="z", size_bytes=1)  # nowhere
    Artifact.objects.filter(pk=small.artifact_id).update(fits={"best": "fits", "on": []})
    CatalogModel.objects.filter(name="small").update(tags=["客服"], approved=True)
    builders.make_deployment(big)
    assert names() == ["Big", "small"]
    assert names(format="gguf") == names(label="Q4_K_M") == names(size="more") == ["Big"]
    assert names(format="hf") == names(size="4") == names(tag="客服") == names(text="客服") == ["small"]
    assert names(show="fits") == names(show="approved") == names(show="unused") == ["small"]
    assert names(format="gguf", size="4") == names(format="hf", label="Q4_K_M") == []
    assert names(task="embed") == []
    assert names(format="odd", size="odd", task="odd", show="odd") == ["Big", "small"]
    assert queries.labels() == ["Q4_K_M", "bfloat16"] and queries.tags() == ["客服"]


def test_disks_tell_what_lies_there_twice_and_was_never_used(host: Host, copy: Copy) -> None:
    facts = {**host.facts, "disks": [{"path": "/models", "total_mib": 1000, "free_mib": 250}]}
    Host.objects.filter(pk=host.pk).update(facts=facts)
    for path, own in (("/again/tiny", 2 << 30), ("/links/tiny", 0)):
        Copy.objects.create(artifact=copy.artifact, host=host, path=path, extra={"own_bytes": own})
    (found,) = disk.by_host()
    assert (found.models, found.bytes, found.unused, found.free_mib) == (3, 4 << 30, 3, 250)
    assert [(one.paths, one.bytes) for one in found.duplicates] == [
        (("/again/tiny", "/models/Tiny-1B-Instruct"), 2 << 30)
    ]
    builders.make_deployment(copy)
    assert disk.by_host()[0].unused == 0
    client = Client()
    client.force_login(User.objects.get(pk=actor("viewer").id))
    text = client.get(reverse("models")).content.decode()
    assert "2.0\xa0GiB lie there twice" in text and "/again/tiny" in text


def test_strange_facts_of_one_model_keep_no_other_from_its_estimate(
    host: Host, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.make_copy(host, "other")

    def broken(facts: ModelFacts, *_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("models_catalog.estimate.estimate", broken)
    assert fits.freshen() == 2 and not fits.any_stale()
    client = Client()
    client.force_login(User.objects.get(pk=actor("viewer").id))
    assert client.get(reverse("model", args=[copy.artifact.model_id])).status_code == 200


def test_the_page_of_a_model_asks_no_more_with_more_copies_and_deployments(
    copy: Copy, django_assert_num_queries: Any
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    client = Client()
    client.force_login(User.objects.get(pk=actor("admin").id))
    where = reverse("model", args=[copy.artifact.model_id])
    row = builders.make_deployment(copy, "d", state="ready")
    builders.make_run(row, copy)
    client.get(where)
    with CaptureQueriesContext(connection) as few:
        client.get(where)
    for n in range(12):
        other = builders.make_copy(builders.make_host(f"h{n}"))
        row = builders.make_deployment(other, f"d{n}", state="ready")
        builders.make_run(row, other)
    with django_assert_num_queries(len(few)):
        text = client.get(where).content.decode()
    assert "d11" in text


# --- the same in the API ----------------------------------------------------------------------------------------------


def test_the_api_does_all_of_it(copy: Copy) -> None:
    from tests.api.conftest import person, program

    client, where = program(person("admin")), f"/api/v1/models/{copy.artifact.model_id}"

    def send(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return client.generic(method, path, json.dumps(body or {}), content_type="application/json")

    found = send("PATCH", where, {"tags": ["chat"], "notes": "good", "source_url": "https://example.org/x"}).json()
    assert (found["tags"], found["notes"], found["artifacts"][0]["copies"][0]["id"]) == (["chat"], "good", copy.pk)
    assert send("PATCH", where, {"tags": ["x" * 50]}).json()["fields"]["tags"]
    assert send("POST", f"{where}/approval", {"approved": True}).json()["approved"] is True
    assert send("POST", f"{where}/code", {"allowed": True, "digest": "other"}).json()["code"] == "model.code_changed"
    assert send("POST", f"{where}/code", {"allowed": True}).json()["allow_remote_code"] is True
    assert [row["gpu"] for row in client.get(f"{where}/fit").json()["rows"]] == ["NVIDIA L40S", "NVIDIA L40S"]
    assert client.get(f"/api/v1/models/forms/{copy.artifact_id}/template").json()["text"] == ""
    assert client.get("/api/v1/models/disk").json()["items"][0]["unused"] == 1
    assert [row["id"] for row in client.get("/api/v1/models?tag=chat&show=approved").json()["items"]] == [found["id"]]
    assert client.get("/api/v1/models?tag=none").json()["items"] == []
    assert client.post(f"/api/v1/models/copies/{copy.pk}/repair").json()["code"] == "repair.unknown_source"
    builders.make_deployment(copy)
    assert client.delete(f"/api/v1/models/copies/{copy.pk}").json()["code"] == "model.chosen"
    answer = client.delete(f"/api/v1/models/copies/{copy.pk}?confirmed=true")
    assert answer.status_code == 202 and Job.objects.get().pk.hex == answer.json()["job"].replace("-", "")
    assert client.get(where).json()["artifacts"][0]["copies"][0]["deleting"] == answer.json()["job"]
    assert set(verbs()) == {"model.described", "model.approved", "model.code_allowed", "model.delete_asked"}
