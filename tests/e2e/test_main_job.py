"""The main job on a whole Berth with a fake engine: up, ready by an answer through the door, down, and the record."""

import os
import subprocess
import sys
from typing import Any

import httpx
import pytest

from deployments import golden, services
from deployments.models import Deployment, Run
from deployments.startable import NeverStarts
from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet import logstore
from panel.fleet.models import Host, Reservation
from tests.e2e.stack import Stack
from tests.fakes.make_engine import make_fake_gguf, make_fake_model
from tests.waiting import until


@pytest.fixture(scope="module", autouse=True)
def models(stack: Stack) -> None:
    make_fake_model(stack.models / "good", phase_s=0.05)
    make_fake_model(stack.models / "vectors", mode="embed")
    make_fake_model(stack.models / "scores", mode="score")
    make_fake_model(stack.models / "plain", mode="no_template")
    make_fake_gguf(stack.models / "small.gguf")
    stack.scan()


@pytest.fixture(scope="module")
def token(stack: Stack) -> str:
    from panel.accounts.services import create_token

    user = User.objects.create_user("maria", password="correct horse battery", role="operator")
    _row, plain = create_token(user, "tests", actor=user)
    return plain


def ask(stack: Stack, token: str, name: str, **body: object) -> httpx.Response:
    return httpx.post(
        f"{stack.url}/v1/chat/completions",
        json={"model": name, "messages": [{"role": "user", "content": "Hello"}], **body},
        headers={"Authorization": f"Bearer {token}"},
        timeout=20,
    )


def golden_answers(run: Run) -> list[dict[str, Any]]:
    return Run.objects.get(pk=run.pk).golden.get("answers", [])


def test_the_agent_runs_on_the_python_that_was_asked_for(stack: Stack) -> None:
    wanted = os.environ.get("BERTH_TEST_AGENT_PYTHON", sys.executable)
    said = subprocess.run([wanted, "-c", "import platform; print(platform.python_version())"], capture_output=True)
    assert stack.host().facts["python"] == said.stdout.decode().strip()


def test_from_click_to_answer_to_stop(stack: Stack, token: str) -> None:
    row = stack.deploy("main-job", "good")
    stack.wait_for(row, "ready")
    run = row.run
    # ready means that it answered, and the answer is kept
    assert run.answer["answer"] == "The capital of France is Paris."
    assert run.answer["latency_ms"] > 0
    # the record: exact command with the port filled in, masked environment, engine, phases in order
    run.job.refresh_from_db()
    argv = run.job.status["argv"]
    assert argv[1:3] == ["serve", str(stack.models / "good")]
    assert "{port}" not in argv and str(run.job.status["port"]) in argv
    assert "api" not in " ".join(argv).lower()
    assert run.env["VLLM_API_KEY"].strip("•") == ""
    codes = [phase["code"] for phase in run.phases]
    assert codes.index("config") < codes.index("load") < codes.index("serving")
    # the log here is the log there
    whole = b"".join(part.data for part in logstore.read_all(run.job_id))
    assert b"Application startup complete" in whole
    # memory is set aside while it runs
    host = Host.objects.get(is_local=True)
    assert host.ram_reserved_mib == Reservation.objects.get(holder=str(run.pk)).mib > 0
    # people reach it through the panel, under its name
    answer = until(lambda: (a := ask(stack, token, "main-job")).status_code == 200 and a, why="the door opens")
    assert answer.json()["choices"][0]["message"]["content"] == "The capital of France is Paris."
    # the golden questions are asked beside that, each is kept as it comes
    said = until(lambda: len(got := golden_answers(run)) == len(golden.USUAL) and got, why="the golden questions")
    assert {each["answer"] for each in said} == {"The capital of France is Paris."}
    # nothing but loopback is open, and not without the key
    assert httpx.get(f"http://127.0.0.1:{run.job.status['port']}/v1/models").status_code == 401

    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")
    assert stack.job_processes(run.pk) == []
    run.refresh_from_db()
    assert (run.outcome, run.ended_at is not None) == ("stopped", True)
    assert not Reservation.objects.filter(holder=str(run.pk)).exists()
    until(lambda: ask(stack, token, "main-job").status_code in (404, 503), why="the door closes")
    verbs = list(Event.objects.filter(target_kind="deployment", target_id=str(row.pk)).values_list("verb", flat=True))
    assert sorted(verbs) == ["deployment.created", "deployment.stopped"]


@pytest.mark.parametrize(("model", "task"), [("vectors", "embed"), ("scores", "score"), ("plain", "generate")])
def test_other_kinds_of_models_prove_themselves_too(stack: Stack, model: str, task: str) -> None:
    row = stack.deploy(f"kind-{model}", model, task=task)
    stack.wait_for(row, "ready", "failed")
    assert row.state == "ready", (row.reason, row.run.probe)
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")


def test_an_edit_makes_a_revision_and_runs_it(stack: Stack) -> None:
    row = stack.deploy("edited", "good")
    stack.wait_for(row, "ready")
    first = row.run_id
    from deployments.spec import DeploymentSpec

    never = DeploymentSpec.model_validate({**row.revision.spec, "options": {"max_model_len": 999_999}})
    with pytest.raises(NeverStarts, match=r"made for 2,048 at most"):
        services.edit(row, spec=never, actor=None)
    assert stack.job_processes(first) and stack.state(row) == "ready", "nothing is stopped for them"
    spec = DeploymentSpec.model_validate({**row.revision.spec, "options": {"max_model_len": 512}})
    services.edit(row, spec=spec, actor=None)
    until(lambda: stack.state(row) == "ready" and row.run_id != first, timeout=30, why="the new revision runs")
    assert row.revision.number == 2
    assert "512" in row.run.job.status["argv"]
    assert stack.job_processes(first) == [], "one engine at a time"
    assert Run.objects.get(pk=first).outcome == "stopped"
    services.delete(row, actor=None)
    until(lambda: not stack.job_processes(row.run_id) and stack.state(row) == "stopped", why="deleted and stopped")
    assert Run.objects.filter(deployment=row).count() == 2, "its record stays"


def test_a_restart_is_another_run_and_a_double_click_is_one(stack: Stack) -> None:
    row = stack.deploy("again", "good")
    stack.wait_for(row, "ready")
    for _ in range(3):
        services.restart(row, actor=None)
    until(lambda: stack.state(row) == "ready" and row.run.number == 2, timeout=30, why="restarted once")
    services.start(row, actor=None)
    assert Event.objects.filter(target_id=str(row.pk), verb="deployment.restarted").count() == 1
    services.stop(row, actor=None)
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")
    assert Event.objects.filter(target_id=str(row.pk), verb="deployment.stopped").count() == 1
    assert Run.objects.filter(deployment=row).count() == 2


def test_stop_while_starting_and_start_while_stopping(stack: Stack) -> None:
    make_fake_model(stack.models / "slow", phase_s=1.0, stop_s=1.0)
    stack.scan()
    row = stack.deploy("hasty", "slow")
    stack.wait_for(row, "starting")
    services.stop(row, actor=None)
    stack.wait_for(row, "stopping", "stopped")
    services.start(row, actor=None)
    until(lambda: stack.state(row) == "ready", timeout=40, why="the last wish wins")
    assert len({p.environ()["BERTH_JOB"] for p in stack.job_processes()}) == 1
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")
    assert stack.job_processes() == []


def test_two_deployments_share_the_host_and_memory_is_counted(stack: Stack) -> None:
    rows = [stack.deploy(f"pair-{n}", "good") for n in (1, 2)]
    for row in rows:
        stack.wait_for(row, "ready")
    total = sum(Reservation.objects.values_list("mib", flat=True))
    assert stack.host().ram_reserved_mib == total
    big = stack.deploy("too-big", "good", kv_cache_gib=4000)
    stack.wait_for(big, "failed")
    assert big.reason["params"]["candidates"][0]["code"] == "host.ram_too_small"
    for row in rows:
        services.stop(row, actor=None)
    for row in rows:
        stack.wait_for(row, "stopped")
    assert stack.host().ram_reserved_mib == 0


def test_a_start_that_waits_says_so_at_the_door(stack: Stack, token: str) -> None:
    make_fake_model(stack.models / "slower", phase_s=0.6)
    stack.scan()
    row = stack.deploy("patience", "slower")
    stack.wait_for(row, "starting")
    answer = until(lambda: (a := ask(stack, token, "patience")).status_code == 503 and a, why="it says: starting")
    assert answer.headers["x-berth-said-by"] == "panel"
    assert answer.json()["error"]["code"]
    stack.wait_for(row, "ready")
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")


def test_everything_left_is_at_rest(stack: Stack) -> None:
    until(lambda: not Deployment.objects.exclude(state__in=["stopped", "failed"]).exists(), why="all at rest")
    assert stack.job_processes() == []
