"""Speed and memory of the reader of logs: floods, the collected logs, and the peak of its own memory."""

import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader

LOGS = Path(__file__).resolve().parents[1] / "tests" / "data" / "diagnosis" / "corpus"
FLOOD_MB, PART = 200, 1 << 20
PEAK_MB = 50  # of each flood; what is remembered of lines is full after some megabytes
REQUESTS = ("errors", "tracebacks")  # failing requests, which may as well be what failed
MIN_FLOOD, MIN_CORPUS, MAX_PEAK = 40.0, 5.0, 32.0  # MB/s, MB/s, MiB
ENDING = b"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n"


def _numbers(rnd: random.Random) -> bytes:
    """A serving engine's lines: the same words, other numbers."""
    made = (
        b"INFO 01-01 10:%02d:%02d [loggers.py:1] Engine 000: Avg prompt throughput: %d.%d tokens/s, Running: %d reqs\n"
        % (rnd.randrange(60), rnd.randrange(60), rnd.randrange(9999), rnd.randrange(10), rnd.randrange(99))
        for _ in range(PART // 110)
    )
    return b"".join(made)


def _ids(rnd: random.Random) -> bytes:
    """A line per request, with its id."""
    return b"".join(
        b"INFO 01-01 10:00:00 [logger.py:1] Received request cmpl-%s: prompt of %d tokens\n"
        % (rnd.randbytes(16).hex().encode(), rnd.randrange(9999))
        for _ in range(PART // 100)
    )


def _texts(rnd: random.Random) -> bytes:
    """What users wrote: no line is like another."""
    words = [bytes(rnd.choices(b"abcdefghijklmnopqrstuvwxyz", k=rnd.randrange(2, 10))) for _ in range(4000)]
    return b"".join(
        b"INFO 01-01 10:00:00 [x.py:1] " + b" ".join(rnd.choices(words, k=14)) + b"\n" for _ in range(PART // 120)
    )


def _errors(rnd: random.Random) -> bytes:
    """A failing request again and again."""
    line = b"(APIServer pid=1) ERROR 01-01 10:00:00 [serving.py:1] ValueError: request %d failed: bad input\n"
    return b"".join(line % rnd.randrange(10**9) for _ in range(PART // 95))


def _bars(rnd: random.Random) -> bytes:
    """Progress bars, each of which is drawn again and again in one line."""
    drawn = (
        b"\rLoading safetensors checkpoint shards: %3d%% Completed | %d/99 [00:%02d<01:%02d,  1.%02ds/it]"
        % (rnd.randrange(100), rnd.randrange(100), rnd.randrange(60), rnd.randrange(60), rnd.randrange(100))
        + (b"\n" if index % 300 == 0 else b"")
        for index in range(PART // 85)
    )
    return b"".join(drawn)


def _prompts(rnd: random.Random) -> bytes:
    """Prompts of some kilobytes, one a line, in which people write of errors."""
    words = [bytes(rnd.choices(b"abcdefghijklmnopqrstuvwxyz", k=rnd.randrange(2, 10))) for _ in range(4000)]
    words += [b"error", b"failed", b"ValueError:", b"killed"] * 20
    line = b"INFO 01-01 10:00:00 [logger.py:1] Received request cmpl-%s: prompt: '%s', params: x\n"
    return b"".join(
        line % (rnd.randbytes(8).hex().encode(), b" ".join(rnd.choices(words, k=600))) for _ in range(PART // 4200)
    )


def _tracebacks(rnd: random.Random) -> bytes:
    """Tracebacks of failing requests, each with an error of another text."""
    words = [bytes(rnd.choices(b"ghijklmnopqrstuvwxyz", k=rnd.randrange(3, 10))) for _ in range(4000)]
    head = b"(APIServer pid=1) ERROR 01-01 10:00:00 [serving.py:1] "
    made, size = [], 0
    while size < PART:
        name, text = rnd.choice(words), b" ".join(rnd.choices(words, k=8))
        made.append(
            b'%sTraceback (most recent call last):\n%s  File "/x/%s.py", line %d, in %s\n%s    raise ValueError(%s)\n'
            b"%sValueError: %s is not what was asked for\n"
            % (head, head, name, rnd.randrange(999), rnd.choice(words), head, name, head, text)
        )
        size += len(made[-1])
    return b"".join(made)


def _dead(rnd: random.Random) -> bytes:
    """What a server says of each request whose engine is dead."""
    line = (
        b"(APIServer pid=1) ERROR 01-01 10:00:00 [serving.py:1] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        b"encountered an issue while it worked on %s.\n"
    )
    return b"".join(line % bytes(rnd.choices(b"ghijklmnopqrstuvwxyz", k=16)) for _ in range(PART // 170))


FLOODS: dict[str, Callable[[random.Random], bytes]] = {
    "numbers": _numbers,
    "ids": _ids,
    "texts": _texts,
    "errors": _errors,
    "progress bars": _bars,
    "long prompts": _prompts,
    "tracebacks": _tracebacks,
    "a dead engine's echoes": _dead,
}


def _parts(kind: str) -> Iterator[bytes]:
    rnd = random.Random(1)
    parts = [FLOODS[kind](rnd) for _ in range(8)]
    for index in range(FLOOD_MB):
        yield parts[index % 8]
    yield ENDING


def flood(kind: str) -> float:
    """MB/s over 200 MB that end in a real failure, which must be found."""
    reader, size, spent = Reader("vllm"), 0, 0.0
    for part in _parts(kind):
        began = time.process_time()
        reader.feed(part)
        spent += time.process_time() - began
        size += len(part)
    found = diagnose(reader)
    if kind not in REQUESTS and found.code != "mem.kv_none":
        raise AssertionError(f"the failure after the flood of {kind} was not found: {found.code!r}")
    return size / 1e6 / spent


def corpus() -> float:
    """MB/s over all collected logs, with a diagnosis of each; patterns are compiled before."""
    logs = [path.read_bytes() for path in sorted(LOGS.iterdir())]
    best = 0.0
    for _ in range(4):
        began = time.process_time()
        for log in logs:
            reader = Reader()
            reader.feed(log)
            diagnose(reader)
        best = max(best, sum(map(len, logs)) / 1e6 / (time.process_time() - began))
    return best


def peak() -> float:
    """MiB that the reader and its diagnosis hold at most, over a part of every flood."""
    highest = 0.0
    for kind in FLOODS:
        parts = [*list(_parts(kind))[:PEAK_MB], ENDING]
        tracemalloc.start()
        reader = Reader()
        for part in parts:
            reader.feed(part)
        diagnose(reader, exit_code=1)
        highest = max(highest, tracemalloc.get_traced_memory()[1] / (1 << 20))
        tracemalloc.stop()
    return highest


def main() -> bool:
    """Print all figures; whether every limit is kept."""
    good = True
    for kind in FLOODS:
        speed = flood(kind)
        good &= speed >= MIN_FLOOD
        sys.stdout.write(f"Diagnosis, {FLOOD_MB} MB flood of {kind}: {speed:.0f} MB/s (at least {MIN_FLOOD:g})\n")
    speed = corpus()
    sys.stdout.write(f"Diagnosis, collected logs: {speed:.1f} MB/s (at least {MIN_CORPUS:g})\n")
    held = peak()
    sys.stdout.write(f"Diagnosis, peak of memory: {held:.1f} MiB (at most {MAX_PEAK:g})\n")
    sys.stdout.flush()
    return good and speed >= MIN_CORPUS and held <= MAX_PEAK


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
