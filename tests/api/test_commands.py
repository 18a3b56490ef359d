"""The commands for deployments: what they do, say and end with, by the shell's own actor."""

import json
import threading
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from deployments.models import Deployment, Run
from panel.audit.models import Event
from panel.fleet.models import Job, JobLog
from panel.management import shell
from tests.deployments import builders
from tests.waiting import until

pytestmark = pytest.mark.django_db


def run(*args: str, **options: Any) -> str:
    out = StringIO()
    call_command(*args, stdout=out, stderr=StringIO(), **options)
    return out.getvalue()


def refused(*args: str) -> tuple[int, str]:
    with pytest.raises(CommandError) as caught:
        run(*args)
    return caught.value.returncode, str(caught.value)


def test_deploy_makes_and_starts(world: dict[str, Any]) -> None:
    said = run(
        "deploy", "second", "--model", "Tiny-1B-Instruct", "--host", "quay", "--device", "cpu", "--set", "max-model-len=2048",
        "--set", "dtype=bfloat16", "--env", "OMP_NUM_THREADS=4", "--json", "--flags", "--enforce-eager",
    )  # fmt: skip
    made = json.loads(said)[0]
    assert (made["name"], made["desired"], made["created_by"]) == ("second", "running", "system")
    assert made["spec"]["options"] == {"max_model_len": 2048, "dtype": "bfloat16"}
    assert made["spec"]["extra_args"] == ["--enforce-eager"] and made["spec"]["env"] == {"OMP_NUM_THREADS": "4"}
    event = Event.objects.get(verb="deployment.created")
    assert (event.actor, event.facts["via"]) == ("system", "shell")
    run("deploy", "third", "--model", "Tiny-1B-Instruct", "--no-start")
    assert Deployment.objects.get(name="third").desired == "stopped"
    run("deploy", "third")
    assert Deployment.objects.get(name="third").desired == "running"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["deploy", "x"], 2, "needs a model"),
        (["deploy", "x", "--model", "nothing"], 2, "no model with the name nothing"),
        (["deploy", "x", "--model", "Tiny-1B-Instruct", "--set", "oops"], 2, "NAME=VALUE"),
        (["deploy", "x", "--model", "Tiny-1B-Instruct", "--set", "flags=--nonsense"], 2, "has no --flags"),
        (["deploy", "x", "--model", "Tiny-1B-Instruct", "--flags", "--nonsense"], 2, "--nonsense"),
        (["deploy", "x", "--model", "Tiny-1B-Instruct", "--set", "max-model-len=much"], 2, "--max-model-len"),
        (["deploy", "x", "--model", "Tiny-1B-Instruct", "--gpus", "0"], 2, "gpu_count: This must be 1 or more."),
        (["deploy", "team-chat", "--model", "Tiny-1B-Instruct"], 2, "already a deployment"),
        (["deploy", "Not A Name", "--model", "Tiny-1B-Instruct"], 2, "small letters"),
        (["stop"], 2, "Name deployments"),
        (["stop", "nobody"], 2, "no deployment with the name nobody"),
        (["stop", "team-chat", "nobody"], 2, "nobody"),
        (["restart", "nobody"], 2, "nobody"),
        (["logs", "nobody"], 2, "nobody"),
        (["logs", "team-chat", "--run", "99"], 2, "no such start"),
        (["logs", "team-chat", "--tail", "-1"], 2, "0 or more"),
        (["export", "nobody"], 2, "nobody"),
        (["export", "-o", "/no/such/folder/file"], 2, "No such file"),
        (["apply", "/no/such/file"], 2, "No such file"),
    ],
)  # fmt: skip
def test_refusals_end_with_2_and_change_nothing(world: dict[str, Any], args: list[str], code: int, said: str) -> None:
    found, text = refused(*args)
    assert found == code and said in text, text
    assert Deployment.objects.count() == 1 and not Event.objects.filter(outcome="done").exists()


def test_errors_as_json(world: dict[str, Any]) -> None:
    out = StringIO()
    with pytest.raises(CommandError):
        call_command("stop", "nobody", "--json", stdout=out, stderr=StringIO())
    assert json.loads(out.getvalue())["code"] == "deployment.unknown"


def test_stop_restart_list(world: dict[str, Any]) -> None:
    run("restart", "team-chat")
    assert Deployment.objects.get().restart_asked == 1
    lines = run("list").splitlines()
    assert lines[0].split() == ["NAME", "STATE", "MODEL", "HOST", "ENGINE"] and "vLLM 0.32.0" in lines[1]
    assert [row["name"] for row in json.loads(run("list", "--json", "--state", "ready"))] == ["team-chat"]
    assert json.loads(run("list", "--json", "--state", "failed")) == []
    run("stop", "--all")
    assert Deployment.objects.get().desired == "stopped"
    verbs = set(Event.objects.values_list("verb", flat=True))
    assert verbs == {"deployment.restarted", "deployment.stopped"}


def test_logs_and_their_end(world: dict[str, Any]) -> None:
    text = "".join(f"line {n} 你好\n" for n in range(300))
    JobLog.objects.filter(pk=world["run"].job_id).update(size=len(text.encode()), tail=text.encode())
    assert run("logs", "team-chat") == text
    assert run("logs", "team-chat", "--tail", "2").splitlines() == ["line 298 你好", "line 299 你好"]
    assert run("logs", "team-chat", "--tail", "5000") == text and run("logs", "team-chat", "--tail", "0") == ""
    part = json.loads(run("logs", "team-chat", "--json", "--run", "1"))
    assert part["text"] == text and part["next"] == len(text.encode())


def test_export_and_apply_by_file(world: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    run("export", "-o", str(path))
    assert "as it should be" in run("apply", str(path))
    values = yaml.safe_load(path.read_text())
    assert json.loads(run("export", "team-chat", "--json")) == values
    values["deployments"][0]["gpu_count"] = 2
    path.write_text(yaml.safe_dump(values))
    assert "this host has 1" in refused("apply", str(path))[1]  # what runs is not stopped for it
    del values["deployments"][0]["gpu_count"]
    values["deployments"][0]["grace_s"] = 7.0
    path.write_text(yaml.safe_dump(values))
    assert (
        "grace_s: 30.0 → 7.0" in run("apply", str(path), "--dry-run") and Deployment.objects.get().revision.number == 1
    )
    assert json.loads(run("apply", str(path), "--json"))["changed"] == 1
    assert Deployment.objects.get().revision.number == 2
    path.write_text("berth: 1\ndeployments: {\n")
    assert refused("apply", str(path))[0] == 2


# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("desired", "state", "asked", "done", "wanted"),
    [
        ("running", "stopped", 0, 0, None),  # just made; the loop has not looked yet
        ("running", "failed", 1, 0, None),  # started again; the failure is the old one
        ("running", "ready", 1, 0, None),  # a restart that has not begun
        ("running", "starting", 1, 1, None),
        ("running", "lost", 1, 1, None),
        ("running", "ready", 1, 1, True),
        ("running", "failed", 1, 1, False),
        ("stopped", "stopping", 1, 1, False),
    ],
)  # fmt: skip
def test_when_a_start_is_over(desired: str, state: str, asked: int, done: int, wanted: bool | None) -> None:
    row = Deployment(name="x", desired=desired, state=state, restart_asked=asked, restart_done=done)
    assert shell.started(row) is wanted


@pytest.mark.parametrize(
    ("desired", "state", "ended", "wanted"),
    [
        ("stopped", "stopping", False, None),
        ("stopped", "stopped", True, True),
        ("stopped", "failed", None, True),  # it never came to a process
        ("stopped", "failed", True, True),  # it had failed before
        ("stopped", "failed", False, False),  # processes are left
        ("running", "ready", False, False),
    ],
)  # fmt: skip
def test_when_a_stop_is_over(desired: str, state: str, ended: bool | None, wanted: bool | None) -> None:
    run_ = None if ended is None else Run(ended_at=timezone.now() if ended else None)
    assert shell.stopped(Deployment(name="x", desired=desired, state=state, run=run_)) is wanted


class TestWaiting:
    """With rows that change meanwhile, as a worker would change them."""

    @pytest.fixture(autouse=True)
    def _fast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shell, "LOOK_S", 0.02)
        monkeypatch.setattr("panel.management.commands.logs.LOOK_S", 0.02)

    def later(self, monkeypatch: pytest.MonkeyPatch, *steps: Any) -> None:
        """Each look of the command meets the next state."""
        left = list(steps)

        def sleep(seconds: float) -> None:
            if left:
                left.pop(0)()

        monkeypatch.setattr("panel.management.shell.time.sleep", sleep)

    def test_until_ready(self, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        rows = Deployment.objects.filter(name="w")
        run_ = lambda: builders.make_run(rows.get(), world["copy"])  # noqa: E731
        self.later(monkeypatch, lambda: rows.update(state="queued"), lambda: (run_(), rows.update(state="starting")),
                   lambda: rows.update(state="ready"))  # fmt: skip
        said = run("deploy", "w", "--model", "Tiny-1B-Instruct", "--wait").splitlines()
        assert [line.split(" · ")[0] for line in said] == ["w: Stopped", "w: Waiting", "w: Starting", "w: Ready"]
        assert "Loading weights" in said[2]

    def test_failed_ends_with_1(self, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        rows = Deployment.objects.filter(name="w")
        reason = {"code": "exit.code", "params": {"exit_code": 1}}
        self.later(monkeypatch, lambda: rows.update(state="failed", reason=reason))
        code, text = refused("deploy", "w", "--model", "Tiny-1B-Instruct", "--wait", "--json")
        assert code == 1 and "Failed" in text

    def test_too_long_ends_with_1(self, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.later(monkeypatch)
        code, text = refused("stop", "team-chat", "--wait", "--timeout", "0")
        assert code == 1 and "it goes on" in text

    def test_stop_waits_for_its_proof(self, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        rows = Deployment.objects.filter(name="team-chat")
        self.later(monkeypatch, lambda: rows.update(state="stopping"), lambda: rows.update(state="stopped"))
        said = run("stop", "team-chat", "--wait").splitlines()
        assert said == ["team-chat: Ready", "team-chat: Stopping", "team-chat: Stopped"]


@pytest.mark.django_db(transaction=True)
def test_follow_prints_what_comes_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("panel.management.commands.logs.LOOK_S", 0.02)
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, state="ready")
    job = builders.make_run(row, copy, log=b"first\n").job
    out = StringIO()

    def follow() -> None:
        try:
            call_command("logs", "team-chat", "--follow", stdout=out)
        finally:
            connection.close()

    thread = threading.Thread(target=follow)
    thread.start()
    until_said(out, "first\n")
    JobLog.objects.filter(pk=job.pk).update(size=13, tail=b"first\nsecond\n")
    until_said(out, "first\nsecond\n")
    JobLog.objects.filter(pk=job.pk).update(size=18, tail=b"first\nsecond\nlast\n")
    Job.objects.filter(pk=job.pk).update(open=False)
    thread.join(20)
    assert not thread.is_alive() and out.getvalue() == "first\nsecond\nlast\n"


def until_said(out: StringIO, text: str) -> None:
    until(lambda: out.getvalue() == text, timeout=20, why=f"{text!r} is printed")
