"""The same failure in other clothes: prefixes, colours, other numbers and folders, cut heads, mixed processes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.deployments.pure.diagnosis.collected import SAMPLES, Sample, read, score

Change = Callable[[Sample], tuple[bytes, int]]
NOISE = (
    b"(Worker_TP7 pid=99) INFO 01-01 10:00:00 [gpu_worker.py:1] something quite normal happened\n",
    b"(Worker_TP7 pid=99) WARNING 01-01 10:00:00 [utils.py:1] This may fail: error in a feature that is not used\n",
)


def each_line(make: Callable[[int, bytes], bytes]) -> Change:
    def change(sample: Sample) -> tuple[bytes, int]:
        lines = sample.log.split(b"\n")
        last = lines.pop() if lines[-1] == b"" else None
        made = [make(index, line) for index, line in enumerate(lines)]
        return b"\n".join([*made, *([b""] if last is not None else [])]), sample.root

    return change


def replaced(*pairs: tuple[bytes, bytes]) -> Change:
    def change(sample: Sample) -> tuple[bytes, int]:
        log = sample.log
        for pattern, new in pairs:
            log = re.sub(pattern, new, log)
        return log, sample.root

    return change


def without_head(sample: Sample) -> tuple[bytes, int]:
    """Logs are cut at their beginning; the traceback's end is there."""
    cut = max(0, min(sample.root - 12, len(sample.log.split(b"\n")) // 3))
    return b"\n".join(sample.log.split(b"\n")[cut:]), sample.root - cut


def mixed(sample: Sample) -> tuple[bytes, int]:
    """Another process prints between all lines."""
    lines = sample.log.split(b"\n")
    made = []
    for index, line in enumerate(lines):
        made.append(line + (b"\n" if index < len(lines) - 1 else b""))
        made.append(NOISE[index % 2] if index < len(lines) - 1 else b"")
    return b"".join(made), 2 * sample.root - 1


def twice(sample: Sample) -> tuple[bytes, int]:
    """A container that starts again and again: the newest start is explained."""
    log = sample.log if sample.log.endswith(b"\n") else sample.log + b"\n"
    return log + log, sample.root


def as_json(index: int, line: bytes) -> bytes:
    """As a container's log keeps it."""
    text = json.dumps(line.decode("utf-8", "replace") + "\n")
    return f'{{"log":{text},"stream":"stderr","time":"2026-01-01T10:00:{index % 60:02d}.1Z"}}'.encode()


def as_logfmt(line: bytes) -> bytes:
    """As Docker's model runner repeats an engine's line in one of its own."""
    text = json.dumps(line.decode("utf-8", "replace"), ensure_ascii=False)
    return f'time="2026-01-29T14:55:54Z" level=info msg={text} component=vllm'.encode()


SAME: dict[str, Change] = {
    "docker's stamps": each_line(lambda i, line: b"2026-01-%02dT10:00:%02d.123456789Z " % (1 + i % 28, i % 60) + line),
    "compose": each_line(lambda i, line: b"vllm-qwen-1  | " + line),
    "journal": each_line(lambda i, line: b"Jan 05 10:00:%02d gpu-7 vllm[4711]: " % (i % 60) + line),
    "Kubernetes": each_line(lambda i, line: b"2026-01-01T10:00:%02d.5Z stderr F " % (i % 60) + line),
    "plain stamps": each_line(lambda i, line: b"2026-01-01 10:00:%02d " % (i % 60) + line),
    "journal in another language": each_line(
        lambda i, line: b"mar 15 11:39:%02d acqua ollama[87551]: " % (i % 60) + line
    ),
    "build server": each_line(lambda i, line: b"[2026-01-01T10:00:%02d.7Z] " % (i % 60) + line),
    "kubectl with its source": each_line(lambda i, line: b"[pod/vllm-7d9f-x2/server] " + line),
    "cluster of machines": each_line(lambda i, line: b"(serve-task, pid=2150) " + line),
    "kept as JSON": each_line(lambda i, line: as_json(i, line)),
    "within another's lines": each_line(lambda i, line: as_logfmt(line)),
    "stern": each_line(lambda i, line: b"vllm-qwen-5dcf598989-k2bhw server " + line),
    "Docker Desktop": each_line(lambda i, line: b"2026-05-30 18:28:%02d.890 | " % (i % 60) + line),
    "escapes written out": replaced((rb"(?m)^", b"#033[0;36m"), (rb"(?m)$", b"#033[0m#015")),
    "colours": each_line(lambda i, line: b"\x1b[0;36m" + line + b"\x1b[0m"),
    "Windows": each_line(lambda i, line: line.removesuffix(b"\r") + b"\r"),
    "progress before each line": each_line(lambda i, line: b"Loading: 5%|#   | 1/9\r" + line if line else line),
    "broken bytes": each_line(lambda i, line: line + b" \xff\xfe\x00"),
    "other processes": replaced((rb"pid=\d+", b"pid=7")),
    "other times": replaced((rb"\b\d\d-\d\d \d\d:\d\d:\d\d\b", b"12-31 23:59:59")),
    "other lines of code": replaced((rb"\[(\w+\.py):\d+\]", rb"[\1:4242]"), (rb", line \d+", b", line 4242")),
    "other folders": replaced(
        (rb"/venv/lib/python3\.\d+|/usr/local/lib/python3\.\d+", b"/opt/conda/envs/x/lib/python3.13")
    ),
    "other models": replaced(
        (rb"/models/[\w.-]+", b"/mnt/weights/Some-Model-7B"), (rb"/srv/[\w.-]+\b(?!\.py)", b"/data/y")
    ),
    "without a head": without_head,
    "mixed": mixed,
}


@pytest.mark.parametrize("name", SAME)
def test_class_and_root_line_stay(name: str) -> None:
    result = score(SAME[name])
    assert result.code >= 0.97, result.wrong
    assert result.root >= 0.95, result.wrong


def test_of_several_starts_the_newest_that_failed_is_explained() -> None:
    """A start is known by the engine's banner."""
    newest = 0
    for sample in SAMPLES:
        once, again = read(sample.log, sample.engine), read(twice(sample)[0], sample.engine)
        assert again.code == once.code, sample.name
        if again.facts["starts"] <= once.facts["starts"] or once.root_line is None or sample.name == "058":
            continue  # 058 holds two starts of its own, of which the first failed
        assert again.root_line == once.root_line + twice(sample)[0].count(b"\n") // 2, sample.name
        newest += 1
    assert newest > 60


@pytest.mark.parametrize("part", [1, 7, 61, 4096])
def test_the_size_of_the_parts_changes_nothing(part: int) -> None:
    for sample in SAMPLES[:: 6 if part < 61 else 1]:
        assert read(sample.log, sample.engine, part).as_dict() == read(sample.log, sample.engine).as_dict(), sample.name
