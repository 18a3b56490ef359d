"""An engine checks its own command on the host: it is the start itself, and ends where weights would be loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from panel.fleet import wire
from panel.fleet.agent import engine_check, spawn
from tests.agent.conftest import Host, Table, marked
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.waiting import until

# A package that does as a word beside it says; what the process did is written down there.
PACKAGE = """
import json, os, pathlib, sys
HERE = pathlib.Path(__file__).parent
MODE = (HERE / "mode").read_text()
def note(what):
    with (HERE / "seen").open("a") as file:
        file.write(json.dumps({"what": what, "argv": sys.argv, "env": dict(os.environ)}) + "\\n")
class EngineArgs:
    @classmethod
    def from_cli_args(cls, cli):
        return cls()
    def create_engine_config(self):
        note("config")
        if MODE == "refuses":
            raise ValueError("Model architectures ['NopeForCausalLM'] are not supported for now.")
        if MODE == "killed":
            os.kill(os.getpid(), 9)
        if MODE == "floods":
            for number in range(200_000):
                print("a line of noise", number)
            raise ValueError("the end of it")
        return self
class AsyncEngineArgs(EngineArgs):
    pass
"""
PROGRAM = """
import multiprocessing, sys, time
from vllm.engine import arg_utils
if "--bad-flag" in sys.argv:
    print("vllm serve: error: unrecognized arguments: --bad-flag", file=sys.stderr)
    sys.exit(2)
args = arg_utils.AsyncEngineArgs.from_cli_args(None)
if arg_utils.MODE == "process first":
    multiprocessing.get_context("spawn").Process(target=print).start()
if arg_utils.MODE == "nothing":
    sys.exit(0)
if arg_utils.MODE == "hangs":
    arg_utils.note("hanging")
    time.sleep(600)
args.create_engine_config()
arg_utils.note("started")
"""


class Engine:
    """A registered `vllm` with its Python and its package."""

    def __init__(self, host: Host) -> None:
        self.site = host.folder / "site"
        (self.site / "vllm" / "engine").mkdir(parents=True)
        for name, text in (
            ("vllm/__init__.py", ""),
            ("vllm/engine/__init__.py", ""),
            ("vllm/engine/arg_utils.py", PACKAGE),
        ):
            (self.site / name).write_text(text)
        executable = make_fake_engine(host.folder / "bin")
        python = executable.with_name("python")
        python.write_text(python.read_text().replace("PYTHONPATH=", f"PYTHONPATH={self.site}:", 1))
        executable.write_text(f"#!{python}\n{PROGRAM}")
        self.executable = str(executable)
        host.runtimes.append(executable)
        (host.dir / "agent.json").write_text(json.dumps({"model_roots": [str(host.models)]}))
        (host.dir / "agent.json").chmod(0o600)

    def does(self, mode: str) -> None:
        (self.site / "vllm" / "engine" / "mode").write_text(mode)

    @property
    def seen(self) -> list[dict[str, Any]]:
        path = self.site / "vllm" / "engine" / "seen"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def engine(host: Host) -> Engine:
    return Engine(host)


def order(host: Host, executable: str, *more: str, **fields: Any) -> wire.CheckTask:
    argv = [executable, "serve", str(host.model), "--host", "127.0.0.1", "--port", wire.PORT_PLACE, *more]
    return wire.CheckTask(**{"argv": argv, "model_path": str(host.model), "key": "k", **fields})


def run(table: Table, task: wire.CheckTask, job_id: str = "one") -> wire.JobResult:
    table.order(job_id, task)
    table.until(job_id, "ended", timeout_s=60)
    return dict(table.jobs.results_due())[job_id]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "more", "wanted", "word"),
    [
        ("good", [], {"verdict": "passed"}, ""),
        ("process first", [], {"verdict": "passed"}, ""),
        ("refuses", [], {"verdict": "refused", "exit_code": 1}, "['NopeForCausalLM'] are not supported"),
        ("good", ["--bad-flag"], {"verdict": "refused", "exit_code": 2}, "unrecognized arguments: --bad-flag"),
        ("killed", [], {"verdict": "refused", "signal": 9}, ""),
        ("nothing", [], {"verdict": "unknown", "exit_code": 0}, ""),
        ("floods", [], {"verdict": "refused", "exit_code": 1}, "ValueError: the end of it"),
    ],
    ids=["good", "process-first", "refused", "parser", "killed", "says-nothing", "flood"],
)
def test_what_the_engine_says(
    host: Host, table: Table, engine: Engine, mode: str, more: list[str], wanted: dict[str, Any], word: str
) -> None:
    engine.does(mode)
    (item,) = run(table, order(host, engine.executable, *more, env={"VLLM_LOGGING_LEVEL": "INFO"})).items
    assert {name: item[name] for name in wanted} == wanted, item
    assert word in item["output"] and len(item["output"]) <= engine_check.MOST_OUTPUT
    assert item["host"]["open_files"] and set(item["host"]["disks"]) == {"log", "cache"}
    assert "started" not in [one["what"] for one in engine.seen], "nothing goes on behind the configuration"
    assert marked("one") == []


@pytest.mark.slow
def test_it_runs_in_the_environment_of_a_start(
    host: Host, table: Table, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_PRELOAD_NOT", "HF_TOKEN", "PYTHONPATH_OF_OURS"):
        monkeypatch.setenv(name, "s3cr3t")
    engine.does("good")
    gpus = ["GPU-11111111-2222-3333-4444-555555555555"]
    run(table, order(host, engine.executable, env={"VLLM_LOGGING_LEVEL": "DEBUG"}, gpu_uuids=gpus))
    (seen,) = engine.seen
    assert seen["argv"][:3] == [engine.executable, "serve", str(host.model)]
    port = seen["argv"][seen["argv"].index("--port") + 1]
    assert port.isdecimal(), "as a start has it"
    env = seen["env"]
    assert env["CUDA_VISIBLE_DEVICES"] == gpus[0] and env["VLLM_LOGGING_LEVEL"] == "DEBUG" and env["BERTH_JOB"] == "one"
    assert "s3cr3t" not in env.values() and "BERTH_ENGINE_CACHE" not in env
    assert env["PATH"].split(os.pathsep)[0] == str(Path(engine.executable).parent)


def test_what_a_start_could_not_run_is_not_checked(host: Host, table: Table, engine: Engine) -> None:
    engine.does("good")
    elsewhere = host.folder / "elsewhere"
    elsewhere.mkdir()
    orders = {
        "runtime_unknown": order(host, "/bin/true"),
        "flag_not_allowed": order(host, engine.executable, "--middleware", "evil.app"),
        "environment_not_allowed": order(host, engine.executable, env={"LD_PRELOAD": "/x.so"}),
        "path_not_allowed": order(host, engine.executable).model_copy(update={"model_path": str(elsewhere)}),
    }
    for code, task in orders.items():
        table.order(code, task)
        status = table.until(code, "refused")
        assert status.refusal is not None and status.refusal.code == code
    assert engine.seen == []


@pytest.mark.slow
def test_a_stop_and_the_deadline_leave_nothing(
    host: Host, table: Table, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.does("hangs")
    table.order("one", order(host, engine.executable))
    table.until("one", "running")
    until(lambda: engine.seen, timeout=30, why="it hangs")
    table.stop("one", grace_s=5)
    table.until("one", "ended", timeout_s=30)
    assert dict(table.jobs.results_due())["one"].refusal.code == "stopped"  # type: ignore[union-attr]
    assert marked("one") == []
    monkeypatch.setitem(spawn.TASK_LIMIT_S, "check", 2.0)
    result = run(table, order(host, engine.executable), "two")
    assert result.refusal is not None and result.refusal.code == "timed_out" and marked("two") == []


@pytest.mark.slow
def test_an_engine_that_has_no_such_place_is_not_started(host: Host, table: Table) -> None:
    executable = make_fake_engine(host.folder / "bare")
    (host.folder / "bare" / "fake-site" / "vllm" / "engine" / "arg_utils.py").unlink()
    make_fake_model(host.model)
    host.runtimes.append(executable)
    (host.dir / "agent.json").write_text(json.dumps({"model_roots": [str(host.models)]}))
    (host.dir / "agent.json").chmod(0o600)
    (item,) = run(table, order(host, str(executable))).items
    assert item["verdict"] == "unknown" and "vLLM API server" not in item["output"]


def test_weights_are_looked_at_as_they_lie_there(host: Host) -> None:
    """Names and sizes; what is beyond the model's folder is nobody's business."""
    folder = host.folder / "weights"
    folder.mkdir()
    for name, size in (("whole", 10), ("cut", 4), ("grown", 12)):
        (folder / name).write_bytes(b"x" * size)
    (folder / "link").symlink_to(folder / "nowhere")
    files = [("whole", 10), ("cut", 10), ("grown", 10), ("gone", 10), ("link", 10), ("../agent.json", 1), ("/etc/x", 1)]
    assert engine_check.changed(folder, files) == [
        {"name": "cut", "was": 10, "now": 4}, {"name": "grown", "was": 10, "now": 12},
        {"name": "gone", "was": 10, "now": None}, {"name": "link", "was": 10, "now": None},
    ]  # fmt: skip
    assert engine_check.changed(folder / "cut", [("cut", 10)]) == [{"name": "cut", "was": 10, "now": 4}]
