"""How long everything takes to end with 20 live pages, two streams through the door and a hanging question open.

python -m benchmarks.shutdown
"""

import sys
import tempfile
from pathlib import Path

from tests.operations.shutdown import Busy

LIMIT_S = 5.0
TIMES = 3


def main() -> bool:
    """Print the figures of some runs; True when all keep the limit."""
    took = []
    for _n in range(TIMES):
        with tempfile.TemporaryDirectory(prefix="berth-bench-") as name:
            busy = Busy(Path(name))
            try:
                busy.start()
                busy.fill()
                took.append(busy.stop())
            finally:
                busy.close()
    words = ", ".join(f"{seconds:.1f}" for seconds in took)
    sys.stdout.write(f"Shutdown with 20 live pages and 2 streams: {words} s (at most {LIMIT_S:g})\n")
    return max(took) <= LIMIT_S


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
