"""A host with GPUs, by the real NVML path on a stand-in library: placement, visibility, reservation, strangers."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments import services
from panel.fleet.models import Gpu, Reservation
from tests.e2e.stack import ROOT, Stack, running, until
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.servers import Servers

CARDS = """driver 580.65.06 13000
gpu GPU-aaaa 24564 9000 3 50 60000 8.9 NVIDIA L40S
gpu GPU-bbbb 24564 300 0 40 30000 8.9 NVIDIA L40S
"""
STRANGER = "proc 0 999999 8700\n"  # a process that is not ours


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the stand-in library reads anew at every look."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    source = ROOT / "tests/fakes/nvml/nvml.c"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True
    )
    (folder / "cards").write_text(CARDS + STRANGER)
    return folder / "cards"


@pytest.fixture(scope="module")
def stack(
    servers: Servers, django_test_environment: None, django_db_blocker: Any,
    tmp_path_factory: pytest.TempPathFactory, cards: Path,
) -> Iterator[Stack]:  # fmt: skip
    env = {"FAKE_NVML": str(cards), "LD_LIBRARY_PATH": str(cards.parent)}
    with django_db_blocker.unblock(), running(servers, tmp_path_factory.mktemp("gpu"), env=env) as berth:
        make_fake_engine(berth.engines, version="0.32.0", device="cuda")
        make_fake_model(berth.models / "good", graphs=2)
        berth.start_all()
        berth.scan()
        until(lambda: Gpu.objects.count() == 2, why="both cards are reported")
        yield berth


def engine_env(stack: Stack, row: Any) -> dict[str, str]:
    return next(p for p in stack.job_processes(row.run_id) if "serve" in p.cmdline()).environ()


def test_cards_are_rows_with_what_was_measured(stack: Stack) -> None:
    first = Gpu.objects.get(uuid="GPU-aaaa")
    assert (first.index, first.name, first.total_mib, first.used_mib) == (0, "NVIDIA L40S", 24564, 9000)
    assert first.measured["temperature_c"] == 50
    assert stack.host().facts["gpu_driver"] == "580.65.06"
    (stranger,) = first.measured["processes"]
    assert (stranger["pid"], stranger["used_mib"], stranger["job_id"]) == (999999, 8700, None)


def test_the_emptiest_card_is_taken_and_only_that_one_is_seen(stack: Stack) -> None:
    row = stack.deploy("on-gpu", "good", device="auto", kv_cache_gib=None)
    stack.wait_for(row, "ready")
    assert row.run.placement["gpu_uuids"] == ["GPU-bbbb"]
    assert engine_env(stack, row)["CUDA_VISIBLE_DEVICES"] == "GPU-bbbb"
    share = Reservation.objects.get(holder=str(row.run_id))
    gpu = Gpu.objects.get(uuid="GPU-bbbb")
    assert share.mib == gpu.reserved_mib == 22108  # ceil(24564 × 0.9)
    assert stack.host().ram_reserved_mib == 0
    assert "--gpu-memory-utilization" in row.run.job.status["argv"]
    codes = [phase["code"] for phase in row.run.phases]
    assert "graph" in codes

    # the next one finds no room: one card is reserved, a stranger sits on the other
    late = stack.deploy("late-gpu", "good", device="gpu", kv_cache_gib=None, options={"gpu_memory_utilization": 0.9})
    until(lambda: stack.state(late) == "queued" and late.reason, why="it waits and says why")
    reasons = {c["params"]["index"]: c["code"] for c in late.reason["params"]["candidates"]}
    assert reasons == {0: "gpu.used_by_others", 1: "gpu.reserved"}

    # what waits starts by itself as soon as there is room
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")
    stack.wait_for(late, "ready")
    assert late.run.placement["gpu_uuids"] == ["GPU-bbbb"]
    services.stop(late, actor=None)
    stack.wait_for(late, "stopped")
    assert list(Gpu.objects.values_list("reserved_mib", flat=True)) == [0, 0]


def test_a_smaller_share_fits_beside_a_stranger(stack: Stack) -> None:
    row = stack.deploy("shared", "good", device="gpu", kv_cache_gib=None, gpu_uuids=["GPU-aaaa"],
                       options={"gpu_memory_utilization": 0.5})  # fmt: skip
    stack.wait_for(row, "ready")
    assert engine_env(stack, row)["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa"
    assert Gpu.objects.get(uuid="GPU-aaaa").reserved_mib == 12282
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")


def test_two_cards_share_one_model(stack: Stack, cards: Path) -> None:
    cards.write_text(CARDS.replace(" 9000 ", " 200 "))  # the stranger has gone
    until(lambda: Gpu.objects.get(uuid="GPU-aaaa").used_mib == 200, timeout=30, why="measured anew")
    row = stack.deploy("pair", "good", device="gpu", kv_cache_gib=None, gpu_count=2)
    stack.wait_for(row, "ready")
    argv = row.run.job.status["argv"]
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert set(engine_env(stack, row)["CUDA_VISIBLE_DEVICES"].split(",")) == {"GPU-aaaa", "GPU-bbbb"}
    assert Reservation.objects.filter(holder=str(row.run_id)).count() == 2
    services.stop(row, actor=None)
    stack.wait_for(row, "stopped")


def test_a_card_that_vanishes_is_marked_and_not_chosen(stack: Stack, cards: Path) -> None:
    cards.write_text(CARDS.splitlines()[0] + "\n" + CARDS.splitlines()[1].replace(" 9000 ", " 200 ") + "\n")
    until(lambda: not Gpu.objects.get(uuid="GPU-bbbb").present, timeout=30, why="gone from the report")
    row = stack.deploy("gone", "good", device="gpu", kv_cache_gib=None, gpu_uuids=["GPU-bbbb"])
    stack.wait_for(row, "failed")
    assert row.reason["params"]["candidates"][0]["code"] == "gpu.gone"
