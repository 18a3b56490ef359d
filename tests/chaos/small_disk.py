"""An agent whose folder lies on a small disk of its own: a tmpfs in a mount namespace that ends with its keeper."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.agent.conftest import ROOT, Host

SIZE = "2m"
TOOLS = ("unshare", "nsenter", "mount")


def why_not() -> str:
    """Why that cannot be made here; "" when it can."""
    if missing := [name for name in TOOLS if shutil.which(name) is None]:
        return f"{', '.join(missing)} is absent"
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "no right to mount a tmpfs (needs root)"


class SmallDisk:
    """`inside` is the agent's folder as it is seen from here. Use as a context."""

    def __init__(self, host: Host) -> None:
        self.host, self.folder, self.covered = host, host.dir, False
        script = f"mount -t tmpfs -o size={SIZE},mode=700 none {self.folder} && echo ok && exec sleep 1000"
        self.keeper = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", script], stdout=subprocess.PIPE
        )
        assert self.keeper.stdout is not None and self.keeper.stdout.readline() == b"ok\n"
        self.inside = Path(f"/proc/{self.keeper.pid}/root{self.folder}")
        host.dir = self.inside  # what the host writes and reads lies there

    def close(self) -> None:
        self.keeper.kill()
        self.keeper.wait(10)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._enter(), *argv], capture_output=True, text=True, timeout=60, check=False)

    def _enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.keeper.pid), "-m", f"--wd={ROOT}"]

    def agent(self) -> list[str]:
        return [*self._enter(), sys.executable, "-m", "panel.fleet.agent", "--dir", str(self.folder)]

    def start_agent(self) -> subprocess.Popen[bytes]:
        with (self.host.folder / "agent.log").open("ab") as log:
            agent = subprocess.Popen(self.agent(), stderr=log)
        self.host.agents.append(agent)
        return agent

    # --- the disk ---------------------------------------------------------------------------------------------------

    @property
    def ballast(self) -> Path:
        return self.inside / "ballast"

    def fill(self) -> None:
        """Until not one byte more goes in."""
        handle = os.open(self.ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for size in (1 << 16, 4096, 1):
            try:
                while True:
                    os.write(handle, b"x" * size)
            except OSError as exc:
                assert exc.errno == errno.ENOSPC
        os.close(handle)

    def free(self) -> None:
        self.ballast.unlink(missing_ok=True)

    def read_only(self) -> None:
        """For all that is opened from now on, as after an error of the disk: a second mount, over the first one."""
        for options in (["--bind", str(self.folder)], ["-o", "remount,bind,ro"]):
            done = self.run("mount", *options, str(self.folder))
            assert done.returncode == 0, done.stderr
        self.covered = True

    def writable(self) -> None:
        if self.covered:
            self.covered = False
            done = self.run("umount", "-l", str(self.folder))
            assert done.returncode == 0, done.stderr
