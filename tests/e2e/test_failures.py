"""Each way to fail ends in a true state with a reason, the exit, the first error, and nothing left running."""

import shutil
import time

import pytest

from deployments import applying, queries, remedies, services
from deployments.checklist.look import look
from deployments.models import Deployment, Run
from deployments.spec import DeploymentSpec
from models_catalog.models import Copy
from panel.audit.models import Event
from panel.fleet import logstore
from panel.fleet.models import Job, Reservation
from tests.e2e.stack import Stack
from tests.fakes.make_engine import make_fake_model
from tests.waiting import until

NEVER = {"restart": {"policy": "never"}}


def deploy(stack: Stack, mode: str, **spec: object):
    make_fake_model(stack.models / mode, mode=mode)
    stack.scan()
    name = f"{mode.replace('_', '-')}-{Deployment.objects.count()}"
    return stack.deploy(name, mode, **{**NEVER, **spec})


def check_clean(stack: Stack, row) -> None:
    until(lambda: not stack.job_processes(row.run_id), why="no process is left")
    assert not Reservation.objects.filter(holder=str(row.run_id)).exists()
    row.run.refresh_from_db()
    assert row.run.ended_at is not None


def test_exits_at_once(stack: Stack) -> None:
    row = deploy(stack, "exit_at_once")
    stack.wait_for(row, "failed")
    assert row.reason["code"] == "exit.code"
    assert row.run.exit_code == 1
    check_clean(stack, row)


def test_a_traceback_after_two_seconds(stack: Stack) -> None:
    row = deploy(stack, "traceback")
    stack.wait_for(row, "failed")
    block = "\n".join(row.run.error_block["lines"])
    assert "ValueError: No available memory for the cache blocks." in block
    assert row.run.error_block["first_line"] >= 1
    assert any(phase["code"] == "load" for phase in row.run.phases), "the page can say how far it came"
    check_clean(stack, row)


def test_hangs_before_listening_until_its_deadline(stack: Stack) -> None:
    row = deploy(stack, "hang", start_deadline_s=5)
    stack.wait_for(row, "failed")
    assert row.reason["code"] == "start.deadline"
    assert row.run.outcome == "failed"
    check_clean(stack, row)


def test_healthy_but_answers_500(stack: Stack) -> None:
    row = deploy(stack, "answers_500")
    stack.wait_for(row, "failed", timeout=40)
    assert row.reason["code"] == "answer.failed"
    assert row.run.probe["last"]["status"] == 500
    assert row.run.ready_at is None
    check_clean(stack, row)


def test_dies_at_the_first_question(stack: Stack) -> None:
    row = deploy(stack, "dies_at_request")
    stack.wait_for(row, "failed", timeout=40)
    assert row.run.ready_at is None, "healthy is not ready"
    check_clean(stack, row)


@pytest.mark.slow
def test_an_answer_after_a_minute_is_waited_for(stack: Stack) -> None:
    row = deploy(stack, "answers_late")
    stack.wait_for(row, "starting")
    until(lambda: Run.objects.filter(pk=row.run_id, probe__has_key="asked_at").exists(), why="the question is asked")
    row.refresh_from_db()
    assert row.state == "starting", "healthy, but it has not answered"
    stack.wait_for(row, "ready", timeout=110)
    assert row.run.answer["latency_ms"] >= 60_000
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")


def test_ignores_term_and_is_killed_after_the_grace(stack: Stack) -> None:
    row = deploy(stack, "ignores_term")
    stack.wait_for(row, "ready")
    assert len(stack.job_processes(row.run_id)) >= 3
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")
    assert row.run.job.status["killed"]
    check_clean(stack, row)


def test_children_in_their_own_sessions_end_too(stack: Stack) -> None:
    row = deploy(stack, "forks")
    stack.wait_for(row, "ready")
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")
    check_clean(stack, row)


def test_floods_the_log_and_nothing_suffers(stack: Stack, settings) -> None:
    row = deploy(stack, "floods")
    stack.wait_for(row, "ready", timeout=60)
    job = Job.objects.get(pk=row.run_id)
    log = job.log
    until(lambda: log.refresh_from_db() or log.size >= 96 << 20, timeout=60, why="the whole flood was accounted for")
    stored = sum(end - start for start, end, name in log.segments if name)
    assert stored <= 66 << 20
    assert b"APIServer" in logstore.read(job.pk, 0).data, "its head is kept"
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")
    check_clean(stack, row)


def test_dies_when_ready(stack: Stack) -> None:
    row = deploy(stack, "dies_when_ready")
    stack.wait_for(row, "failed")
    assert row.run.exit_code == 1
    check_clean(stack, row)


def test_exits_zero_while_it_should_live(stack: Stack) -> None:
    row = deploy(stack, "exits_zero")
    stack.wait_for(row, "failed")
    assert row.reason["code"] == "exit.zero"
    check_clean(stack, row)


def test_dies_by_a_signal_with_an_empty_log(stack: Stack) -> None:
    row = deploy(stack, "sigill")
    stack.wait_for(row, "failed")
    assert row.run.signal == 4
    assert row.reason["code"] == "exit.signal"
    check_clean(stack, row)


def test_a_curable_failure_is_tried_again_and_given_up(stack: Stack) -> None:
    row = deploy(stack, "dies_when_ready", restart={"policy": "on_failure", "max_attempts": 2})
    until(
        lambda: stack.state(row) == "failed" and row.attempts == 2 and row.next_attempt_at is None,
        timeout=60,
        why="two more tries, then rest",
    )
    assert row.runs.count() == 3
    check_clean(stack, row)


def test_what_a_restart_cannot_cure_is_not_tried_again(stack: Stack) -> None:
    row = deploy(stack, "traceback", restart={"policy": "on_failure"})
    stack.wait_for(row, "failed")
    time.sleep(1.5)
    row.refresh_from_db()
    assert (row.state, row.runs.count(), row.next_attempt_at) == ("failed", 1, None)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"extra_args": ["--api-key", "x"]}, "option.denied_secret"),
        ({"extra_args": ["--middleware", "evil.module"]}, "option.denied_code"),
        ({"extra_args": ["--no-such-flag"]}, "flag.unknown"),
        ({"env": {"LD_PRELOAD": "/tmp/evil.so"}}, "env.denied"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_runs(stack: Stack, spec: dict, code: str) -> None:
    make_fake_model(stack.models / "fine")
    stack.scan()
    row = stack.deploy(f"refused-{Deployment.objects.count()}", "fine", **spec)
    stack.wait_for(row, "failed")
    assert row.reason["code"] == code
    assert row.run.job is None


def test_a_flag_that_is_gone_and_changes_nothing_is_left_out(stack: Stack) -> None:
    make_fake_model(stack.models / "fine")
    stack.scan()
    row = stack.deploy("swap-space", "fine", extra_args=["--swap-space", "4"])
    stack.wait_for(row, "ready")
    assert "--swap-space" not in row.run.job.status["argv"]
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")


def test_a_folder_that_vanishes_is_a_clear_refusal(stack: Stack) -> None:
    folder = make_fake_model(stack.models / "vanishing")
    config = folder / "config.json"  # unlike any other model here, so that no other copy can take its place
    config.write_text(config.read_text().replace("2048", "1024"))
    stack.scan()
    artifact = stack.artifact("vanishing")
    shutil.rmtree(folder)
    row = stack.deploy("vanished", "vanishing", artifact_id=artifact.pk, **NEVER)
    stack.wait_for(row, "failed")
    assert row.reason["code"] == "path_missing"
    check_clean(stack, row)


def test_a_gguf_of_zero_bytes_is_listed_with_its_problem_and_not_deployable(stack: Stack) -> None:
    (stack.models / "empty.gguf").write_bytes(b"")
    stack.scan()
    copy = Copy.objects.get(path__endswith="empty.gguf")
    assert not copy.usable
    assert [problem["code"] for problem in copy.problems] == ["zero_bytes"]
    row = stack.deploy("zero", "empty.gguf", **NEVER)
    stack.wait_for(row, "failed")
    assert row.reason["params"]["candidates"][0]["code"] == "copy.broken"


def too_long(stack: Stack, name: str, **spec: object):
    """A model of which this machine holds requests of 1200 tokens."""
    if not (stack.models / "holds-1200").exists():
        make_fake_model(stack.models / "holds-1200", longest=1200)
        stack.scan()
    options = {"max_model_len": 2048}
    return stack.deploy(name, "holds-1200", **{**NEVER, "options": options, **spec})


def test_the_first_fix_is_applied_by_a_click_and_the_second_start_is_ready(stack: Stack) -> None:
    row = too_long(stack, "by-click")
    stack.wait_for(row, "failed")
    shown = queries.one(row.pk)
    fix = remedies.of(shown)[0]
    applying.apply(shown, fix.key, base_number=1, actor=None)
    stack.wait_for(row, "ready")
    assert row.revision.spec["options"] == {"max_model_len": 1200} and row.revision.why["class"] == "mem.kv_lt_len"
    assert row.run.number == 2 and row.run.parent.outcome == "failed"


def test_berth_mends_it_itself_where_someone_switched_that_on(stack: Stack) -> None:
    row = too_long(stack, "by-itself", fix_once=True)
    stack.wait_for(row, "ready")
    assert (row.run.number, row.run.cause, row.revision.number) == (2, "fix", 2)
    assert Event.objects.filter(verb="deployment.mended", target="by-itself").count() == 1


def test_what_the_engine_refuses_when_it_is_asked_is_never_started(stack: Stack) -> None:
    make_fake_model(stack.models / "fine")
    stack.scan()
    # with an override only the engine knows how long a conversation may be
    options = {"max_model_len": 999_999, "max_num_seqs": 1, "hf_overrides": {"rope_theta": 20_000.0}}
    spec = DeploymentSpec(artifact_id=stack.artifact("fine").pk, device="cpu", kv_cache_gib=1, options=options)
    assert look(spec, name="asked").verdict in ("running", "refused")
    until(lambda: look(spec, name="asked").verdict == "refused", timeout=60, why="the host's engine answered")
    (finding,) = next(part for part in look(spec, name="asked").parts if part.name == "engine").findings
    assert (
        finding.params["cause"] == "config.len_gt_derived"
        and finding.fixes[0].patch["options"]["max_model_len"] == 2048
    )
    row = stack.deploy("asked", "fine", options=options)
    stack.wait_for(row, "failed")
    assert row.run.job is None and row.reason["code"] == "check.refused"
    good = DeploymentSpec(artifact_id=stack.artifact("fine").pk, device="cpu", kv_cache_gib=1)
    until(lambda: look(good, name="good").verdict == "passed", timeout=60, why="a good one passes")
    assert Job.objects.filter(kind="check", order__argv__contains="999999").count() == 1, "its start asked nothing more"


def test_a_start_asks_its_engine_first_and_what_it_refuses_is_never_started(stack: Stack) -> None:
    make_fake_model(stack.models / "fine")
    stack.scan()
    # with an override only the engine knows how long a conversation may be
    options = {"max_model_len": 999_998, "max_num_seqs": 1, "hf_overrides": {"rope_theta": 20_000.0}}
    row = stack.deploy("unasked", "fine", options=options)
    stack.wait_for(row, "failed")
    assert row.reason["code"] == "check.refused", row.reason
    assert row.reason["params"]["cause"] == "config.len_gt_derived"
    assert row.run.job is None and row.run.diagnosis["offers"] and row.run.error_block["root_line"]
    job = Job.objects.get(kind="check", order__argv__contains="999998")
    until(lambda: b"User-specified" in logstore.read(job.pk, 0, 1 << 20).data, timeout=30, why="its words are kept")
    good = stack.deploy("asked-once", "fine", options={"max_num_seqs": 7})
    stack.wait_for(good, "ready")
    assert good.run.placement["check"]["over"] == "passed"
    services.stop(good, actor=None)
    stack.wait_for(good, "stopped")
    services.start(good, actor=None)
    stack.wait_for(good, "ready")
    assert "check" not in good.run.placement, "what was accepted once is not asked again"
    services.stop(good, actor=None)
    stack.wait_for(good, "stopped")
    check_clean(stack, row)
