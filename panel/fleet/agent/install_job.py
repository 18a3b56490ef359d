"""An install or a removal as a job: the order in, a wire.JobResult out; the log is stdout, progress a small file."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from panel.fleet.agent import discover, guard
from panel.fleet.agent import remove as removal
from panel.fleet.agent.config import Config
from panel.fleet.agent.gpus import Reader
from panel.fleet.agent.install import Driver, Installer
from panel.fleet.agent.install_pip import Teller, mask, secrets_in
from panel.fleet.agent.install_plan import SECRET_NAMES, Invalid, check_request
from panel.fleet.agent.journal import write_json
from panel.fleet.agent.provision import SetupProblem
from panel.fleet.wire import InstallTask, JobResult, Progress, Refusal, RemoveTask

SAY_S = 0.5  # between two notes of progress in one phase


def install(settings: Config, task: InstallTask, folder: Path) -> JobResult:
    """One engine as a FoundRuntime, or the refusal with the cause. `folder` is the job's."""
    signal.signal(signal.SIGTERM, _leave)
    env = dict(os.environ)
    secret = {name: env.pop(name) for name in SECRET_NAMES if name in env}
    for name in secret:
        os.environ.pop(name)  # nothing that is started from here needs them under these names
    teller = _teller(folder, [*secret.values(), *(value for name, value in env.items() if "PIP_" in name)])
    try:
        guard.check_install(
            task.model_copy(update={"secret_env": secret}), settings.allow_install, settings.install_sources
        )
        request = check_request(task, secret)
        driver = _driver() if task.variant == "cuda" else Driver()
        made = Installer(settings.managed_folder, request, teller, env, driver).install()
        discover.keep(settings.folder / discover.KEPT, made.executable, made.found)
    except guard.Refused as exc:
        return _refused(teller, exc.refusal)
    except Invalid as exc:
        return _refused(teller, Refusal(code="install.order_invalid", params={"field": str(exc)}))
    except SetupProblem as exc:
        teller.say(exc.message)
        return _refused(teller, Refusal(code=f"install.{exc.code}", params=exc.params))
    except OSError as exc:
        code = "install.no_space" if exc.errno in (28, 122) else "install.system"
        params = {"path": str(exc.filename or settings.managed_folder), "error": exc.strerror or ""}
        return _refused(teller, Refusal(code=code, params=params))
    known = {"engine": task.engine, "executable": str(made.executable), "origin": "managed"}
    return JobResult(items=[discover.described(known, made.found)])


def remove(settings: Config, task: RemoveTask) -> JobResult:
    """Nothing, or why it stays."""
    teller = Teller(_line)
    try:
        removal.check(settings.managed_folder, task.executable, (), allowed=settings.allow_install)
        folder = removal.remove(settings.managed_folder, task.executable)
    except guard.Refused as exc:
        return _refused(teller, exc.refusal)
    teller.say(f"{folder} is removed.")
    return JobResult()


def _refused(teller: Teller, refusal: Refusal) -> JobResult:
    teller.say(f"{refusal.code}: {refusal.params}")
    params = {key: _masked(value, teller) for key, value in refusal.params.items()}
    return JobResult(refusal=Refusal(code=refusal.code, params=params))


def _masked(value: object, teller: Teller) -> object:
    return mask(value, teller.secrets) if isinstance(value, str) else value


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _teller(folder: Path, addresses: list[str]) -> Teller:
    told: list[tuple[float, str]] = []
    phases: list[str] = []

    def progress(phase: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        if told and told[-1][1] == phase and now - told[-1][0] < SAY_S and done < total:
            return
        told[:] = [(now, phase)]
        if phase not in phases:
            phases.append(phase)
        passed = phases[: phases.index(phase)]
        told_now = Progress(phase=phase, done=done, total=total, note=note, passed=passed)
        write_json(folder / "progress.json", told_now.model_dump())

    return Teller(_line, progress, secrets_in(addresses))


def _driver() -> Driver:
    reading = Reader(lambda pid: None).get(wait_s=10.0)
    return Driver(reading.cuda, reading.driver)


def _leave(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # cleaning up takes its time once
    raise KeyboardInterrupt
