"""What the host makes of GGUF files with an engine's Python: described once, converted whole or not at all.

The engine's Python is a small script here, which does as a file beside it says.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from panel.fleet import wire
from panel.fleet.agent import convert, guard, sidecar, sidecar_order
from panel.fleet.agent.guard import Refused
from tests.agent.conftest import Host, Table, marked
from tests.models_catalog.builders import gguf_layout, sparse
from tests.models_catalog.zoo import gguf_models as zoo
from tests.waiting import until

PYTHON = r"""
import json, os, pathlib, signal, sys, time
assert sys.argv[1] == "-I" and sys.argv[2].endswith("sidecar_script.py")
kind, parts, out = sys.argv[3], json.loads(sys.argv[4]), pathlib.Path(sys.argv[5])
mode = (pathlib.Path(__file__).parent / "mode").read_text()
seen = pathlib.Path(__file__).parent / "seen"
seen.write_text(json.dumps({"argv": sys.argv[3:], "env": dict(os.environ), "parts": parts}) + "\n")
calls = pathlib.Path(__file__).parent / "calls"
calls.write_text(str(int(calls.read_text() or 0) + 1) if calls.exists() else "1")
def say(**fact): print("berth: " + json.dumps(fact), flush=True)
print("a line for the log", flush=True)
(out / "config.json").write_text(json.dumps({"model_type": "llama"}))
(out / "tokenizer.json").write_text("{}")
say(phase="describing", done=1, total=3)
if mode == "unknown":
    say(error="unknown_architecture", architecture="falcon-h1")
    sys.exit(3)
if mode == "crash":
    sys.exit("something went wrong")
if mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "hang":
    time.sleep(600)
if mode == "code":
    (out / "modeling.py").write_text("import os")
if mode == "link":
    (out / "extra.json").symlink_to("/etc/hostname")
if kind == "convert":
    say(phase="reading", done=4, total=4)
    say(phase="writing", done=0, total=0)
    size = int((pathlib.Path(__file__).parent / "size").read_text())
    with (out / "model.safetensors").open("wb") as file:
        file.truncate(size // 4 if mode == "half" else size)
"""


class Engine:
    """A registered vLLM whose Python is the script above."""

    def __init__(self, host: Host) -> None:
        self.bin = host.folder / "engine" / "bin"
        self.bin.mkdir(parents=True)
        python = self.bin / "python"
        python.write_text(f"#!{sys.executable} -IS\n{PYTHON}")
        self.executable = self.bin / "vllm"
        self.executable.write_text(f"#!{python}\n")
        for path in (python, self.executable):
            path.chmod(0o755)
        host.runtimes.append(self.executable)
        self.does("good")

    def does(self, mode: str) -> None:
        (self.bin / "mode").write_text(mode)

    @property
    def calls(self) -> int:
        path = self.bin / "calls"
        return int(path.read_text()) if path.exists() else 0

    @property
    def seen(self) -> dict:
        return json.loads((self.bin / "seen").read_text())


@pytest.fixture
def engine(host: Host) -> Engine:
    return Engine(host)


@pytest.fixture
def gguf(host: Host) -> Path:
    (host.dir / "agent.json").write_text(json.dumps({"model_roots": [str(host.models)]}))
    (host.dir / "agent.json").chmod(0o600)
    folder = host.models / "tiny"
    folder.mkdir()
    return sparse(folder / "tiny-Q8_0.gguf", gguf_layout(zoo.keys("llama", tokens=50, **zoo.SMALL), zoo.TINY))


@pytest.fixture
def size(gguf: Path, engine: Engine) -> int:
    """Bytes of its weights in float16."""
    found = convert.size_of([gguf], "float16")
    (engine.bin / "size").write_text(str(found))
    return found


def described(engine: Engine, path: Path) -> wire.SidecarTask:
    return wire.SidecarTask(executable=str(engine.executable), path=str(path))


def converted(engine: Engine, path: Path, **fields: str) -> wire.ConvertTask:
    more = {"folder": str(path.parent.parent), "name": "tiny-float16", **fields}
    return wire.ConvertTask(executable=str(engine.executable), path=str(path), **more)


def result(table: Table, job_id: str) -> wire.JobResult:
    return dict(table.jobs.results_due())[job_id]


def run(table: Table, job_id: str, task: wire.Message) -> wire.JobResult:
    table.order(job_id, task)
    table.until(job_id, "ended", timeout_s=60)
    return result(table, job_id)


# --- descriptions -----------------------------------------------------------------------------------------------------


def test_a_file_is_described_once_and_again_when_it_changes(
    host: Host, table: Table, engine: Engine, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_s3cr3t")
    before = (gguf.stat().st_mtime_ns, gguf.stat().st_size)
    (first,) = run(table, "one", described(engine, gguf)).items
    folder = Path(first["folder"])
    assert folder.parent == host.dir / "sidecars" and first["made"] and first["model_type"] == "llama"
    assert {"config.json", "tokenizer.json", ".complete"} == {path.name for path in folder.iterdir()}
    assert "HF_TOKEN" not in engine.seen["env"] and engine.seen["env"]["HF_HUB_OFFLINE"] == "1"
    assert "a line for the log" in (host.job_folder("one") / "log").read_text()
    (again,) = run(table, "two", described(engine, gguf)).items
    assert (again["folder"], again["made"], engine.calls) == (str(folder), False, 1)
    assert (gguf.stat().st_mtime_ns, gguf.stat().st_size) == before
    os.utime(gguf, ns=(1, 1))
    (other,) = run(table, "three", described(engine, gguf)).items
    assert other["folder"] != str(folder) and engine.calls == 2
    gguf.rename(gguf.with_name("moved.gguf"))
    run(table, "four", described(engine, gguf.with_name("moved.gguf")))
    assert not folder.exists() and not Path(other["folder"]).exists(), "descriptions of files that are gone go, too"


@pytest.mark.parametrize(
    ("mode", "code", "word"),
    [
        ("unknown", "sidecar.unknown_architecture", "falcon-h1"),
        ("crash", "sidecar.failed", "something went wrong"),
        ("killed", "sidecar.no_memory", "SIGKILL"),
        ("code", "sidecar.failed", "unexpected files"),
        ("link", "sidecar.failed", "unexpected files"),
    ],
)
def test_what_fails_leaves_nothing_and_says_why(
    host: Host, table: Table, engine: Engine, gguf: Path, mode: str, code: str, word: str
) -> None:
    engine.does(mode)
    refusal = run(table, "job", described(engine, gguf)).refusal
    assert refusal is not None and refusal.code == code and word in str(refusal.params)
    assert [path for path in (host.dir / "sidecars").iterdir() if path.is_dir()] == []


def test_a_stop_ends_the_engines_python_too(host: Host, table: Table, engine: Engine, gguf: Path) -> None:
    engine.does("hang")
    table.order("job", described(engine, gguf))

    def told() -> bool:
        table.jobs.tick()
        status = table.status("job")
        return bool(status and status.progress and status.progress.phase == "describing")

    until(told, 30, why="for the work to begin")
    table.stop("job")
    table.until("job", "ended", timeout_s=30)
    assert marked("job") == [] and [path for path in (host.dir / "sidecars").iterdir() if path.is_dir()] == []


def test_it_has_its_time(host: Host, engine: Engine, gguf: Path) -> None:
    from panel.fleet.agent.install_pip import Teller
    from panel.fleet.agent.provision import SetupProblem

    engine.does("hang")
    with pytest.raises(SetupProblem) as problem:
        sidecar.make(host.config(), described(engine, gguf), Teller(lambda line: None), limit_s=1.0)
    assert problem.value.code == "too_slow"


def test_all_parts_of_a_split_file_belong_to_it(host: Host, table: Table, engine: Engine, gguf: Path) -> None:
    layout = gguf_layout(zoo.keys("llama", tokens=50, **zoo.SMALL), zoo.TINY)
    parts = [sparse(gguf.parent / f"big-0000{n}-of-00002.gguf", layout) for n in (1, 2)]
    run(table, "job", described(engine, parts[0]))
    assert engine.seen["parts"] == [str(part) for part in parts]
    parts[1].unlink()
    refusal = run(table, "two", described(engine, parts[0])).refusal
    assert refusal is not None and refusal.code == "sidecar.missing_parts"


@pytest.mark.parametrize("what", ["outside", "missing", "no gguf", "relative", "unknown engine", "no engine"])
def test_what_a_host_refuses(host: Host, table: Table, engine: Engine, gguf: Path, what: str) -> None:
    path, executable = str(gguf), str(engine.executable)
    if what == "outside":
        path = str(sparse(host.folder / "out.gguf", gguf_layout()))
    elif what == "missing":
        path = str(gguf.with_name("none.gguf"))
    elif what == "no gguf":
        path = str(host.model / "config.json")
    elif what == "relative":
        path = "tiny.gguf"
    else:
        executable = "/bin/sh" if what == "no engine" else "/opt/other/bin/vllm"
    table.order("job", wire.SidecarTask(executable=executable, path=path))
    status = table.until("job", "refused")
    assert status.refusal is not None and engine.calls == 0


def test_an_engine_may_name_the_description_and_nothing_else_of_the_agent(
    host: Host, engine: Engine, gguf: Path
) -> None:
    folder = host.dir / "sidecars" / "0123"
    folder.mkdir(parents=True)
    limits = guard.Limits(
        roots=[host.models],
        executables=frozenset([str(engine.executable)]),
        sidecars=sidecar_order.folder_of(host.config()),
    )

    def task(*more: str) -> wire.EngineTask:
        head = [str(engine.executable), "serve", str(gguf), "--host", "127.0.0.1", "--port", wire.PORT_PLACE]
        return wire.EngineTask(argv=[*head, *more], model_path=str(gguf))

    guard.check_engine(task("--tokenizer", str(folder), "--hf-config-path", str(folder)), limits)
    for more in (
        ("--tokenizer", str(host.dir)),
        ("--tokenizer", f"{folder}/../.."),
        ("--chat-template", str(folder / "x")),
        ("--hf-config-path", "/etc"),
    ):
        with pytest.raises(Refused):
            guard.check_engine(task(*more), limits)


# --- conversions ------------------------------------------------------------------------------------------------------


def test_a_conversion_appears_whole(host: Host, table: Table, engine: Engine, gguf: Path, size: int) -> None:
    (item,) = run(table, "job", converted(engine, gguf)).items
    target = host.models / "tiny-float16"
    assert (item["path"], item["format"]) == (str(target), "hf")
    assert (target / "model.safetensors").stat().st_size == size
    assert engine.seen["argv"][0] == "convert" and engine.seen["argv"][-1] == "float16"
    status = table.status("job")
    assert status is not None and status.progress is not None and status.progress.phase == "placing"
    assert status.progress.passed == ["checking", "describing", "reading", "writing"]
    assert [path for path in (host.models / convert.WORK).iterdir() if path.is_dir()] == []
    assert gguf.exists()
    table.order("again", converted(engine, gguf))
    refusal = table.until("again", "refused").refusal
    assert refusal is not None and refusal.code == "convert.folder_taken", "no model is overwritten"


@pytest.mark.parametrize("mode", ["crash", "killed", "unknown", "half"])
def test_a_half_one_is_never_shown(host: Host, table: Table, engine: Engine, gguf: Path, size: int, mode: str) -> None:
    engine.does(mode)
    assert run(table, "job", converted(engine, gguf)).refusal is not None
    assert not (host.models / "tiny-float16").exists()
    assert [path for path in (host.models / convert.WORK).iterdir() if path.is_dir()] == []


def test_what_a_kill_left_is_not_seen_and_the_next_try_goes_on(
    host: Host, table: Table, engine: Engine, gguf: Path, size: int
) -> None:
    from models_catalog.inspect.scan import scan_roots

    engine.does("hang")
    table.order("job", converted(engine, gguf))
    until(lambda: list((host.models / convert.WORK).glob("*/config.json")), 30, why="for the work to begin")
    for pid in marked("job"):
        os.kill(pid, 9)
    table.until("job", "ended", timeout_s=30)
    found = [item["path"] for item in scan_roots([host.models]) if item["format"] == "hf"]
    assert not any(convert.WORK in path for path in found), "no look for models goes there"
    engine.does("good")
    assert run(table, "two", converted(engine, gguf, name="another")).refusal is None
    assert [path for path in (host.models / convert.WORK).iterdir() if path.is_dir()] == [], "of the first one too"
    assert run(table, "three", converted(engine, gguf)).refusal is None


def test_a_file_that_is_being_converted_is_not_deleted(
    host: Host, table: Table, engine: Engine, gguf: Path, size: int
) -> None:
    engine.does("hang")
    table.order("job", converted(engine, gguf))
    until(lambda: list((host.models / convert.WORK).glob("*/config.json")), 30, why="for the work to begin")
    for path in (gguf, gguf.parent):
        table.order(f"delete {path.name}", wire.DeleteTask(paths=[str(path)]))
        refusal = table.until(f"delete {path.name}", "refused").refusal
        assert refusal is not None and refusal.code == "delete.in_use" and gguf.exists()


@pytest.mark.parametrize("short", ["disk", "memory"])
def test_what_does_not_fit_is_refused_before_it_begins(
    host: Host, engine: Engine, gguf: Path, size: int, short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    free = size + convert.BESIDE - 1 if short == "disk" else 1 << 50
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    left = 1 << 20 if short == "memory" else 1 << 50
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=left))
    done = convert.convert(host.config(), converted(engine, gguf), host.dir)
    assert done.refusal is not None and engine.calls == 0
    assert done.refusal.code == ("convert.no_space" if short == "disk" else "convert.no_memory")
    assert done.refusal.params["need_mib"] > done.refusal.params["free_mib"]


@pytest.mark.parametrize(
    "fields",
    [
        {"folder": "/etc"},
        {"folder": "models"},
        {"name": "../x"},
        {"name": "/etc/x"},
        {"name": ".hidden"},
        {"name": "a/.b"},
        {"name": ""},
        {"name": "small"},
    ],
    ids=lambda fields: str(fields),
)
def test_where_a_conversion_may_not_go(host: Host, table: Table, engine: Engine, gguf: Path, fields: dict) -> None:
    table.order("job", converted(engine, gguf, **fields))
    status = table.until("job", "refused")
    assert status.refusal is not None and status.refusal.code.startswith("convert.") and engine.calls == 0


def test_the_owner_can_forbid_it(host: Host, engine: Engine, gguf: Path) -> None:
    with pytest.raises(Refused) as refusal:
        sidecar_order.check_convert(converted(engine, gguf), allowed=False, roots=[host.models])
    assert refusal.value.refusal.code == "convert.forbidden"


# --- the script's own hands -------------------------------------------------------------------------------------------


def test_the_script_speaks_of_what_it_cannot_import(tmp_path: Path) -> None:
    """In a Python without the libraries it says which one is missing, and ends well."""
    import subprocess

    out = tmp_path / "out"
    out.mkdir()
    blocked = "import sys; sys.modules['gguf'] = None; sys.argv = sys.argv[1:]; import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    argv = [sys.executable, "-c", blocked, str(sidecar.SCRIPT), "describe", '["/x.gguf"]', str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    said = json.loads(done.stdout.removeprefix(sidecar.SAYS))
    assert done.returncode == sidecar.FAILED and said["error"] == "no_reader" and said["package"] == "gguf"
    assert list(out.iterdir()) == []


@pytest.fixture(autouse=True)
def _nothing_left(host: Host) -> Iterator[None]:
    yield
    assert not list(host.models.glob("*.making"))
