"""Any bytes: it never raises, its memory stays small, and twice the bytes take about twice the time."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import BLOCK, Reader
from deployments.diagnosis.rules import ALL
from tests.deployments.pure.diagnosis.collected import SAMPLES, read

LIMIT = 32 << 20
LINES = [line for sample in SAMPLES for line in sample.log.split(b"\n")]
EXAMPLES = [example.encode() for rule in ALL for example in rule.examples]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=200), st.sampled_from(LINES), st.sampled_from(EXAMPLES)), max_size=40),
    st.integers(1, 500),
)
def test_any_mixture_of_bytes_and_lines_is_read(parts: list[bytes], size: int) -> None:
    log = b"\n".join(parts)
    found = read(log, "", size)
    assert 0 <= found.confidence <= 1
    assert found.root_line is None or 1 <= found.root_line <= log.count(b"\n") + 1


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SAMPLES), st.integers(0, 2**32))
def test_damaged_logs_are_read(sample: object, seed: int) -> None:
    rnd = random.Random(seed)
    log = bytearray(sample.log)  # type: ignore[attr-defined]
    for _ in range(40):
        at = rnd.randrange(len(log))
        log[at : at + rnd.randrange(4)] = rnd.randbytes(rnd.randrange(4))
    for number in (None, 4, 9, 11, 15, 99):
        reader = Reader()
        reader.feed(bytes(log))
        diagnose(reader, signal=number)


def filled(piece: bytes, size: int) -> bytes:
    return (piece * (size // len(piece) + 1))[:size]


def unlike(size: int) -> bytes:
    rnd = random.Random(3)
    line = b"ERROR 01-01 10:00:00 [x.py:1] ValueError: %s failed: cannot %s\n"
    words = [bytes(rnd.choices(b"ghijklmnopqrstuvwxyz", k=9)) for _ in range(2000)]
    return b"".join(line % (rnd.choice(words), rnd.choice(words)) for _ in range(size // 75))


# What makes careless patterns slow: long runs of what they repeat, and almost-matches.
HOSTILE: dict[str, Callable[[int], bytes]] = {
    "one endless line": lambda n: b"A" * n,
    "dots": lambda n: filled(b"a." * 1990 + b"Error\n", n),
    "capitals": lambda n: filled(b"A" * 3900 + b"Error\n", n),
    "spaces": lambda n: filled(b" " * 3900 + b"error\n", n),
    "brackets": lambda n: filled(b"(Worker pid=1) " * 200 + b"Error\n", n),
    "stamps": lambda n: filled(b"[2025-01-01 10:00:00] " * 150 + b"Error\n", n),
    "almost matches": lambda n: filled(b"fp8 requires only supported Errors " * 100 + b"\n", n),
    "digits": lambda n: filled(b"ValueError: " + b"1" * 3900 + b"\n", n),
    "carriage returns": lambda n: filled(b"error \r", n),
    "line ends": lambda n: b"\n" * n,
    "colours": lambda n: filled(b"\x1b[0;36m" * 400 + b"Error\n", n),
    "ever new errors": unlike,
    "quotes": lambda n: filled(b"KeyError: '" + b"layers." * 500 + b"\n", n),
    "headers": lambda n: filled(b"1 validation error for ModelConfig\n", n),
    "banners": lambda n: filled(b"INFO 01-01 10:00:00 [a.py:1] vLLM API server version 0.9.1\nValueError: x\n", n),
}


def seconds(log: bytes) -> float:
    began = time.process_time()
    read(log)
    return time.process_time() - began


@pytest.mark.parametrize("name", HOSTILE)
def test_twice_the_bytes_take_about_twice_the_time(name: str) -> None:
    small, large = HOSTILE[name](300_000), HOSTILE[name](1_200_000)
    once = min(seconds(small) for _ in range(3))
    more = min(seconds(large) for _ in range(2))
    assert more <= 4 * once * 2.5 + 0.05, (once, more)


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_stays_small_whatever_comes(name: str) -> None:
    size = (1 if name in ("banners", "ever new errors") else 3) << 20
    part = HOSTILE[name](size)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        reader = Reader()
        for at in range(0, size, 200_000):
            reader.feed(part[at : at + 200_000])
        diagnose(reader)
        assert tracemalloc.get_traced_memory()[1] - before <= LIMIT
    finally:
        tracemalloc.stop()


def test_a_single_pattern_is_never_slow_on_its_own() -> None:
    """Every pattern on lines made of its own words, much longer than any real line."""
    slow = []
    for rule in ALL:
        for literals, pattern in rule.tests:
            line = (literals[0] + " ") * (1200 // (len(literals[0]) + 1) + 1)
            began = time.process_time()
            pattern.search(line[:1200])
            pattern.search(literals[0] + "a" * 1200)
            pattern.search(literals[0] + " " * 1200)
            if time.process_time() - began > 0.25:
                slow.append((rule.code, pattern.pattern))
    assert not slow


def test_line_numbers_are_those_of_an_editor_after_a_long_log() -> None:
    log = b"x\r\n" * 70_000 + b"a\rb\rValueError: No available memory for the cache blocks.\n"
    assert read(log).root_line == 70_001
    assert read(b"y" * (3 * BLOCK) + b"\nKilled\n").root_line == 2


def test_an_error_after_a_flood_is_found() -> None:
    flood = b"".join(
        b"INFO 01-01 10:00:00 [x.py:1] prompt %d is %s\n" % (i, random.Random(i).randbytes(40).hex().encode())
        for i in range(20_000)
    )
    found = read(flood + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n")
    assert (found.code, found.root_line) == ("mem.oom_load", 20_001)


def _requests(count: int, error: bytes) -> bytes:
    """Failing requests, no error of which is like another."""
    rnd = random.Random(5)
    names = (bytes(rnd.choices(b"ghijklmnopqrstuvwxyz", k=24)) for _ in range(count))
    return b"".join(b"(APIServer pid=1) ERROR 01-01 10:00:00 [x.py:1] %s: %s\n" % (error, name) for name in names)


@pytest.mark.parametrize(
    "last",
    [
        b"(EngineCore_DP0 pid=2) ERROR 01-01 10:00:00 [x.py:1] ValueError: No available memory for the cache blocks.\n",
        b"(APIServer pid=1) ERROR 01-01 10:00:00 [x.py:1] RuntimeError: No available memory for the cache blocks.\n",
        b"ValueError: No available memory for the cache blocks.\n",
    ],
    ids=["another process", "another error", "another place"],
)
def test_what_differs_from_a_flood_of_errors_is_looked_at(last: bytes) -> None:
    loading = b"INFO 01-01 10:00:00 [x.py:1] Starting to load model /m...\nINFO:     Application startup complete.\n"
    reader = Reader("vllm")
    reader.feed(loading + _requests(4000, b"ValueError") + last)
    reader.flush()
    assert "mem.kv_none" in {found.rule.code for found in reader.start.all if found.rule}


def test_of_a_bar_the_last_picture_counts() -> None:
    shown = b"".join(
        b"\rLoading safetensors checkpoint shards: %3d%% Completed | %d/9 [00:01<00:02]" % (n * 11, n) for n in range(8)
    )
    reader = Reader("vllm")
    reader.feed(b"INFO 01-01 10:00:00 [x.py:1] Starting to load model /m...\n" + shown * 40 + b"\n")
    load = next(phase for phase in diagnose(reader).phases if phase["code"] == "load")
    assert (load["done"], load["total"]) == (7, 9), load
