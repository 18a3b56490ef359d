"""What people may order, what the host's words become, and that nothing rests for ever."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from models_catalog.downloads import access, contexts, origins, outcomes, queries, services
from models_catalog.downloads.models import Download, HubAccess, State
from models_catalog.models import Artifact, CatalogModel, Copy
from panel.accounts.actor import Actor
from panel.audit.models import Event
from panel.core.errors import Conflict, Denied, Invalid
from panel.fleet import services as fleet
from panel.fleet import wire
from panel.fleet.models import Host, Job
from tests.fakes.hub import Hub
from tests.models_catalog.downloads.conftest import FOLDERS, GGUF, MADE, again, person, result, say

pytestmark = pytest.mark.django_db
Make = Callable[..., services.Wish]


# --- ordering ---------------------------------------------------------------------------------------------------------


def test_a_download_is_a_job_with_the_hubs_sums_and_its_record(hub: Hub, host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    assert row.job is not None
    order = wire.DownloadTask.model_validate(row.job.order)
    assert (order.repo, order.revision, order.ref) == ("acme/tiny", hub.repos["acme/tiny"].commit, "main")
    assert (order.layout, order.folder, order.endpoint) == ("hf_cache", FOLDERS[0], hub.url)
    assert {file.path: file.sum for file in order.files}["model.safetensors"] == hub.repos["acme/tiny"].files[
        "model.safetensors"
    ].sha256
    assert Event.objects.get(verb="download.started").facts["host"] == "quay"


def test_in_a_plain_folder_it_has_a_folder_of_its_own(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish("acme/tiny-gguf", key="Q8_0", folder=FOLDERS[1]), actor=otto)
    assert row.job is not None
    order = wire.DownloadTask.model_validate(row.job.order)
    assert (order.layout, order.name, order.ref) == ("folder", "acme/tiny-gguf", "")
    assert [file.path for file in order.files] == ["README.md", "tiny-Q8_0.gguf"]


@pytest.mark.parametrize(("said", "ordered"), [(None, 3.0), (0.0, 0.0), (1.5, 1.5)])
def test_how_fast_where_the_settings_say_something_else(
    host: Host, otto: Actor, wish: Make, settings: Any, said: float | None, ordered: float
) -> None:
    settings.BERTH_DOWNLOAD_LIMIT_MIB_S = 3.0
    row = services.start(host, wish(limit_mib_s=said), actor=otto)
    assert row.job is not None and row.job.order["limit_mib_s"] == ordered
    assert contexts.page(row, may=True)["limit"] == ordered


def test_pressed_twice_is_one_download_and_another_form_stands_beside_it(host: Host, otto: Actor, wish: Make) -> None:
    first = services.start(host, wish("acme/tiny-gguf", key="Q8_0", folder=FOLDERS[1]), actor=otto)
    assert services.start(host, wish("acme/tiny-gguf", key="Q8_0", folder=FOLDERS[1]), actor=otto).pk == first.pk
    other = services.start(host, wish("acme/tiny-gguf", key="Q4_K_M", folder=FOLDERS[1]), actor=otto)
    assert other.pk != first.pk and Job.objects.filter(kind="download").count() == 2


def test_started_again_it_has_the_sums_of_now_also_of_a_branch_that_moved_on(
    hub: Hub, host: Host, otto: Actor, wish: Make
) -> None:
    def ask() -> services.Wish:
        return wish("acme/tiny-gguf", key="Q8_0", folder=FOLDERS[1], source="modelscope")

    row = services.start(host, ask(), actor=otto)
    services.pause(row, actor=otto)
    result(host, again(row).job, code="stopped")
    assert again(row).state == State.PAUSED
    hub.add("acme/tiny-gguf", {**GGUF, "tiny-Q8_0.gguf": b"new" * 4000}, license="mit")
    later = services.start(host, ask(), actor=otto)
    assert later.pk == row.pk and later.bytes_total > row.bytes_total and later.job is not None
    sums = {file["path"]: file["sha256"] for file in later.job.order["files"]}
    assert sums["tiny-Q8_0.gguf"] == hub.repos["acme/tiny-gguf"].files["tiny-Q8_0.gguf"].sha256


def test_what_is_not_possible(host: Host, otto: Actor, wish: Make) -> None:
    with pytest.raises(Invalid) as caught:
        services.start(host, wish(folder="/etc"), actor=otto)
    assert list(caught.value.fields) == ["folder"]
    with pytest.raises(Invalid):
        services.start(host, wish(source="modelscope"), actor=otto)  # into the cache of Hugging Face tools
    host.facts["allow_download"] = False
    host.save()
    with pytest.raises(Conflict) as refused:
        services.start(host, wish(), actor=otto)
    assert refused.value.code == "download.forbidden" and "agent.json" in refused.value.hint_text
    assert not Job.objects.exists()


@pytest.mark.parametrize("act", ["start", "pause", "resume", "cancel"])
def test_who_only_looks_changes_nothing(host: Host, wish: Make, otto: Actor, act: str) -> None:
    made = wish()
    row = services.start(host, made, actor=otto)
    viewer = person("viewer")
    with pytest.raises(Denied):
        services.start(host, made, actor=viewer) if act == "start" else getattr(services, act)(row, actor=viewer)
    assert again(row).state == State.WAITING
    assert Event.objects.filter(outcome="denied", verb="models.download", actor="viewer").exists()


# --- the queue of a host ----------------------------------------------------------------------------------------------


def test_only_so_many_at_once_and_the_next_one_begins_by_itself(
    host: Host, otto: Actor, wish: Make, settings: Any
) -> None:
    settings.BERTH_DOWNLOADS_PER_HOST = 1
    first = services.start(host, wish(), actor=otto)
    second = services.start(host, wish("acme/tiny-gguf", key="Q8_0", folder=FOLDERS[1]), actor=otto)
    third = services.start(host, wish("acme/tiny-gguf", key="Q4_K_M", folder=FOLDERS[1]), actor=otto)
    assert (second.job, contexts.stage(second), queries.ahead(third)) == (None, "waiting", 1)
    result(host, first.job, MADE)
    second = again(second)
    assert (again(first).state, contexts.stage(second), again(third).job) == ("done", "ordered", None)
    services.cancel(second, actor=otto)
    assert again(third).job is None, "the one before it is still ending"
    result(host, second.job, code="stopped")
    assert (again(second).state, again(third).job is not None) == ("cancelled", True)


def test_a_paused_one_lets_the_others_go_on(host: Host, otto: Actor, wish: Make, settings: Any) -> None:
    settings.BERTH_DOWNLOADS_PER_HOST = 1
    first = services.start(host, wish(), actor=otto)
    second = services.start(host, wish("acme/tiny-gguf", key="Q8_0", folder=FOLDERS[1]), actor=otto)
    services.pause(first, actor=otto)
    result(host, first.job, code="stopped")
    assert again(second).job is not None
    assert services.resume(again(first), actor=otto).job is None, "it waits for its turn now"


# --- what the host says -----------------------------------------------------------------------------------------------


def progress(phase: str, done: int, total: int, **more: Any) -> dict[str, Any]:
    return {"progress": {"phase": phase, "done": done, "total": total, "passed": ["checking"], **more}}


def test_progress_with_speed_and_time_left(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    say(host, row.job, **progress("downloading", 2000, 5000, rate=100.0, note="model.safetensors"))
    row = again(row)
    told = contexts.numbers(row)
    assert (row.state, round(told["percent"]), told["left_s"], told["silent"]) == ("running", 40, 30, 0)
    say(host, row.job, **progress("downloading", 2000, 5000, silent_s=75.0, trouble="connection_lost"))
    told = contexts.numbers(again(row))
    assert (told["silent"], told["left_s"]) == (75, None) and "lost" in told["trouble"].text
    say(host, row.job, **progress("verifying", 1000, 5000))
    assert contexts.stage(again(row)) == "verifying", "a stage of its own"


def test_the_end_is_written_and_the_catalog_looks(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    result(host, row.job, MADE)
    row = again(row)
    assert (row.state, row.made, row.bytes_done) == ("done", [MADE["path"]], row.bytes_total)
    assert Job.objects.filter(kind="scan", host=host).count() == 1
    result(host, row.job, MADE)
    assert Event.objects.filter(verb="download.done").count() == 1


@pytest.mark.parametrize(
    ("code", "params", "words"),
    [
        ("download.gated", {"token": False}, "licence has to be accepted"),
        ("download.gated", {"token": True}, "may not have this model yet"),
        ("download.no_space", {"path": "/srv", "free_mib": 1024, "need_mib": 4096}, "4.0"),
        ("download.wrong_hash", {"file": "model.safetensors"}, "not what the hub promised"),
        ("download.offline", {"host": "hub.example"}, "hub.example cannot be reached"),
        ("download.server_error", {"status": 503, "host": "hub.example"}, "(503)"),
        ("download.server_error", {"what": "range", "host": "hub.example"}, "another part of the file"),
    ],
)
def test_a_failure_is_a_sentence_and_can_be_resumed(
    host: Host, otto: Actor, wish: Make, code: str, params: dict[str, Any], words: str
) -> None:
    row = services.start(host, wish(), actor=otto)
    result(host, row.job, code=code, **params)
    row = again(row)
    why = contexts.download_row(row)["why"]
    assert row.state == "failed" and words in why.text.replace("\u00a0", " ") and why.hint
    resumed = services.resume(row, actor=otto)
    assert (resumed.state, resumed.tries, resumed.refusal) == ("waiting", 2, None)
    assert resumed.job_id != row.job_id


def test_pause_keeps_and_cancel_deletes_what_came(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    say(host, row.job, **progress("downloading", 2000, 5000))
    assert services.pause(row, actor=otto).state == "pausing"
    result(host, row.job, code="stopped")
    row = again(row)
    assert (row.state, row.bytes_done > 0) == ("paused", True)
    assert not Job.objects.filter(order__discard=True).exists()
    assert services.cancel(row, actor=otto).state == "cancelled"
    dropped = Job.objects.get(order__discard=True)
    assert dropped.order["files"] == row.files and services.cancel(row, actor=otto).state == "cancelled"


def test_what_was_stopped_too_late_is_done(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    services.pause(row, actor=otto)
    result(host, row.job, MADE)
    assert again(row).state == "done"


def test_what_ended_without_a_word_fails_after_a_while(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    say(host, row.job, state="ended", exit_code=1, ended_at=2.0)
    assert again(row).state == "waiting", "the result may be on its way"
    Job.objects.filter(pk=row.job_id).update(ended_at=timezone.now() - timedelta(minutes=5))
    outcomes.sweep(every_s=0)
    row = again(row)
    assert (row.state, row.refusal) == ("failed", {"code": "task_failed", "params": {}})


def test_a_machine_that_starts_again_goes_on_by_itself(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    say(host, row.job, **progress("downloading", 2000, 5000))
    say(host, row.job, state="ended", exit_code=None, ended_at=2.0, refusal={"code": "host_restarted"})
    assert again(row).state == "running", "its result is on the way"
    result(host, row.job, code="task_failed")
    now = again(row)
    assert (now.state, now.tries, now.refusal) == ("waiting", 2, None) and now.job_id != row.job_id
    assert Event.objects.get(verb="download.resumed").actor == "system"
    services.pause(now, actor=otto)
    say(host, now.job, state="ended", exit_code=None, ended_at=2.0, refusal={"code": "host_restarted"})
    result(host, now.job, code="task_failed")
    assert again(row).state == "paused", "what a person stopped stays so"


def test_what_a_signal_ended_is_told(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    result(host, row.job, code="task_failed", exit_code=None, signal=9)
    why = contexts.download_row(again(row))["why"]
    assert "signal 9" in why.text and "memory" in why.hint and why.code == "task_failed"


def test_the_ticker_finds_what_a_lost_nudge_left(
    host: Host, otto: Actor, wish: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = services.start(host, wish(), actor=otto)
    monkeypatch.setattr(outcomes, "take", lambda job_id: None)
    result(host, row.job, MADE)
    monkeypatch.undo()
    assert again(row).state == "waiting"
    outcomes.sweep(every_s=0)
    assert again(row).state == "done"


def test_a_forgotten_host_ends_its_downloads(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    Host.everyone.filter(pk=host.pk).update(forgotten_at=timezone.now())
    outcomes.sweep(every_s=0)
    row = Download.objects.get(pk=row.pk)
    assert (row.state, (row.refusal or {})["code"]) == ("failed", "host_forgotten")


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_sealed_and_travels_only_in_the_sealed_part(hub: Hub, host: Host, otto: Actor, wish: Make) -> None:
    hub.tokens["hf_secretsecret"] = "otto"
    made = wish()
    row = access.keep("huggingface", " hf_secretsecret ", team=False, actor=otto)
    started = services.start(host, made, actor=otto)
    assert started.job is not None
    kept = json.dumps(started.job.order) + json.dumps(
        list(Event.objects.values("facts", "after", "target")), default=str
    )
    assert "hf_secret" not in kept and b"hf_secret" not in bytes(row.token) and row.ending == "cret"
    host.refresh_from_db()
    order = next(job.task for job in fleet.work_of(host).jobs if job.task.kind == "download")
    assert isinstance(order, wire.DownloadTask) and order.secret_env == {"HF_TOKEN": "hf_secretsecret"}


def test_ones_own_token_goes_before_the_teams_and_nobody_else_gets_it(hub: Hub, otto: Actor) -> None:
    access.keep("huggingface", "hf_of_the_team", team=True, actor=person("admin"))
    access.keep("huggingface", "hf_of_otto_1", team=False, actor=otto)
    access.keep("huggingface", "hf_of_otto_2", team=False, actor=otto)
    assert access.token_for("huggingface", otto) == "hf_of_otto_2"
    assert access.token_for("huggingface", person("operator", "olga")) == "hf_of_the_team"
    assert HubAccess.objects.count() == 2
    with pytest.raises(Denied):
        access.keep("huggingface", "hf_of_the_team", team=True, actor=otto)


def test_a_token_does_not_go_to_another_address(hub: Hub, otto: Actor, settings: Any) -> None:
    access.keep("huggingface", "hf_of_otto_1", team=False, actor=otto)
    settings.HF_ENDPOINT = "https://mirror.example"
    assert access.token_for("huggingface", otto) == ""


def test_a_proxys_password_is_in_the_sealed_part(host: Host, otto: Actor, wish: Make, settings: Any) -> None:
    made = wish()
    settings.BERTH_HUB_PROXY = "http://ada:pa55word@proxy.example:3128"
    row = services.start(host, made, actor=otto)
    assert row.job is not None and "pa55word" not in json.dumps(row.job.order) and row.job.order["proxy"] == ""
    host.refresh_from_db()
    order = next(job.task for job in fleet.work_of(host).jobs if job.task.kind == "download")
    assert isinstance(order, wire.DownloadTask)
    assert order.secret_env == {"BERTH_DOWNLOAD_PROXY": "http://ada:pa55word@proxy.example:3128"}


# --- several people, several downloads, a host that is away -------------------------------------------------------------


def test_one_person_pauses_what_another_started_and_it_is_told(hub: Hub, host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    olga = person("operator", "olga")
    services.pause(row, actor=olga)
    result(host, row.job, code="stopped")
    row = again(row)
    assert (row.state, row.asked_by, row.moved_by) == ("paused", "otto", "olga")
    assert contexts.page(row, may=True)["lead"] == "Paused by olga. What came is kept on quay."
    assert Event.objects.get(verb="download.paused").actor == "olga"
    assert services.start(host, wish(), actor=otto).pk == row.pk, "the same again goes on with it"
    services.cancel(again(row), actor=olga)
    result(host, again(row).job, code="stopped")
    assert "Cancelled by olga" in contexts.page(again(row), may=True)["lead"]


def test_who_goes_on_with_a_download_does_so_with_their_own_access(
    hub: Hub, host: Host, otto: Actor, wish: Make
) -> None:
    made = wish()
    access.keep("huggingface", "hf_of_otto_1", team=False, actor=otto)
    row = services.start(host, made, actor=otto)
    result(host, row.job, code="download.gated", token=True)
    olga, ada = person("operator", "olga"), person("operator", "ada")
    access.keep("huggingface", "hf_of_olga_1", team=False, actor=olga)

    def token() -> str:
        return services.task_of(again(row)).secret_env["HF_TOKEN"]

    services.resume(row, actor=ada)
    assert token() == "hf_of_otto_1", "ada has none, so it is still that of who asked"
    result(host, again(row).job, code="download.gated", token=True)
    services.start(host, made, actor=olga)
    assert (token(), again(row).asked_by, again(row).moved_by) == ("hf_of_olga_1", "otto", "olga")


def test_the_same_files_for_one_host_are_one_download_for_another_place_another(
    host: Host, otto: Actor, wish: Make
) -> None:
    first = services.start(host, wish(), actor=otto)
    olga = person("operator", "olga")
    assert services.start(host, wish(), actor=olga).pk == first.pk
    assert again(first).asked_by == "otto" and Event.objects.filter(verb="download.started").count() == 1
    other = services.start(host, wish(folder=FOLDERS[1]), actor=olga)
    assert other.pk != first.pk and (other.layout, first.layout) == ("folder", "hf_cache")
    say(host, other.job, **progress("waiting", 0, 0))
    steps = contexts.page(again(other), may=True)["steps"]
    assert steps[0] == {
        "kind": "now", "name": "Waiting for another download into this folder", "detail": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("act", "words"), [("", "goes on by itself"), ("pause", "stopped there as soon as"), ("cancel", "stopped there")]
)
def test_a_host_that_is_away_leaves_no_speed_and_says_what_is_so(
    host: Host, otto: Actor, wish: Make, act: str, words: str
) -> None:
    row = services.start(host, wish(), actor=otto)
    say(host, row.job, **progress("downloading", 2000, 5000, rate=100.0, silent_s=75.0))
    Host.objects.filter(pk=host.pk).update(lost_at=timezone.now())
    if act:
        getattr(services, act)(again(row), actor=otto)
    told = contexts.page(again(row), may=True)
    assert words in told["lead"] and contexts.download_row(again(row))["away"]
    numbers = told["numbers"]
    assert (numbers["rate"], numbers["left"], numbers["silent"], round(numbers["percent"])) == ("", "", 0, 40)
    host.refresh_from_db()
    result(host, row.job, MADE)  # it comes back, and it had gone on
    assert again(row).state == "done" and Host.objects.get().lost_at is None


# --- repair -----------------------------------------------------------------------------------------------------------


def test_a_broken_copy_is_compared_and_fetched_again(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    result(host, row.job, MADE)
    model = CatalogModel.objects.create(name="tiny")
    artifact = Artifact.objects.create(model=model, format="hf", label="bf16", fingerprint="f")
    copy = Copy.objects.create(artifact=artifact, host=host, path=MADE["path"], usable=False)
    again_ = services.repair(copy, actor=otto)
    assert again_.pk == row.pk and again_.job is not None and again_.job.order["replace"] is True
    stranger = Copy.objects.create(artifact=artifact, host=host, path="/srv/models/by-hand")
    with pytest.raises(services.Unknown):
        services.repair(stranger, actor=otto)


def test_the_catalog_is_told_where_a_model_came_from(hub: Hub, host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    result(host, row.job, MADE)
    model = CatalogModel.objects.create(name="tiny")
    artifact = Artifact.objects.create(model=model, format="hf", label="bf16", fingerprint="f")
    Copy.objects.create(artifact=artifact, host=host, path=MADE["path"], present=True)
    origins.note(host)
    model.refresh_from_db()
    assert (model.added_by, model.added_from["how"], model.source_url) == ("otto", "downloaded", f"{hub.url}/acme/tiny")
