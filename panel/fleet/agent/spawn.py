"""Start a job: pick its port, build its command and environment, hand both to a new shim."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from panel.fleet.agent import delete, download_order, guard, own_code, remove, sidecar_order
from panel.fleet.agent.facts import cpu
from panel.fleet.agent.files import Registry
from panel.fleet.agent.install_pip import HOST_SETTINGS
from panel.fleet.agent.journal import Journal, Record
from panel.fleet.agent.procs import Ident, boot_id
from panel.fleet.wire import (
    PORT_PLACE,
    AnyTask,
    CheckTask,
    ConvertTask,
    DeleteTask,
    DownloadTask,
    EngineTask,
    InstallTask,
    PackageTask,
    RemoveTask,
    SidecarTask,
)
from panel.fleet.wire import (
    Command as EngineCommand,
)

SHIM = Path(__file__).with_name("shim.py")
PACKAGE_ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
TASK_LIMIT_S = {
    "scan": 900.0,
    "runtimes": 900.0,
    "install": 6 * 3600.0,
    "remove": 900.0,
    "download": 14 * 86400.0,  # it ends by itself when nothing comes any more
    "delete": 3600.0,
    "sidecar": 560.0,  # less than a start may take until it is ordered
    "convert": 7 * 3600.0,
    "package": 3600.0,
    "check": 280.0,  # waiting for another one included
}
FIRST_PORT, PORTS = 20_000, 12_000


class NoPort(Exception):
    """No loopback port is free."""


@dataclass(frozen=True)
class Command:
    """What a shim needs to know."""

    argv: list[str]
    env: dict[str, str]


@dataclass
class Child:
    """A shim that this agent started itself (an adopted one has no Child). `news` gets a line once the engine runs."""

    process: subprocess.Popen[bytes]
    news: int

    def close(self) -> None:
        if self.news >= 0:
            os.close(self.news)
            self.news = -1


def port_range() -> tuple[int, int]:
    """[first, end) below the ports that the kernel gives to outgoing connections, which could take ours meanwhile."""
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = FIRST_PORT + PORTS
    end = min(FIRST_PORT + PORTS, low) if low > 12_000 else FIRST_PORT + PORTS
    return max(10_240, end - PORTS), end


def free_port(host: str, taken: Iterable[int]) -> int:
    """A loopback port that no job of ours has and nobody listens on now. Raises NoPort."""
    used = set(taken)
    first, end = port_range()
    for port in random.sample(range(first, end), k=min(200, end - first)):
        if port not in used and _is_free(host, port):
            return port
    raise NoPort


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            # On all addresses, so that a stranger's listener on 0.0.0.0 counts too.
            probe.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
        except OSError:
            return False
    return True


class Spawner:
    """Checks and starts jobs with this host's limits."""

    def __init__(self, journal: Journal, registry: Registry, env: Mapping[str, str] | None = None) -> None:
        self.journal, self.registry, self.config = journal, registry, registry.config
        self.env = os.environ if env is None else env

    def check(self, task: AnyTask, used: Iterable[Sequence[str]] = ()) -> None:
        """Raises guard.Refused when this host must not do it. `used` are the commands of the living jobs."""
        if isinstance(task, InstallTask):
            guard.check_install(task, self.config.allow_install, self.config.install_sources)
        elif isinstance(task, RemoveTask):
            programs = [argv[0] for argv in used if argv]
            remove.check(self.config.managed_folder, task.executable, programs, allowed=self.config.allow_install)
        elif isinstance(task, DownloadTask):
            download_order.check(
                task,
                allowed=self.config.allow_download,
                endpoints=self.config.download_endpoints,
                roots=self.config.current_roots(),
            )
        elif isinstance(task, DeleteTask):
            delete.check(task, delete.limits_of(self.config), used)
        elif isinstance(task, SidecarTask | ConvertTask):
            sidecar_order.check(task, known=self.registry.allows, roots=self.config.current_roots())
            if isinstance(task, ConvertTask):
                roots = self.config.current_roots()
                sidecar_order.check_convert(task, allowed=self.config.allow_download, roots=roots)
        elif isinstance(task, PackageTask):
            sidecar_order.check_package(self.config, task)
        if not isinstance(task, EngineCommand):
            return
        allowed = frozenset([task.argv[0]]) if self.registry.allows(task.argv[0]) else frozenset()
        limits = guard.Limits(
            roots=self.config.current_roots(),
            executables=allowed,
            remote_code=self.config.remote_code,
            allow_flags=frozenset(self.config.allow_flags),
            allow_env=frozenset(self.config.allow_env),
            cpu_flags=frozenset(cpu()[1]),
            sidecars=sidecar_order.folder_of(self.config),
        )
        guard.check_engine(task, limits)

    def prepare(self, record: Record, task: AnyTask, taken: Iterable[int]) -> Command:
        """Fill the record (argv, port, bounds); the files of a scan go to its folder. Raises NoPort, guard.Refused."""
        folder = self.journal.folder_of(record.id)
        folder.mkdir(mode=0o700, exist_ok=True)
        if isinstance(task, EngineTask):
            record.argv = self._command(record, task, folder, taken)
            record.head = max(1, min(task.log_head_mib, self.config.log_head_mib)) * MIB
            record.tail = max(1, min(task.log_tail_mib, self.config.log_tail_mib)) * MIB
            return Command(record.argv, guard.engine_env(task, record.id, self.env))
        if isinstance(task, CheckTask):  # the same command as a start's; what listens there is not a server of ours
            task = task.model_copy(update={"argv": self._command(record, task, folder, taken)})
            record.port, record.reads = None, task.model_path
        request = folder / "request.json"
        request.write_text(json.dumps(task.model_dump(mode="json", exclude={"secret_env"})))
        record.argv = [sys.executable, "-m", "panel.fleet.agent.task", task.kind]
        record.argv += [str(self.config.folder.resolve()), str(request)]
        if isinstance(task, SidecarTask | ConvertTask):
            record.reads = task.path
        env = self._task_env(record.id)
        if isinstance(
            task, InstallTask | PackageTask
        ):  # pip's settings of this host, and the order's secrets, on no disk
            env |= {name: self.env[name] for name in HOST_SETTINGS if self.env.get(name)} | task.secret_env
        elif isinstance(task, DownloadTask):
            env |= task.secret_env
        return Command(record.argv, env)

    def _command(self, record: Record, task: EngineCommand, folder: Path, taken: Iterable[int]) -> list[str]:
        """The command with a free port, and with the model's folder of allowed code where it has code of its own."""
        record.host = guard.host_of(task.argv)
        record.port = free_port(record.host, taken)
        argv = task.argv
        if own_code.applies(task):
            argv, record.reads = own_code.seal(task, folder, self.config.current_roots()), task.model_path
        return [str(record.port) if arg == PORT_PLACE else arg for arg in argv]

    def _task_env(self, job_id: str) -> dict[str, str]:
        env = {name: self.env[name] for name in (*guard.INHERITED, "BERTH_ENGINE_CACHE") if self.env.get(name)}
        # What was said to this agent about where to import from counts for its children too.
        path = [str(PACKAGE_ROOT), *filter(None, [self.env.get("PYTHONPATH")])]
        return {**env, "PYTHONPATH": ":".join(path), "SPT_NOENV": "1", "BERTH_JOB": job_id}

    def launch(self, record: Record, command: Command) -> Child | None:
        """Start the shim. None when one lives already (an agent that died right after starting it)."""
        folder = self.journal.folder_of(record.id)
        lock = self.journal.take_job_lock(record.id)
        if lock < 0:
            return None
        news, news_end = os.pipe()
        errors = os.open(folder / "shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-E", str(SHIM), str(lock)],
                stdin=subprocess.PIPE,
                stdout=news_end,
                stderr=errors,
                cwd=folder,
                env={},
                pass_fds=[lock],
                start_new_session=True,
            )
        except BaseException:
            os.close(news)
            raise
        finally:
            for handle in (lock, news_end, errors):
                os.close(handle)
        found = Ident.of(process.pid)
        record.shim = found.dump() if found else None
        spec = {
            "argv": command.argv,
            "env": command.env,
            "boot": boot_id(),
            "head": record.head,
            "tail": record.tail,
            "trace": record.trace,
        }
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a shim that died is noticed by the next look at the job
            process.stdin.write(marshal.dumps(spec))
            process.stdin.close()
        os.set_blocking(news, False)
        return Child(process, news)
