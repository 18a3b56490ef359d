"""GPUs of a Berth under chaos: a stand-in library of NVML tells of them, so that reservations of cards are judged, too."""

import random
import subprocess
from pathlib import Path
from typing import Any

from tests.chaos.clocks import COMPILER
from tests.fakes.make_engine import make_fake_engine

SOURCE = Path(__file__).parents[1] / "fakes" / "nvml" / "nvml.c"
COUNT = 6  # one for each run of a group, so that none of them waits for a card
TOTAL_MIB = 24564
SHARES = (0.9, 0.4)  # a card alone, and one that two may share


class Cards:
    """`env` is for the agent; without a compiler it is empty, and there are no cards."""

    def __init__(self, folder: Path) -> None:
        self.env: dict[str, str] = {}
        if COMPILER is None:
            return
        place = folder / "nvml"
        place.mkdir()
        library, told = place / "libnvidia-ml.so.1", place / "cards"
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
        lines = [f"gpu GPU-{n:04d} {TOTAL_MIB} 300 0 40 30000 8.9 NVIDIA L40S" for n in range(COUNT)]
        told.write_text("\n".join(["driver 580.65.06 13000", *lines, ""]))
        self.env = {"FAKE_NVML": str(told), "LD_LIBRARY_PATH": str(place)}

    def make_engine(self, folder: Path) -> list[str]:
        """An engine for these cards, beside the one for CPUs; what the agent's settings name for it."""
        if not self.env:
            return []
        return [str(make_fake_engine(folder / "for-cards" / "bin", version="0.32.0", device="cuda"))]

    def known(self) -> bool:
        from panel.fleet.models import Gpu

        return Gpu.objects.filter(present=True).count() == (COUNT if self.env else 0)

    @staticmethod
    def wish(rng: random.Random) -> dict[str, Any]:
        """What a deployment says that is to run on a card."""
        return {"options": {"gpu_memory_utilization": rng.choice(SHARES)}}
