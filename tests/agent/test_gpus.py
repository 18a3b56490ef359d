"""GPUs by NVML: the real nvidia-ml-py on a small stand-in for the driver's library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from panel.fleet.agent import gpus
from tests.agent.conftest import ROOT, Host, marked
from tests.fakes.panel import FakePanel
from tests.waiting import until

pytestmark = pytest.mark.slow

SOURCE = ROOT / "tests/fakes/nvml/nvml.c"
UUID = "GPU-8f6d2c1a-1111-2222-3333-444455556666"
CARDS = f"""driver 580.65.06 13000
gpu {UUID} 24564 1024 37 55 123456 8.9 NVIDIA GeForce RTX 4090
gpu GPU-second 81920 0 - - - 9.0 NVIDIA H100 80GB HBM3
proc 0 {{pid}} 900
proc 0 999999999 -
"""
READ = """
import sys, json
from panel.fleet.agent import gpus
reading = gpus.Nvml().read(lambda pid: "job-1" if pid == int(sys.argv[1]) else None)
print(json.dumps([[g.model_dump() for g in reading.gpus], reading.driver, reading.cuda, reading.error]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    output = str(folder / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", output, str(SOURCE)], check=True)
    return folder


def read(library: Path | None, cards: str, tmp_path: Path) -> Any:
    settings = tmp_path / "cards"
    settings.write_text(cards)
    env = {**os.environ, "FAKE_NVML": str(settings), "LD_LIBRARY_PATH": str(library or "")}
    output = subprocess.run(
        [sys.executable, "-c", READ, str(os.getpid())], env=env, cwd=ROOT, check=True, capture_output=True
    ).stdout
    return json.loads(output)


def test_cards_with_their_processes(library: Path, tmp_path: Path) -> None:
    (first, second), driver, cuda, error = read(library, CARDS.format(pid=os.getpid()), tmp_path)
    assert (driver, cuda, error) == ("580.65.06", "13.0", None)
    mine, other = sorted(first.pop("processes"), key=lambda process: process["pid"])
    assert first == {
        "index": 0,
        "uuid": UUID,
        "name": "NVIDIA GeForce RTX 4090",
        "total_mib": 24564,
        "used_mib": 1024,
        "utilisation_pct": 37,
        "temperature_c": 55,
        "power_w": pytest.approx(123.456),
        "compute_capability": "8.9",
        "nvlink": None,
    }
    assert (mine["pid"], mine["used_mib"], mine["job_id"]) == (os.getpid(), 900, "job-1")
    assert mine["user"] and mine["name"]
    assert (other["used_mib"], other["user"], other["name"], other["job_id"]) == (None, "", "", None)
    assert (second["utilisation_pct"], second["temperature_c"], second["power_w"]) == (None, None, None)


def test_which_cards_nvlink_joins(library: Path, tmp_path: Path) -> None:
    cards = "".join(f"gpu GPU-{n} 81920 0 0 30 60000 8.0 NVIDIA A100 80GB PCIe\n" for n in range(3))
    found, *_ = read(library, f"driver 580.65.06 13000\n{cards}nvlink 0 2\n", tmp_path)
    assert [card["nvlink"] for card in found] == [["GPU-2"], [], ["GPU-0"]]
    untold, *_ = read(library, f"driver 580.65.06 13000\n{cards}", tmp_path)
    assert [card["nvlink"] for card in untold] == [None, None, None]


def test_memory_shared_with_the_host(library: Path, tmp_path: Path) -> None:
    (card,), *_ = read(library, "driver 580 13000\ngpu GPU-x - - 1 2 3 12.1 NVIDIA GB10\n", tmp_path)
    assert card["total_mib"] > card["used_mib"] > 0


@pytest.mark.parametrize(("code", "error"), [(18, "driver_mismatch"), (15, "gpu_lost"), (999, "nvml_999")])
def test_a_broken_driver_is_told_by_a_code(library: Path, tmp_path: Path, code: int, error: str) -> None:
    cards, driver, _cuda, found = read(library, f"init {code}\n", tmp_path)
    assert (cards, driver, found) == ([], None, error)


@pytest.mark.parametrize("with_library", [True, False])
def test_no_gpu_is_a_normal_answer(
    library: Path, tmp_path: Path, with_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpus.nvidia_card_present() or (not with_library and gpus.library_there()):
        pytest.skip("this machine has an NVIDIA card")
    assert read(library if with_library else None, "init 9\n", tmp_path) == [[], None, None, None]


def test_a_card_without_a_driver_is_told(tmp_path: Path) -> None:
    device = tmp_path / "0000:01:00.0"
    device.mkdir()
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert gpus.nvidia_card_present(tmp_path)
    (device / "class").write_text("0x040300\n")  # its sound device
    assert not gpus.nvidia_card_present(tmp_path)
    assert not gpus.nvidia_card_present(tmp_path / "none")


def test_a_hanging_driver_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    release = threading.Event()
    monkeypatch.setattr(gpus.Nvml, "read", lambda self, job_of: release.wait(20) and gpus.Reading(driver="1"))
    reader = gpus.Reader(lambda pid: None)
    assert reader.get(0.05).error is None  # not yet known
    monkeypatch.setattr(gpus, "STALE_S", 0.0)
    assert reader.get(0.05).error == "driver_hangs"
    release.set()
    until(lambda: reader.get(0.05).driver == "1")


def test_an_engine_sees_its_gpu_by_uuid_and_its_memory_is_reported(
    library: Path, host: Host, fake_panel: FakePanel
) -> None:
    cards = host.folder / "cards"
    cards.write_text(CARDS.format(pid=1))
    executable = host.engine("print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(600)")
    host.configure(fake_panel)
    host.start_agent(FAKE_NVML=str(cards), LD_LIBRARY_PATH=str(library))
    job_id = fake_panel.order(host.task(executable, gpu_uuids=[UUID]), id=str(uuid.uuid4()))
    pid = fake_panel.wait_state(job_id, "running").pid
    cards.write_text(CARDS.format(pid=pid))
    fake_panel.wait(lambda: fake_panel.statuses[job_id].gpu_used_mib == 900)
    facts = fake_panel.facts
    assert facts is not None and facts.gpu_driver == "580.65.06" and facts.gpus[0].processes[0].job_id == job_id
    fake_panel.wait(lambda: fake_panel.log(job_id) == f"{UUID}\n".encode())
    fake_panel.stop(job_id)
    fake_panel.wait_state(job_id, "ended")
    assert not marked(job_id)


def test_a_process_may_call_itself_anything() -> None:
    """The kernel cuts names at 15 bytes, so a name in Chinese ends inside a character."""
    name = "a模型服务进程"
    rename = f"open('/proc/self/comm', 'wb').write({name!r}.encode())"
    program = f"import time; {rename}; print('named', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"named\n"
            assert gpus._name(process.pid).startswith("a模型服务")
            gpus._name(process.pid).encode()  # reports are UTF-8
        finally:
            process.kill()
