"""The main job from the shell and by the API, on a whole Berth with a fake engine: commands are processes of their own."""

import json
import subprocess
import sys

import httpx
import pytest

from panel.accounts.models import User
from panel.accounts.services import create_token
from panel.audit.models import Event
from tests.e2e.stack import ROOT, Stack
from tests.fakes.make_engine import make_fake_model
from tests.waiting import until

ON_CPU = ["--device", "cpu", "--kv-cache-gib", "1"]


@pytest.fixture(scope="module", autouse=True)
def models(stack: Stack) -> None:
    make_fake_model(stack.models / "good", phase_s=0.2)
    make_fake_model(stack.models / "broken", mode="traceback")
    stack.scan()


def berth(stack: Stack, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", *args]
    return subprocess.run(command, cwd=ROOT, env=stack.env, input=stdin, capture_output=True, text=True, timeout=120)


def test_deploy_watch_read_stop(stack: Stack) -> None:
    done = berth(stack, "deploy", "by-shell", "--model", "good", *ON_CPU, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr + stack.logs()
    lines = done.stdout.splitlines()
    assert lines[-1] == "by-shell: Ready" and any(line.startswith("by-shell: Starting · ") for line in lines), lines
    (row,) = json.loads(berth(stack, "list", "--json").stdout)
    assert (row["name"], row["state"], row["created_by"]) == ("by-shell", "ready", "system")
    log = berth(stack, "logs", "by-shell")
    assert log.returncode == 0 and "Application startup complete" in log.stdout
    again = berth(stack, "restart", "by-shell", "--wait", "--json")
    assert again.returncode == 0 and json.loads(again.stdout)[0]["run"] != row["run"]
    with subprocess.Popen(
        [sys.executable, "manage.py", "logs", "by-shell", "--follow"], cwd=ROOT, env=stack.env, stdout=subprocess.PIPE, text=True
    ) as following:  # fmt: skip
        stopped = berth(stack, "stop", "by-shell", "--wait")
        assert stopped.returncode == 0 and stopped.stdout.splitlines()[-1] == "by-shell: Stopped"
        out, _err = following.communicate(timeout=60)
        assert following.returncode == 0 and "Application startup complete" in out, "it ends with the log"
    assert not stack.job_processes()
    said = Event.objects.filter(target="by-shell", actor="system", facts__via="shell").values_list("verb", flat=True)
    assert {"deployment.created", "deployment.restarted", "deployment.stopped"} <= set(said)


def test_a_failing_start_ends_with_1_and_its_reason(stack: Stack) -> None:
    done = berth(stack, "deploy", "fails", "--model", "broken", *ON_CPU, "--wait")
    assert done.returncode == 1, done.stdout
    assert "Failed" in done.stderr and "exit code" in done.stderr.lower(), done.stderr
    assert berth(stack, "stop", "fails").returncode == 0
    assert berth(stack, "deploy", "fails", "--gpus", "many").returncode == 2
    assert berth(stack, "stop", "nobody").returncode == 2


def test_from_one_file_and_through_a_pipe(stack: Stack) -> None:
    text = "berth: 1\ndeployments:\n  - {name: by-file, model: good, device: cpu, kv_cache_gib: 1, running: false}\n"
    assert berth(stack, "apply", "-", stdin=text).stdout.strip() == "by-file: made"
    exported = berth(stack, "export", "by-file").stdout
    assert berth(stack, "apply", "-", stdin=exported).stdout.strip() == "by-file: as it should be"


def test_by_the_api_to_an_answer_at_the_door(stack: Stack) -> None:
    user = User.objects.create_user("robin", role="operator")
    _row, key = create_token(user, "deploys", actor=user, scope="api:write")
    _row, door = create_token(user, "asks", actor=user)
    api = httpx.Client(base_url=f"{stack.url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=20)
    (model,) = api.get("/models", params={"q": "good"}).json()["items"]
    spec = {"artifact_id": model["artifacts"][0]["id"], "device": "cpu", "kv_cache_gib": 1, "grace_s": 1}
    made = api.post("/deployments", json={"name": "by-api", "spec": spec}, headers={"Idempotency-Key": "e2e"})
    assert made.status_code == 201, made.text
    where = made.headers["Location"].removeprefix("/api/v1")

    def state() -> str:
        return str(api.get(where).json()["state"])

    until(lambda: state() == "ready", timeout=30, why="ready by the API")
    said = httpx.post(
        f"{stack.url}/v1/chat/completions",
        json={"model": "by-api", "messages": [{"role": "user", "content": "Hello"}]},
        headers={"Authorization": f"Bearer {door}"},
        timeout=20,
    )
    assert said.status_code == 200, said.text
    assert httpx.get(f"{stack.url}/api/v1/me", headers={"Authorization": f"Bearer {door}"}).status_code == 403
    log = api.get(f"/runs/{api.get(where).json()['run']}/log", params={"offset": -200}).json()
    assert log["size"] > 200 and log["next"] == log["size"]
    assert api.post(f"{where}/stop").status_code == 202
    until(lambda: state() == "stopped", timeout=30, why="stopped by the API")
    assert api.delete(where).status_code == 204
