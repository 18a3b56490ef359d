"""Add a package to an engine that an install made: the plugin with which vLLM reads GGUF files.

Without what the package depends on: it names `vllm` and `torch`, which are there, and pip must not exchange them. What
makes the engine worse is taken out again. Raises guard.Refused and SetupProblem.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from panel.fleet.agent import discover, flag_schema
from panel.fleet.agent import install_host as host
from panel.fleet.agent import install_plan as plans
from panel.fleet.agent.config import Config
from panel.fleet.agent.install import pip_failure
from panel.fleet.agent.install_pip import Teller, run, settings_of
from panel.fleet.agent.provision import SetupProblem, clean_env, locked, read_marker, require_space, write_marker
from panel.fleet.agent.sidecar_job import carried_out
from panel.fleet.agent.sidecar_order import SOURCES, check_package
from panel.fleet.wire import InstallTask, JobResult, PackageTask

NEED = 512 << 20  # bytes
PIP_S, ASK_S = 1800.0, 300.0
MODULES = {plans.GGUF_PLUGIN: "vllm_gguf_plugin"}  # what has to be importable then


def add(settings: Config, task: PackageTask, folder: Path) -> JobResult:
    """The engine as it is then (a FoundRuntime), or the refusal. `folder` is the job's."""
    secrets = {name: os.environ.pop(name) for name in plans.SECRET_NAMES if os.environ.get(name)}
    addresses = [*secrets.values(), *(value for name, value in os.environ.items() if "PIP_" in name)]
    return carried_out(folder, "install", lambda teller: _add(settings, task, secrets, teller), addresses)


def _add(settings: Config, task: PackageTask, secrets: Mapping[str, str], teller: Teller) -> list[dict[str, Any]]:
    teller.phase("checking", note=task.package)
    venv = check_package(settings, task, secrets)
    managed = settings.managed_folder
    require_space(managed, NEED)
    order = InstallTask.model_validate({"variant": "cuda", **{name: getattr(task, name) for name in SOURCES}})
    with locked(managed, venv.name, wait_s=5.0) as lock, tempfile.TemporaryDirectory(dir=venv, prefix=".tmp-") as tmp:
        own = {name: value for name, value in clean_env().items() if not name.startswith("PIP_")}
        cache = Path(tmp) / "cache"
        env = own | settings_of(plans.check_request(order, secrets), os.environ, cache) | {"TMPDIR": tmp}
        python = str(venv / "bin" / "python")
        pip = [*host.pip_tool(python, managed, teller, env), "--python", python]
        before = _has(python, MODULES[task.package])
        teller.phase("downloading", note=task.package)
        reader = [] if _has(python, plans.GGUF_READER) else [plans.GGUF_READER]
        wanted = [task.package, *reader]
        code, output = run([*pip, "install", "--no-deps", "--progress-bar", "off", *wanted], teller, env=env,
                           timeout_s=PIP_S, keep=[lock])  # fmt: skip
        if code != 0:
            raise pip_failure(code, output, Path("log"))
        teller.phase("verifying", note=task.package)
        try:
            found = _proven(venv, python, task.package, teller)
        except SetupProblem:
            if not before:  # the engine was better without it
                run([*pip, "uninstall", "--yes", *wanted], teller, env=env, timeout_s=PIP_S, keep=[lock])
            raise
        marker = read_marker(venv) or {}
        write_marker(venv, {**marker, "packages": sorted({*marker.get("packages", []), task.package})})
    discover.keep(settings.folder / discover.KEPT, venv / "bin" / "vllm", found)
    known = {"engine": "vllm", "executable": task.executable, "origin": "managed"}
    return [discover.described(known, found)]


def _has(python: str, module: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(0 if u.find_spec({module!r}) else 1)"
    return (
        run([python, "-I", "-c", code], Teller(lambda line: None), env=flag_schema.probe_env(), timeout_s=60.0)[0] == 0
    )


def _proven(venv: Path, python: str, package: str, teller: Teller) -> dict[str, Any]:
    """What the engine says of itself now. Raises SetupProblem when it is worse than before, or the plugin is broken."""
    # torch first: the plugin's library needs those that come with it
    code, output = run([python, "-I", "-c", f"import torch, {MODULES[package]}"], teller, env=flag_schema.probe_env(),
                       timeout_s=ASK_S)  # fmt: skip
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    if code != 0:
        raise _broken(package, lines[-1])
    found = flag_schema.probe_runtime(venv / "bin" / "vllm", ASK_S)
    if not found["ok"]:
        raise _broken(package, found["detail"] or found["code"])
    return found


def _broken(package: str, line: str) -> SetupProblem:
    message = f"With {package} the engine does not work: {line}"
    return SetupProblem("package_broken", message, "It was taken out again.", package=package, line=line[:500])
