"""A second machine for tests: a network namespace, and a cable to it that can be slow or cut.

Both ends are TAP devices, and every frame goes through a small process that holds them (`python -m tests.netns NAME
DEVICE`). So delay and cut need nothing of the kernel but namespaces and /dev/net/tun, and a cut is the hard kind: the
line stays up and nothing arrives. Needs root.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[1]
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
NETWORK = "198.18.0.0/15"  # set aside for tests of networks; neither public nor one that teams use
FRAME = 65536


def why_not() -> str:
    """Why there can be no second machine here; "" when there can."""
    if os.geteuid() != 0:
        return "NO NETWORK NAMESPACES: the second host needs root"
    if not shutil.which("ip"):
        return "NO NETWORK NAMESPACES: the program ip is absent (iproute2)"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "NO NETWORK NAMESPACES: /dev/net/tun is absent"
    name = f"bt{os.getpid()}x"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"NO NETWORK NAMESPACES: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


class SecondHost:
    """The namespace with its cable. `near` is this machine's address on it, `far` the other one's."""

    def __init__(self) -> None:
        number = os.getpid() % 16384  # its network within NETWORK
        self.name = f"bt{os.getpid()}"
        self.device = f"bt{os.getpid()}"[:14]
        first = f"198.{18 + number // 8192}.{number % 8192 // 64}"
        self.near, self.far = f"{first}.{number % 64 * 4 + 1}", f"{first}.{number % 64 * 4 + 2}"
        self._wire: subprocess.Popen[str] | None = None

    def start(self) -> SecondHost:
        _ip("netns", "add", self.name)
        self._wire = subprocess.Popen(
            [sys.executable, "-m", "tests.netns", self.name, self.device], cwd=ROOT, stdin=subprocess.PIPE, text=True
        )
        until(lambda: Path(f"/sys/class/net/{self.device}").exists(), why="the cable is there")
        _ip("addr", "add", f"{self.near}/30", "dev", self.device)
        _ip("link", "set", self.device, "up")
        inside = ["-n", self.name]
        until(lambda: _there([*inside, "link", "show", self.device]), why="its other end is there")
        _ip(*inside, "addr", "add", f"{self.far}/30", "dev", self.device)
        for device in (self.device, "lo"):
            _ip(*inside, "link", "set", device, "up")
        return self

    def argv(self, *argv: str) -> list[str]:
        """The command that runs `argv` there."""
        return ["ip", "netns", "exec", self.name, *argv]

    def delay(self, seconds: float) -> None:
        """How long everything is under way from now on, each way."""
        self._say(f"delay {seconds}")

    def cut(self) -> None:
        self._say("cut")

    def plug(self) -> None:
        self._say("plug")

    def _say(self, word: str) -> None:
        assert self._wire is not None and self._wire.stdin is not None
        self._wire.stdin.write(word + "\n")
        self._wire.stdin.flush()

    def stop(self) -> None:
        if self._wire is not None:
            self._wire.kill()
            self._wire.wait(10)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    assert not done.returncode, f"ip {' '.join(args)}: {done.stderr}"


def _there(args: list[str]) -> bool:
    return subprocess.run(["ip", *args], capture_output=True, check=False).returncode == 0


# --- the cable's process ----------------------------------------------------------------------------------------------


def _tap(device: str) -> int:
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TAP | IFF_NO_PI))
    return handle


def _ends(name: str, device: str) -> tuple[int, int]:
    """The device here and the one of the same name in the namespace."""
    here = _tap(device)
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{name}").open() as there, Path("/proc/self/ns/net").open() as home:
        for space, act in ((there, True), (home, False)):
            if libc.setns(space.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            if act:
                far = _tap(device)
    return here, far


def carry(name: str, device: str) -> None:
    """Until the standard input ends: frames from one end to the other, late or not at all."""
    here, far = _ends(name, device)
    across = {here: far, far: here}
    late, cut, count = 0.0, False, 0
    under_way: list[tuple[float, int, int, bytes]] = []
    poll = select.poll()
    for handle in (here, far, 0):
        poll.register(handle, select.POLLIN)
    while True:
        due = under_way[0][0] - time.monotonic() if under_way else 1.0
        for handle, _event in poll.poll(max(0, int(due * 1000) + 1)):
            if handle == 0:
                words = os.read(0, 4096).decode().split()
                if not words:
                    return
                cut = cut if words[-1] not in ("cut", "plug") else words[-1] == "cut"
                late = float(words[1]) if words[0] == "delay" else late
            else:
                frame = _read(handle)
                if frame and not cut:
                    count += 1
                    heapq.heappush(under_way, (time.monotonic() + late, count, across[handle], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _due, _number, handle, frame = heapq.heappop(under_way)
            if not cut:
                _write(handle, frame)


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, FRAME)
    except OSError:  # its end is down at this moment
        return b""


def _write(handle: int, frame: bytes) -> None:
    try:
        os.write(handle, frame)
    except OSError:  # as a real cable: what nobody takes is lost
        return


if __name__ == "__main__":
    carry(*sys.argv[1:3])
