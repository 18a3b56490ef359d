"""A clock for the panel's or a host's processes that a test can put forward and back while they run; see tests/fakes/clock."""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "fakes" / "clock" / "clock.c"
COMPILER = shutil.which("cc")


class Clock:
    """`env` is for the processes that shall have it. Without a compiler it is empty, and the clock cannot be moved."""

    def __init__(self, folder: Path, name: str) -> None:
        self.env: dict[str, str] = {}
        if COMPILER is None:
            return
        library, state = folder / f"{name}-clock.so", folder / f"{name}-clock.s"
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
        state.write_bytes(struct.pack("d", 0.0))
        with state.open("r+b") as file:
            self._at = mmap.mmap(file.fileno(), 8)
        self.env = {"LD_PRELOAD": str(library), "BERTH_TEST_CLOCK": str(state)}

    def move(self, seconds: float) -> None:
        """Seconds ahead of the true time from now on (negative: behind)."""
        self._at[:8] = struct.pack("d", seconds)
