"""The failed page: its numbers, its marked proof, what it was not, what the engine said of itself; new rows and old."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from deployments import evidence, evidence_host
from deployments.models import Run
from deployments.pages import proof
from deployments.wording import label_of
from models_catalog.models import Copy
from panel import audit
from panel.fleet.models import Job
from tests.api.conftest import person, program
from tests.deployments import builders
from tests.deployments.test_failures import LENGTH, _quiet, as_role, fail, revise, text  # noqa: F401  # a fixture for all

pytestmark = pytest.mark.django_db

KV = (
    b"INFO 12-01 13:58:30 [api_server.py:1894] vLLM API server version 0.32.0\n"
    b"(EngineCore pid=9) WARNING 12-01 13:58:40 [model.py:2498] Casting torch.bfloat16 to torch.float16.\n"
    b"(EngineCore pid=9) INFO 12-01 13:58:49 [gpu_model_runner.py:2392] Model loading took 15.27 GiB and 9.8 seconds\n"
    b"(EngineCore pid=9) INFO 12-01 13:59:02 [gpu_worker.py:298] Available KV cache memory: 2.30 GiB\n"
    b"(EngineCore pid=9) ERROR 12-01 13:59:02 [core.py:712] ValueError: To serve at least one request with the model's "
    b"max seq len (40960), 5.63 GiB KV cache is needed, which is larger than the available KV cache memory (2.30 GiB). "
    b"Based on the available memory, the estimated maximum model length is 16736.\n"
    b"RuntimeError: Engine core initialization failed. See root cause above.\n"
)


@pytest.fixture
def copy() -> Copy:
    return builders.make_copy(builders.make_host(gpus=1))


def page_of(run: Run, role: str = "viewer") -> str:
    return text(as_role(role), reverse("deployment", args=[run.deployment_id]))


def test_numbers_bars_and_marks(copy: Copy) -> None:
    run = fail(builders.make_deployment(copy, state="failed"), copy, KV)
    for page in (page_of(run), text(as_role("viewer"), reverse("run", args=[run.pk]))):
        assert (
            "2.30 GiB were left for conversations (KV cache). One of 40,960 tokens (pieces of words) needs 5.63" in page
        )
        assert "<mark>40960</mark>" in page and "<mark>5.63 GiB</mark>" in page and "<mark>2.30 GiB</mark>" in page
        assert 'aria-label="Needed: 5.63 GiB"' in page and 'aria-label="Available: 2.30 GiB"' in page
        assert "both numbers by vLLM at 13:59:02" in page
        assert "What it said of itself" in page and "15.27 GiB" in page
        assert "The weights are in bfloat16, and it calculates in float16." in page and 'href="#log-L2"' in page


def test_a_run_that_ended_before_numbers_were_kept_shows_them_too(copy: Copy) -> None:
    run = fail(builders.make_deployment(copy, state="failed"), copy, KV)
    old = {key: run.diagnosis[key] for key in ("class", "phase", "confidence", "offers", "ruled_out", "changed")}
    params = {key: value for key, value in run.reason["params"].items() if key != "told"}
    reason = {**run.reason, "params": params}
    Run.objects.filter(pk=run.pk).update(diagnosis=old, reason=reason)
    run.deployment.reason = reason
    run.deployment.save()
    page = page_of(run)
    assert "2.30 GiB were left for conversations" in page and "<mark>5.63 GiB</mark>" in page
    Run.objects.filter(pk=run.pk).update(diagnosis={}, error_block={})
    assert "is smaller than one request of the asked length needs" in page_of(run)


def test_beside_the_bars_stands_what_the_plan_had_foreseen(copy: Copy) -> None:
    run = fail(builders.make_deployment(copy, state="failed"), copy, KV, foreseen={"kv_gib": 2.42})
    assert "the plan had foreseen ≈ 2.42 GiB" in page_of(run)


def test_a_limit_is_asked_for_and_allowed(copy: Copy) -> None:
    run = fail(builders.make_deployment(copy, state="failed"), copy, LENGTH)
    page = page_of(run)
    assert 'aria-label="Asked for: 204,800 tokens"' in page and 'aria-label="Allowed: 4,096 tokens"' in page
    assert "both numbers by vLLM<" in page, "this line has no time of its own"


def test_the_log_is_text_in_its_marks(copy: Copy) -> None:
    log = b"ValueError: Model architectures ['<b>Foo</b>ForCausalLM'] are not supported for now. Supported: x\n"
    page = page_of(fail(builders.make_deployment(copy, state="failed"), copy, log))
    assert "<b>Foo" not in page and "&lt;b&gt;Foo&lt;/b&gt;ForCausalLM" in page


def test_marks_that_do_not_fit_the_line_are_left_out() -> None:
    assert proof.pieces("abcdef", {"marks": [[1, 3], [2, 4]]}) == [("a", False), ("bc", True), ("def", False)]
    assert proof.pieces("abc", {"marks": [[1, 9]]}) == [("abc", False)]
    assert proof.pieces("", {"marks": [[0, 1]]}) == proof.pieces("", {}) == []


def test_lists_and_programs_read_the_same_sentence(copy: Copy) -> None:
    run = fail(builders.make_deployment(copy, state="failed"), copy, KV)
    told = program(person("viewer")).get(f"/api/v1/runs/{run.pk}").json()
    assert "2.30 GiB were left for conversations" in told["reason"]["hint"]


def test_effects_of_fixes_are_as_exact_as_the_estimate(copy: Copy) -> None:
    run = builders.make_run(builders.make_deployment(copy), copy, foreseen={"ranges": {"kv_gib": [2.0, 3.0]}})
    told = [{"effects": [{"good": True, "text": "x"}]}]
    assert proof.effects_by(run, told) == "effects estimated, ± 0.5 GiB"
    run.foreseen = {}
    assert proof.effects_by(run, told) == proof.effects_by(None, told) == "effects estimated"
    assert proof.effects_by(run, [{"effects": []}]) == ""


# --- what the host said of itself ---------------------------------------------------------------------------------------


def known_of(copy: Copy, **values: Any) -> tuple[evidence.Evidence, dict[str, Any]]:
    run = builders.make_run(builders.make_deployment(copy), copy, **values)
    known, kept = evidence.gathered(run, run.job.status)
    assert known is not None
    json.dumps(kept)
    return known, kept


def test_the_host_is_part_of_the_evidence(copy: Copy) -> None:
    host = copy.host
    disks = [
        {"path": "/models", "total_mib": 900_000, "free_mib": 217_088},
        {"path": "/", "total_mib": 1, "free_mib": 0},
    ]
    host.facts = {**host.facts, "gpu_driver": "580.95", "cuda_driver_version": "13.0", "disks": disks}
    host.save()
    met = {"verdict": "passed", "host": {"shm_mib": 16_384, "open_files": 4096, "disks": {}}}
    Job.objects.create(host=host, kind="check", state="ended", open=False, result={"id": "x", "items": [met]})
    uuid = host.gpus.get().uuid
    before = {"gpus": [], "ram_free_mib": 40_960, "ram_total_mib": 65_536}
    known, kept = known_of(copy, placement={"gpu_uuids": [uuid], "gpus": [0], "before": before})
    machine = known.machine
    assert (machine.driver, machine.cuda, machine.shm_gib, machine.open_files) == ("580.95", "13.0", 16.0, 4096)
    assert machine.disks == (("/models", 212.0), ("/", 0.0)) and machine.has() == ("AVX2", "AVX-512")
    assert (machine.ram_free_gib, machine.ram_total_gib) == (40.0, 64.0)
    assert kept["host"]["driver"] == "580.95" and kept["port"] == 18_100 and "on_cpu" not in kept
    host.facts = {**host.facts, "shm_mib": 64, "open_files": -1}
    newest = evidence_host.machine(Run(host=host))
    assert (newest.shm_gib, newest.open_files) == (0.06, -1), "the newest report counts more than an earlier check"


def test_a_host_that_tells_nothing_of_this_is_not_guessed_at(copy: Copy) -> None:
    copy.host.facts = {"machine": "aarch64", "cpu_flags": ["sve"], "disks": [{"path": "/x"}], "gpu_driver": None}
    Job.objects.create(host=copy.host, kind="check", state="ended", open=False, result={"id": "x", "items": ["odd"]})
    machine = evidence_host.machine(builders.make_run(builders.make_deployment(copy), copy, host=copy.host))
    assert machine == evidence_host.Machine()


def test_files_are_whole_by_sums_where_berth_fetched_them(copy: Copy) -> None:
    facts = {**copy.artifact.facts, "files": [{"name": "a.safetensors", "size": 1, "kind": "weights"}]}
    copy.artifact.facts = facts
    copy.artifact.save()
    copy.seen_at = timezone.now() - timedelta(days=1)
    copy.save()
    seen = evidence_host.files(copy)
    assert (seen["n"], seen["summed"]) == (1, False)
    copy.problems = [{"code": "truncated"}]
    assert evidence_host.files(copy) == {} == evidence_host.files(None)


def test_gguf_files_in_the_folder_are_known(copy: Copy) -> None:
    inside = builders.make_copy(copy.host, "Tiny-GGUF")
    inside.artifact.format = "gguf"
    inside.artifact.save()
    Copy.objects.filter(pk=inside.pk).update(path=f"{copy.path}/tiny-Q4_K_M.gguf")
    known, _kept = known_of(copy)
    assert known.gguf_files == (f"{copy.path}/tiny-Q4_K_M.gguf",)


def test_what_it_was_not_and_who_was_warned(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    run = fail(row, copy, KV)
    more = {
        "host": {"driver": "580.95", "disks": [["/models", 212.0]]}, "settings": 8, "port": 8104, "oom_kills": 0,
        "files": {"n": 5, "summed": True, "at": "2026-11-29T10:00:00+00:00"},
    }  # fmt: skip
    Run.objects.filter(pk=run.pk).update(diagnosis={**run.diagnosis, **more})
    audit.record("deployment.started_despite", row, actor=person("operator", "omar"), warnings=["check.tight"])
    page = page_of(run)
    for said in (
        "vLLM 0.32.0 took the GPU with driver 580.95.", "Settings it was given: 8. It took all of them.",
        "It got its port, 8104.", "212.0 GiB or more are free on each.", "The engine read all of them in this start.",
        "The check had warned, and omar started it all the same.",
    ):  # fmt: skip
        assert said in page, said


# --- the same for programs -------------------------------------------------------------------------------------------


def test_programs_read_what_the_page_says(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    run = fail(row, copy, KV)
    more = {"host": {"driver": "580.95", "disks": [["/models", 212.0]]}, "settings": 8}
    Run.objects.filter(pk=run.pk).update(diagnosis={**run.diagnosis, **more})
    client = program(person("viewer"))
    told = client.get(f"/api/v1/runs/{run.pk}").json()["diagnosis"]
    assert (told["code"], told["phase"], told["confidence"], told["certainty"]) == (
        "mem.kv_lt_len", "kvcache", 0.95, "Certain",
    )  # fmt: skip
    assert "2.30 GiB were left for conversations" in told["why"] and told["root_line"] == 5
    assert [told["root"][start:end] for start, end in told["marks"]] == ["40960", "5.63 GiB", "2.30 GiB"]
    assert told["bars"] == {"need": 5.63, "have": 2.3, "unit": "GiB", "limit": False}
    assert told["ruled_out"] == [
        {"code": "run.startup_wrapper", "message": "The engine's core did not start", "line": 6}
    ]
    assert {each["code"] for each in told["excluded"]} == {
        "excluded.files_read", "excluded.driver", "excluded.settings", "excluded.disk",
    }  # fmt: skip
    assert told["notices"] == [
        {"code": "other_dtype", "message": "The weights are in bfloat16, and it calculates in float16.", "line": 2}
    ]
    assert told["facts"]["weights_gib"] == 15.27 and "notices" not in told["facts"]
    assert told["doc"].endswith("/conserving_memory/") and told["versions"] and told["alike"] == [] == told["changed"]
    listed = client.get(f"/api/v1/deployments/{row.pk}/runs").json()["items"][0]["diagnosis"]
    assert listed == {**told, "alike": None, "changed": None}


def test_what_changed_and_who_met_the_same_for_programs(copy: Copy) -> None:
    log = b"INFO vLLM API server version 0.32.0\nZeroWidgetError: 17 widgets are none\n"
    other = fail(builders.make_deployment(copy, "other", state="failed"), copy, log.replace(b"17", b"3"))
    row = builders.make_deployment(copy, state="failed")
    builders.make_run(row, copy, job_state="ended", outcome="stopped", ended_at=timezone.now())
    Run.objects.filter(deployment=row).update(ready_at=timezone.now())
    revise(row, options={"dtype": "half"})
    run = fail(row, copy, log)
    told = program(person("viewer")).get(f"/api/v1/runs/{run.pk}").json()["diagnosis"]
    assert (told["code"], told["confidence"], told["certainty"]) == (None, None, "Not recognised")
    assert told["root"].startswith("ZeroWidgetError") and told["causes"] == [] and told["doc"] == ""
    assert [(each["name"], each["after"]) for each in told["changed"]] == [(label_of("dtype"), "half")]
    assert [(each["run"], each["deployment"], each["number"]) for each in told["alike"]] == [
        (str(other.pk), "other", 1)
    ]
    limited = program(person("viewer"), deployment_ids=[row.pk])
    assert limited.get(f"/api/v1/runs/{run.pk}").json()["diagnosis"]["alike"] == []


def test_a_start_that_did_not_fail_has_none(copy: Copy) -> None:
    run = builders.make_run(builders.make_deployment(copy, state="ready"), copy)
    assert program(person("viewer")).get(f"/api/v1/runs/{run.pk}").json()["diagnosis"] is None


def test_a_list_of_failed_starts_costs_as_many_queries_as_one(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="failed")
    client, where = program(person("viewer")), f"/api/v1/deployments/{row.pk}/runs"
    client.get(where)
    counts = []
    for _round in range(2):
        fail(row, copy, KV)
        with CaptureQueriesContext(connection) as found:
            assert client.get(where).status_code == 200
        counts.append(len(found))
    assert counts[0] == counts[1]


def test_a_start_that_went_well_says_what_it_told_of_itself(copy: Copy) -> None:
    parser = {"facts": {"kv_gib": 4.5, "kv_tokens": 36_864, "notices": [{"code": "eager", "line": 9, "values": {}}]}}
    run = builders.make_run(builders.make_deployment(copy, state="ready"), copy, parser=parser)
    page = text(as_role("viewer"), reverse("run", args=[run.pk]))
    assert "What it said of itself" in page and "36,864 tokens" in page and "answers come more slowly" in page
    run.parser = {"facts": {"notices": [{"code": "never_heard_of", "line": 1, "values": {}}]}}
    assert proof.itself(run) == {}


def test_more_is_said_of_a_class_where_there_is_more(copy: Copy) -> None:
    busy = (
        b"ValueError: Free memory on device cuda:0 (5.92/79.19 GiB) on startup is less than desired GPU memory utilization "
        b"(0.9, 71.27 GiB).\n"
    )
    page = page_of(fail(builders.make_deployment(copy, state="failed"), copy, busy))
    assert "It may come from:" in page and "A process of an earlier start that has not ended." in page
    assert 'href="https://docs.vllm.ai/en/stable/configuration/conserving_memory/"' in page
    assert "Versions that fail so:" in page
