"""Fixes on the database: offered where the planner takes them, applied by one click, told as a story, once by itself."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from deployments import applying, conflicts, evidence, patching, placing, queries, remedies, services, story
from deployments.diagnosis import failure
from deployments.fix_words import title
from deployments.mending.fix import Fix
from deployments.models import Deployment, Run
from deployments.reconcile import reconcile
from deployments.spec import DeploymentSpec
from models_catalog.models import Copy
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.audit.models import Event
from panel.core.errors import Conflict
from panel.fleet import logstore
from panel.fleet.models import Gpu
from tests.deployments import builders

pytestmark = pytest.mark.django_db
SHORT = (
    "INFO 01-01 10:00:00 [api_server.py:1] vLLM API server version 0.32.0\n"
    "ValueError: To serve at least one request with the models's max seq len (4096), (18.35 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (10.1 GiB). Based on the available memory, the estimated "
    "maximum model length is 2254.\n"
)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.queue.send", lambda task, *args: True)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy() -> Copy:
    return builders.make_copy(builders.make_host(gpus=1))


def broken(copy: Copy, log: str = SHORT, name: str = "team-chat", **values: Any) -> Deployment:
    """A deployment whose newest start failed with this log, as the loop leaves it."""
    row = builders.make_deployment(copy, name, state="failed")
    spec = DeploymentSpec(artifact_id=copy.artifact_id, **{"options": {"max_model_len": 4096}, **values})
    row.revision.spec = spec.model_dump(mode="json")
    row.revision.save()
    gpus = [gpu.uuid for gpu in copy.host.gpus.all()]
    ending = failure.explain(log=log.encode(), exit_code=1)
    run = builders.make_run(
        row, copy, job_state="ended", log=log.encode(), ended_at=timezone.now(), outcome="failed", exit_code=1,
        reason=ending.reason, diagnosis=ending.diagnosis, error_block=ending.error_block,
        placement={"device": "gpu" if gpus else "cpu", "gpus": [0] if gpus else [], "gpu_uuids": gpus, "kv_cache_gib": 4},
    )  # fmt: skip
    Deployment.objects.filter(pk=row.pk).update(reason=run.reason)
    return queries.one(row.pk)


def as_role(role: str, **headers: str) -> Client:
    client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html", **headers})
    client.force_login(User.objects.get_or_create(username=f"a {role}", defaults={"role": role})[0])
    return client


def press(client: Client, row: Deployment, key: str, revision: int = 1) -> Any:
    return client.post(reverse("deployment-fix", args=[row.pk, key]), {"revision": str(revision)})


# --- what is offered --------------------------------------------------------------------------------------------------


def test_the_number_is_the_engines_and_the_planner_takes_it(copy: Copy) -> None:
    fixes = remedies.of(broken(copy))
    assert dict(fixes[0].patch) == {"options": {"max_model_len": 2240}}
    assert all(fix.kind != "patch" or fix.patch for fix in fixes) and len(fixes) <= remedies.MOST_SHOWN


def test_what_the_planner_refuses_is_not_offered(copy: Copy) -> None:
    row = broken(copy)
    Gpu.objects.update(used_mib=46_000)  # somebody filled the card meanwhile
    assert not [fix for fix in remedies.of(queries.one(row.pk)) if fix.kind == "patch"]


@pytest.mark.parametrize("used_mib", [600, 38_000])
@pytest.mark.parametrize("name", ["adapter's rank", "bfloat16 on an old GPU", "cache smaller than one request", "heads",
                                  "memory held by a stranger", "memory while choosing words", "removed flag",
                                  "quantisation"])  # fmt: skip
def test_every_offered_patch_is_one_that_a_start_would_take(copy: Copy, name: str, used_mib: int) -> None:
    from tests.deployments.pure.plans import model
    from tests.deployments.pure.test_mending import EVERYDAY

    copy.artifact.facts = {**copy.artifact.facts, **model()}
    copy.artifact.save()
    log, _code, of, *_rest = EVERYDAY[name]
    values = {key: value for key, value in of.model_dump().items() if key in ("options", "extra_args", "gpu_count")}
    row = broken(copy, f"INFO 01-01 10:00:00 [api_server.py:1] vLLM API server version 0.32.0\n{log}\n", **values)
    Gpu.objects.update(used_mib=used_mib)
    spec = DeploymentSpec.model_validate(row.revision.spec)
    found = [fix for fix in remedies.of(row) if fix.kind == "patch"]
    assert found or used_mib > 600
    for fix in found:
        assert patching.accepted(spec, fix.patch, row.name).ok, fix


def test_settings_that_were_changed_since_have_no_fixes_of_that_start(copy: Copy) -> None:
    row = broken(copy)
    services.stop(row, actor=None)
    services.edit(row, spec=DeploymentSpec(artifact_id=copy.artifact_id), actor=None)
    assert remedies.of(queries.one(row.pk)) == []


def test_back_to_the_settings_with_which_it_worked(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    good = builders.make_run(row, copy, job_state="ended", ended_at=timezone.now(), outcome="stopped")
    Run.objects.filter(pk=good.pk).update(ready_at=timezone.now())
    services.stop(row, actor=None)
    spec = DeploymentSpec(artifact_id=copy.artifact_id, options={"max_num_seqs": 512, "dtype": "half"})
    services.edit(row, spec=spec, actor=None)
    row.refresh_from_db()
    reason = {"code": "exit.code", "params": {"exit_code": 1}}
    builders.make_run(row, copy, job_state="ended", ended_at=timezone.now(), outcome="failed", reason=reason)
    Deployment.objects.filter(pk=row.pk).update(reason=reason, state="failed", desired="running")
    (back,) = [fix for fix in remedies.of(queries.one(row.pk)) if fix.code == "fix.back_to"]
    assert dict(back.patch) == {"options": {}} and back.params == {"number": 1}


def test_queries_do_not_grow_with_what_is_proposed(copy: Copy, django_assert_max_num_queries: Any) -> None:
    row = broken(copy)
    for number in range(6):
        copy.host.runtimes.create(
            engine="vllm",
            executable=f"/opt/{number}/bin/vllm",
            version=f"0.3{number}.0",
            device="cuda",
            flags=builders.FLAGS,
        )
    remedies.of(row)  # engines' flags are read once a process
    with django_assert_max_num_queries(24):
        assert remedies.of(row)


BUSY = (
    "ValueError: Free memory on device cuda:0 (1.92/44.99 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 40.49 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
)


def beside(copy: Copy, name: str) -> Deployment:
    """Another deployment that holds memory of the first GPU."""
    row = builders.make_deployment(copy, name, state="ready")
    run = builders.make_run(row, copy)
    gpu = copy.host.gpus.get()
    copy.host.reservations.create(gpu=gpu, holder=str(run.pk), mib=40_000)
    Gpu.objects.filter(pk=gpu.pk).update(reserved_mib=40_000)
    return row


def test_what_holds_the_memory_is_named_only_to_who_may_see_it(copy: Copy) -> None:
    other = beside(copy, "secret-project")
    row = broken(copy, BUSY)
    everybody = [(fix.code, dict(fix.params).get("name"), fix.target) for fix in remedies.of(row)]
    assert ("fix.stop_gpu", "secret-project", other.pk) in everybody
    limited = Actor(name="a program", id=1, role="operator", deployments=frozenset({row.pk}))
    told = remedies.of(row, limited)
    assert ("fix.stop_gpu_other", None) in [(fix.code, fix.target) for fix in told]
    assert "secret-project" not in repr(told)
    both = Actor(name="a program", id=1, role="operator", deployments=frozenset({row.pk, other.pk}))
    assert "secret-project" in repr(remedies.of(row, both))


def test_what_would_have_to_stop_is_named_only_to_who_may_see_it(copy: Copy) -> None:
    other = beside(copy, "secret-project")
    row = builders.make_deployment(copy, state="failed")
    Deployment.objects.filter(pk=row.pk).update(reason={"code": "place.none", "params": {}})
    row = queries.one(row.pk)
    assert "change.stop" in [fix.code for fix in remedies.of(row)]
    limited = Actor(name="a program", id=1, role="operator", deployments=frozenset({row.pk}))
    told = remedies.of(row, limited)
    assert "change.stop_other" in [fix.code for fix in told] and "secret-project" not in repr(told)
    assert other.name not in "".join(title(fix)[0] for fix in told)


# --- applied ----------------------------------------------------------------------------------------------------------


def test_one_click_makes_one_change_starts_it_and_is_recorded(copy: Copy) -> None:
    row = broken(copy)
    page = as_role("operator").get(reverse("deployment", args=[row.pk])).content.decode()
    assert "Lower the longest conversation to 2240 tokens" in page and "Apply and start again" in page
    key = remedies.of(row)[0].key
    assert press(as_role("operator"), row, key).status_code == 302
    row = queries.one(row.pk)
    assert row.revision.number == 2 and row.revision.spec["options"] == {"max_model_len": 2240}
    assert row.revision.why["fix"] == "fix.context_down" and row.revision.why["run"] == 1
    assert (row.desired, row.restart_asked) == ("running", 1)
    event = Event.objects.get(verb="deployment.fixed")
    assert event.actor == "a operator" and event.facts["class"] == "mem.kv_lt_len"
    assert event.after == {"options.max_model_len": 2240} and event.facts["fix"] == "fix.context_down"


def test_who_may_not_is_told_whom_to_ask(copy: Copy) -> None:
    row = broken(copy)
    viewer = as_role("viewer")
    page = viewer.get(reverse("deployment", args=[row.pk])).content.decode()
    assert "Lower the longest conversation" in page and "Apply and start again" not in page
    assert "Ask maria, who started it, or an admin." in page
    assert press(viewer, row, remedies.of(row)[0].key).status_code == 403
    assert queries.one(row.pk).revision.number == 1


def test_a_stale_page_changes_nothing(copy: Copy) -> None:
    row = broken(copy)
    key = remedies.of(row)[0].key
    assert press(as_role("operator"), row, key, revision=7).status_code == 409
    assert press(as_role("operator"), row, "0a1b2c3d4e5f").status_code == 409
    Deployment.objects.filter(pk=row.pk).update(state="starting")
    assert press(as_role("operator"), row, key).status_code == 409
    assert queries.one(row.pk).revision.number == 1 and not Event.objects.filter(verb="deployment.fixed").exists()
    with pytest.raises(conflicts.Moving):
        applying.apply(queries.one(row.pk), key, base_number=1, actor=None)


def test_two_people_at_once_apply_one(copy: Copy) -> None:
    row = broken(copy)
    fix = remedies.of(row)[0]
    applying.start_with(row, fix, actor=None)
    with pytest.raises(Conflict):
        applying.start_with(row, fix, actor=None)
    assert queries.one(row.pk).revision.number == 2


def test_what_needs_no_change_is_started_again(copy: Copy) -> None:
    row = broken(
        copy,
        "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 18100): address already in use\n",
    )
    first = remedies.of(row)[0]
    assert first.kind == "again"
    applying.apply(row, first.key, base_number=1, actor=None)
    row = queries.one(row.pk)
    assert (row.revision.number, row.restart_asked) == (1, 1)
    assert Event.objects.get(verb="deployment.fixed").facts["fix"] == "fix.again_port"


def test_what_is_done_elsewhere_cannot_be_applied_here(copy: Copy) -> None:
    row = broken(copy, "OSError: [Errno 28] No space left on device\n")
    with pytest.raises(conflicts.NotHere):
        applying.apply(row, remedies.of(row)[0].key, base_number=1, actor=None)


def test_a_refused_flag_is_left_out_by_a_click(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    row.revision.spec = DeploymentSpec(artifact_id=copy.artifact_id, extra_args=["--frobnicate"]).model_dump(
        mode="json"
    )
    row.revision.save()
    reason = {"code": "flag.unknown", "params": {"flag": "--frobnicate", "near": "", "version": "0.32.0"}}
    Deployment.objects.filter(pk=row.pk).update(reason=reason)
    fixes = remedies.of(queries.one(row.pk))
    assert [(fix.kind, dict(fix.patch)) for fix in fixes] == [("patch", {"extra_args": []})]


# --- programs ---------------------------------------------------------------------------------------------------------


def test_the_api_lists_and_applies(copy: Copy) -> None:
    from tests.api.conftest import person, program

    row = broken(copy)
    where = f"/api/v1/deployments/{row.pk}/fixes"
    told = program(person("viewer")).get(where).json()
    assert told["revision"] == 1 and told["items"][0]["applies"] and told["items"][0]["spec"]
    key = told["items"][0]["id"]
    operator = program(person("operator"))
    stale = operator.post(f"{where}/{key}", b'{"revision": 3}', content_type="application/json")
    assert (stale.status_code, stale.json()["code"]) == (409, "deployment.edited")
    done = operator.post(f"{where}/{key}", b'{"revision": 1}', content_type="application/json")
    assert done.status_code == 202 and done.json()["revision"] == 2


def test_the_shell_shows_and_applies(copy: Copy) -> None:
    from tests.api.test_commands import refused, run

    row = broken(copy)
    told = run("fix", "team-chat")
    assert "Lower the longest conversation to 2240 tokens" in told and remedies.of(row)[0].key in told
    assert refused("fix", "team-chat", "0a1b2c3d4e5f")[0] == 2
    run("fix", "team-chat", "first")
    assert queries.one(row.pk).revision.number == 2


def test_the_form_switches_it_on_and_an_edit_that_does_not_show_it_keeps_it(copy: Copy) -> None:
    row = broken(copy)
    values = {
        "artifact": str(copy.artifact_id),
        "task": "generate",
        "device": "auto",
        "restart": "never",
        "gpu_count": "1",
    }
    for sent, wanted in (({"fix_once": "once"}, True), ({}, True), ({"fix_once": "no"}, False)):
        answer = as_role("operator").post(reverse("deployment-edit", args=[row.pk]), {**values, **sent})
        assert answer.status_code == 302
        assert queries.one(row.pk).revision.spec["fix_once"] is wanted


# --- the story --------------------------------------------------------------------------------------------------------


def again(row: Deployment) -> Run:
    """The next run, as the loop makes it."""
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.run is not None
    return row.run


def test_each_attempt_names_the_one_before_and_what_was_changed(copy: Copy) -> None:
    row = broken(copy)
    applying.apply(row, remedies.of(row)[0].key, base_number=1, actor=None)
    second = again(row)
    assert second.parent_id == Run.objects.get(number=1).pk
    told = story.of(second)
    assert [(each.run.number, each.changes) for each in told] == [(2, {"options.max_model_len": (4096, 2240)}), (1, {})]
    page = as_role("viewer").get(reverse("run", args=[second.pk])).content.decode()
    assert "The attempts so far" in page and "Lower the longest conversation to 2240 tokens" in page


def test_a_start_after_a_good_one_tells_no_story(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="stopped", desired="running")
    run = builders.make_run(row, copy, job_state="ended", ended_at=timezone.now(), outcome="stopped")
    row.refresh_from_db()
    second = again(row)
    assert second.pk != run.pk and second.parent_id is None and len(story.of(second)) == 1


# --- once by itself ---------------------------------------------------------------------------------------------------


def fail(run: Run, log: str = SHORT) -> None:
    """The host reports that the engine ended with this log."""
    job = run.job
    logstore.append(job.pk, job.log.size, log.encode())
    job.status = {**job.status, "state": "ended", "exit_code": 1, "log_size": len(log)}
    job.state, job.ended_at, job.open = "ended", timezone.now(), False
    job.save()
    reconcile(run.deployment_id)


def test_berth_mends_a_safe_failure_once_and_says_who_switched_it_on(copy: Copy) -> None:
    row = broken(copy, fix_once=True)
    row.revision.created_by = "nadia"
    row.revision.save()
    second = again(row)
    assert (second.number, second.cause, second.started_by) == (2, placing.BY_ITSELF, "system")
    assert row.revision_id == second.revision_id and second.revision.spec["options"] == {"max_model_len": 2240}
    event = Event.objects.get(verb="deployment.mended")
    assert event.facts["switched_on_by"] == "nadia" and event.facts["class"] == "mem.kv_lt_len"
    fail(second, SHORT.replace("2254", "1200"))
    row.refresh_from_db()
    assert (row.state, row.run.number) == ("failed", 2), "the second failure is for people"
    assert Event.objects.filter(verb="deployment.mended").count() == 1


def test_the_same_again_is_tried_once_too(copy: Copy) -> None:
    taken = (
        "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 18100): address already in use\n"
    )
    row = broken(copy, taken, fix_once=True)
    second = again(row)
    assert (second.number, second.cause) == (2, placing.BY_ITSELF)
    fail(second, taken)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.run.number) == ("failed", 2)
    assert Event.objects.filter(verb="deployment.mended").count() == 1


def test_without_the_switch_or_for_other_classes_it_waits_for_people(copy: Copy) -> None:
    row = broken(copy)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.run.number) == ("failed", 1)
    disk = broken(copy, "OSError: [Errno 28] No space left on device\n", "other", fix_once=True)
    assert not applying.is_due(disk)


def test_when_no_fix_is_safe_it_is_noted_and_not_tried_for_ever(copy: Copy) -> None:
    row = broken(copy, fix_once=True)
    Gpu.objects.update(used_mib=46_000)
    reconcile(row.pk)
    row = queries.one(row.pk)
    assert row.state == "failed" and Run.objects.get(pk=row.run_id).diagnosis["fix_tried"]
    assert not applying.is_due(row)


def test_a_stopped_deployment_is_not_mended(copy: Copy) -> None:
    row = broken(copy, fix_once=True)
    services.stop(row, actor=None)
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.run.number == 1 and row.revision.number == 1


def test_who_stops_it_while_berth_looks_for_a_fix_wins(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    row = broken(copy, fix_once=True)
    looked = remedies.of

    def stopped_meanwhile(whole: Deployment) -> list[Fix]:
        found = looked(whole)
        services.stop(whole, actor=None)
        return found

    monkeypatch.setattr(remedies, "of", stopped_meanwhile)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.desired, row.run.number, row.revision.number) == ("stopped", 1, 1)
    assert not Event.objects.filter(verb="deployment.mended").exists()


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_the_end_of_a_run_keeps_what_the_panel_knew(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="stopped", desired="running")
    good = builders.make_run(row, copy, job_state="ended", ended_at=timezone.now(), outcome="stopped")
    argv = ["/opt/x/vllm", "serve", "/m", "--gpu-memory-utilization", "0.5", "--port", "1"]
    Run.objects.filter(pk=good.pk).update(ready_at=timezone.now())
    good.job.status = {**good.job.status, "argv": argv}
    good.job.save()
    row.refresh_from_db()
    run = again(row)
    assert run.placement["before"]["gpus"][0]["total_mib"] == 46_068
    job = run.job
    job.status = {**job.status, "oom_kills": 1, "port_holder": "nginx (process 812)", "port": 18_100}
    job.save()
    fail(run)
    run.refresh_from_db()
    assert run.diagnosis["class"] == "mem.kv_lt_len" and run.diagnosis["oom_kills"] == 1
    assert run.diagnosis["port_holder"] == "nginx (process 812)"
    assert run.diagnosis["changed"]["gpu_memory_utilization"][0] == "0.5"
    assert run.diagnosis["memory"]["before"]["gpus"][0]["free_mib"] > 0
    assert run.diagnosis["told"]["bars"][2] == "GiB" and run.diagnosis["settings"] > 0
    assert run.diagnosis["port"] == 18_100
    offered = run.diagnosis["offers"]
    assert any(offer["name"] == "gpu_memory_utilization" and offer["after"] == "0.5" for offer in offered)


@pytest.mark.parametrize("beside", [False, True])
def test_what_the_kernel_ended_beside_it_is_not_its_end(copy: Copy, beside: bool) -> None:
    """One count for two engines: it is the other's death that it counts."""
    row = builders.make_deployment(copy, state="stopped", desired="running")
    run = again(row)
    if beside:
        other = builders.make_run(builders.make_deployment(copy, "other"), copy, job_state="ended")
        other.job.status = {**other.job.status, "signal": 9, "stop_asked": False}
        other.job.ended_at = timezone.now()
        other.job.save()
    job = run.job
    job.status = {**job.status, "oom_kills": 1, "oom_ago_s": 1.5}
    job.save()
    fail(run, "WARNING 01-01 10:00:00 [core_client.py:1] [shutdown] MPClient: engine core exited unexpectedly\n")
    run.refresh_from_db()
    assert run.diagnosis["class"] == ("run.worker_died" if beside else "mem.host_oom_killed")
    known, _kept = evidence.gathered(run, job.status)
    assert known is not None and known.oom == ("none" if beside else "just_before")


# --- what the engine's own check refused ------------------------------------------------------------------------------


def test_what_the_engine_refused_before_a_start_has_its_fix_and_refused_ones_are_not_offered(copy: Copy) -> None:
    from deployments.checklist.look import look
    from tests.deployments.test_check import REFUSED, answer, spec

    asked = spec(copy, options={"max_model_len": 999_999})
    look(asked, name="team-chat")
    answer(REFUSED)
    row = builders.make_deployment(copy, desired="running")
    row.revision.spec = asked.model_dump(mode="json")
    row.revision.save()
    reconcile(row.pk)
    row = queries.one(row.pk)
    assert (row.state, row.reason["code"], row.run.job_id) == ("failed", "check.refused", None)
    first = remedies.of(row)[0]
    assert first.option == "max_model_len" and first.patch["options"]["max_model_len"] < 999_999
    shorter = spec(copy, options=first.patch["options"])
    look(shorter, name="team-chat")
    answer(REFUSED)
    assert remedies.of(row) == [], "the engine has said that it would not start so either"
    Deployment.objects.filter(pk=row.pk).update(state="failed")
    applied = applying.start_with(queries.one(row.pk), first, actor=None)
    assert applied.revision.why["class"] == "config.len_gt_derived" and applied.revision.why["run"] == 1


def test_settings_that_failed_as_well_since_are_no_way_back(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    good = builders.make_run(row, copy, job_state="ended", ended_at=timezone.now(), outcome="stopped")
    Run.objects.filter(pk=good.pk).update(ready_at=timezone.now())
    reason = {"code": "exit.code", "params": {"exit_code": 1}}
    builders.make_run(row, copy, job_state="ended", ended_at=timezone.now(), outcome="failed", reason=reason)
    spec = DeploymentSpec(artifact_id=copy.artifact_id, options={"dtype": "half"})
    row.revision = row.revisions.create(number=2, spec=spec.model_dump(mode="json"), created_by="maria")
    row.reason = reason
    row.save()
    builders.make_run(row, copy, job_state="ended", ended_at=timezone.now(), outcome="failed", reason=reason)
    assert remedies.of(queries.one(row.pk)) == []


def test_without_what_the_panel_knows_the_log_is_still_explained(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row = builders.make_deployment(copy, state="stopped", desired="running")
    run = again(row)
    monkeypatch.setattr("deployments.evidence.of", lambda *args: 1 / 0)
    fail(run)
    run.refresh_from_db()
    assert run.diagnosis["class"] == "mem.kv_lt_len" and "memory" not in run.diagnosis
    assert "could not be read" in caplog.text
