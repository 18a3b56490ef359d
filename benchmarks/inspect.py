"""Reading model files: GGUF headers against the official `gguf` package, an index of 200 shards, scans of 10,000 files.

Run: `python -m benchmarks.inspect`. The real small model is taken where `make engine` has prepared it, else a header of
the same size. Figures are the median of several runs, ours and the package's on the same file in the same run.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from models_catalog.inspect import known
from models_catalog.inspect.gguf import read_gguf
from models_catalog.inspect.one import look_at
from models_catalog.inspect.scan import scan_roots
from tests.models_catalog.builders import gguf_layout, sparse
from tests.models_catalog.zoo import gguf_models as zoo
from tests.models_catalog.zoo.case import folder
from tests.models_catalog.zoo.hf_models import QWEN3_MOE
from tests.models_catalog.zoo.tensors import decoder, experts, stored
from tests.models_catalog.zoo.twin import MERGES, WORDS, twin_layout

HEADER_MS, WORD_US, HEADER_MIB, TIMES = 30.0, 0.25, 16, 50.0
FILES, WARM_S = 10_000, 2.0
SHARDS = 200
ROUNDS = 7
FOLDERS = 2_000


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def seconds(call: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """The median of some runs."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times)


def fastest(call: Callable[[], Any]) -> float:
    """The shortest of some runs: what a small difference of two times is made of."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> bool:
    """Print the figures; False when a limit is broken."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as name:
        place = Path(name)
        good = headers(place)
        good &= words(place)
        shards(place)
        return scans(place) and good


def real_or_twin(place: Path) -> Path:
    cache = os.environ.get("BERTH_ENGINE_CACHE") or str(Path.home() / ".cache" / "berth" / "engines")
    found = sorted(Path(cache).glob("models/SmolLM2*GGUF/*.gguf"))
    return found[0].resolve() if found else sparse(place / "twin.gguf", twin_layout())


def headers(place: Path) -> bool:
    from gguf import GGUFReader

    path = real_or_twin(place)
    ours = seconds(lambda: read_gguf(str(path)))
    theirs = seconds(lambda: GGUFReader(str(path)), rounds=3)
    header = read_gguf(str(path))
    mib, times = header.bytes_read / 2**20, theirs / ours
    say(f"GGUF header of {path.name}: {1000 * ours:.1f} ms (at most {HEADER_MS:g}), {mib:.1f} MiB read "
        f"(at most {HEADER_MIB}); the gguf package {1000 * theirs:.0f} ms, {times:.0f} times as long "
        f"(at least {TIMES:g})")  # fmt: skip
    return kept(1000 * ours <= HEADER_MS and mib <= HEADER_MIB and times >= TIMES)


def kept(good: bool) -> bool:
    """Say so when a limit of the line before is broken."""
    if not good:
        say("  ✗ beyond its limit")
    return good


def words(place: Path) -> bool:
    """What each further word costs: twice as many words and merges beside as many."""
    small, large = (sparse(place / f"{n}.gguf", twin_layout(n * WORDS, n * MERGES)) for n in (1, 4))
    each = (
        1e6 * (fastest(lambda: read_gguf(str(large))) - fastest(lambda: read_gguf(str(small)))) / 3 / (WORDS + MERGES)
    )
    say(f"Each further word: {each:.3f} µs (at most {WORD_US:g})")
    return kept(each <= WORD_US)


def shards(place: Path) -> None:
    """A model of 200 shards with 18,867 tensors: index, headers, checks."""
    target = place / "sharded"
    target.mkdir()
    folder(QWEN3_MOE, stored(decoder(QWEN3_MOE, qk_norm=128, mlp=experts)), shards=SHARDS)(target)
    took = seconds(lambda: list(look_at(target)), rounds=3)
    say(f"Hugging Face folder of {SHARDS} shards, 18,867 tensors: {1000 * took:.0f} ms")


def scans(place: Path) -> bool:
    root, memory = place / "models", place / "memory"
    fill(root)
    time.sleep(known.SETTLE_NS / 1e9)  # so that what was just written is remembered
    cold = seconds(lambda: list(scan_roots([root], known=memory)), rounds=1)
    before, rounds = time.process_time(), 5
    warm = seconds(lambda: list(scan_roots([root], known=memory)), rounds)
    own = (time.process_time() - before) / rounds
    text = f"Scan of {FILES:,} model files: first {cold:.1f} s, again {warm:.2f} s (at most {WARM_S:g})"
    say(f"{text}, {own:.2f} s of processor; what it remembers takes {memory.stat().st_size / 2**20:.0f} MiB")
    return kept(warm <= WARM_S)


def fill(root: Path) -> None:
    """GGUF files, five in a folder, each as several programs lay them out: publisher/model/file."""
    keys = zoo.keys("llama", tokens=1000, **zoo.SMALL, general__file_type=7)
    layout = gguf_layout(keys, zoo.TINY)
    for number in range(FOLDERS):
        place = root / f"publisher{number % 50}" / f"model-{number}"
        place.mkdir(parents=True)
        for one in range(FILES // FOLDERS):
            sparse(place / f"model-{number}-v{one}-Q8_0.gguf", layout)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
