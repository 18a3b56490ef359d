"""The fake engine is a real process: the adapter's command starts it, its log has the phases, its answers are read."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.diagnosis import phases
from deployments.diagnosis.failure import explain
from deployments.engines.base import Launch, LaunchContext, RuntimeFacts
from deployments.engines.options import parse_schema
from deployments.engines.registry import adapter_for
from deployments.engines.vllm import VLLM
from deployments.spec import DeploymentSpec
from panel.fleet.agent.flag_schema import probe_runtime
from tests.fakes.engine import FLAGS, MODES
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.waiting import until

ROWS = tuple(json.loads(FLAGS.read_text(encoding="utf-8")))


class Running:
    """One started engine."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log_path = process, port, log

    @property
    def log(self) -> bytes:
        return self.log_path.read_bytes()

    def wait_listening(self) -> None:
        until(lambda: reachable(self.port) or self.process.poll() is not None)

    def ask(self, path: str, body: dict[str, Any], key: str = "k") -> tuple[int, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode())
        request.add_header("authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(gpu: bool = False, task: Any = "generate", **fake: Any) -> Running:
        model = make_fake_model(tmp_path / "model", **{"phase_s": 0.0, **fake})
        executable = make_fake_engine(tmp_path / "bin")
        runtime = RuntimeFacts(str(executable), "0.32.0", "cuda" if gpu else "cpu", (), ROWS)
        gpus = ("GPU-a",) if gpu else ()
        spec = DeploymentSpec(artifact_id=1, task=task)
        launch: Launch = adapter_for("vllm").launch(LaunchContext(spec, runtime, "m", "k", str(model), gpu_uuids=gpus))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        argv = [str(port) if word == "{port}" else word for word in launch.argv]
        log = tmp_path / "log"
        with log.open("wb") as out:
            env = {"PATH": os.environ["PATH"], **launch.env, **launch.secret_env}
            process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, start_new_session=True)
        started.append(Running(process, port, log))
        return started[-1]

    yield begin
    for run in started:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
        run.process.wait()


@pytest.mark.parametrize("gpu", [False, True])
def test_its_log_has_the_phases(start: Callable[..., Running], gpu: bool) -> None:
    run = start(gpu=gpu)
    run.wait_listening()
    until(lambda: b"Application startup complete" in run.log)
    state = phases.feed(run.log, {}, 1.0)
    found = [phase["code"] for phase in state["phases"]]
    on_gpu = ["device", "load", "compile", "kvcache", "graph"]
    assert found == [
        "start",
        "args",
        "config",
        "dist",
        *(on_gpu if gpu else ["load", "compile", "kvcache"]),
        "http",
        "serving",
    ]
    assert state["facts"]["version"] == "0.32.0"


@pytest.mark.parametrize(
    ("task", "mode", "answer"),
    [
        ("generate", "ok", "The capital of France is Paris."),
        ("embed", "embed", "[0.9375, 0.5625, 0.0000, …] × 8"),
        ("score", "score", "0.5000"),
    ],
)
def test_the_question_is_answered(start: Callable[..., Running], task: Any, mode: str, answer: str) -> None:
    run = start(task=task, mode=mode)
    run.wait_listening()
    adapter = VLLM()
    path, body = adapter.probe_request(task, "m")
    status, reply = run.ask(path, body)
    assert status == 200
    assert adapter.read_answer(task, reply) == answer
    assert run.ask(path, body, key="wrong")[0] == 401
    assert run.ask(path, {**body, "model": "other"})[0] == 404


def test_without_a_chat_template_a_completion_is_asked(start: Callable[..., Running]) -> None:
    run = start(mode="no_template")
    run.wait_listening()
    adapter = VLLM()
    path, body = adapter.probe_request("generate", "m")
    status, reply = run.ask(path, body)
    assert adapter.wants_completion("generate", status, reply)
    path, body = adapter.probe_request("generate", "m", chat=False)
    assert adapter.read_answer("generate", run.ask(path, body)[1]) == "The capital of France is Paris."


@pytest.mark.parametrize(
    ("mode", "code", "phase", "curable"),
    [
        ("exit_at_once", "exit.code", "start", False),
        ("traceback", "exit.code", "kvcache", False),
        ("oom", "exit.code", "load", False),
        ("sigill", "exit.signal", "import", False),  # a processor ends it while it loads its compiled parts
        ("killed", "exit.signal", "load", False),
        ("exits_zero", "exit.zero", "serving", True),
        ("dies_when_ready", "exit.code", "serving", True),
    ],
)
def test_ends_are_explained(start: Callable[..., Running], mode: str, code: str, phase: str, curable: bool) -> None:
    run = start(mode=mode, **({"end_after_s": 0.0} if mode == "traceback" else {}))
    until(lambda: run.process.poll() is not None)
    status = run.process.returncode
    ending = explain(log=run.log, exit_code=status if status >= 0 else None, signal=-status if status < 0 else None)
    assert (ending.reason["code"], ending.phase, ending.curable) == (code, phase, curable)


def test_it_stops_in_order_on_term(start: Callable[..., Running]) -> None:
    run = start(children=2)
    run.wait_listening()
    run.process.terminate()
    until(lambda: run.process.poll() is not None)
    assert run.process.returncode == 0
    assert b"Application shutdown complete" in run.log


def test_it_can_ignore_term(start: Callable[..., Running]) -> None:
    run = start(ignore_term=True)
    run.wait_listening()
    run.process.terminate()
    assert run.ask("/v1/completions", {"model": "m", "prompt": "x"})[0] == 200


def test_it_dies_at_the_first_question(start: Callable[..., Running]) -> None:
    run = start(mode="dies_at_request")
    run.wait_listening()
    assert run.ask("/v1/completions", {"model": "m", "prompt": "x"})[0] == 500
    until(lambda: run.process.poll() is not None)
    assert explain(log=run.log, exit_code=run.process.returncode).reason["params"]["cause"] == "gpu.gguf_no_cpu_kernels"


def test_children_carry_the_engines_names_and_keep_the_marker(start: Callable[..., Running], tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    run = start(children=2)
    run.wait_listening()
    names = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "stat").exists():
            parent = (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[1]
            if int(parent) == run.process.pid:
                names.add((entry / "cmdline").read_bytes().split(b"\0")[0].decode())
    assert names == {"VLLM::EngineCore", "VLLM::Worker_TP0"}


def test_it_refuses_flags_as_the_real_one(tmp_path: Path) -> None:
    executable = make_fake_engine(tmp_path)
    done = subprocess.run([executable, "serve", "x", "--swap-space", "4"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "vllm: error: unrecognized arguments: --swap-space 4" in done.stderr
    told = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == "0.32.0+cpu\n"


def test_the_hosts_probe_reads_the_real_flags(tmp_path: Path) -> None:
    found = probe_runtime(make_fake_engine(tmp_path, version="0.32.0", device="cuda"), 30)
    assert (found["ok"], found["version"], found["device"]) == (True, "0.32.0", "cuda"), found
    told, real = parse_schema(found["flags"]), parse_schema(ROWS)
    for option in told.options:
        want = real.by_name[option.name]
        assert (option.kind, option.flags, option.choices, option.many) == (
            want.kind, want.flags, want.choices, want.many,
        )  # fmt: skip
    assert len(told.options) == len(real.options) == 316


def test_modes_name_known_fields(tmp_path: Path) -> None:
    from dataclasses import fields

    from tests.fakes.engine import Fake

    known = {field.name for field in fields(Fake)}
    assert all(set(mode) <= known for mode in MODES.values())
