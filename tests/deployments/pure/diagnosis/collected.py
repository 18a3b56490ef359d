"""The collected logs and their labels, and how well a reading of them agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.result import Diagnosis

DATA = Path(__file__).parents[3] / "data" / "diagnosis"


@dataclass(frozen=True)
class Sample:
    """A log with its label. `root` is the 1-based line."""

    name: str
    engine: str
    code: str
    phase: str
    root: int
    log: bytes

    @property
    def healthy(self) -> bool:
        return self.code.startswith("ok.")


def engine_of(version: str) -> str:
    """sglang, ollama, llamacpp or vllm from the label's words."""
    return next(
        (name.replace(".", "") for name in ("sglang", "ollama", "llama.cpp") if version.startswith(name)), "vllm"
    )


def samples() -> list[Sample]:
    rows = [line.split("\t") for line in (DATA / "index.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    return [
        Sample(row[0][:3], engine_of(row[2]), row[3], row[4], int(row[5]), (DATA / "corpus" / row[0]).read_bytes())
        for row in rows
    ]


SAMPLES = samples()


def read(log: bytes, engine: str = "", part: int = 0) -> Diagnosis:
    """A diagnosis of the log, fed whole or in parts of so many bytes."""
    reader = Reader(engine)
    for at in range(0, len(log), part or max(1, len(log))):
        reader.feed(log[at : at + (part or len(log))])
    return diagnose(reader)


@dataclass
class Score:
    """Shares that agree, and what does not."""

    code: float
    root: float
    phase: float
    wrong: list[str]


def score(
    change: Callable[[Sample], tuple[bytes, int]], chosen: Iterable[Sample] = SAMPLES, named: bool = True
) -> Score:
    """`change` gives the log to read and the number of its root line. `named`: the engine is told."""
    hits, count, wrong = [0, 0, 0], 0, []
    for sample in chosen:
        log, root = change(sample)
        found = read(log, sample.engine if named else "")
        right = (
            found.code == ("" if sample.healthy else sample.code),
            sample.healthy or (found.root_line is not None and abs(found.root_line - root) <= 1),
            found.phase == sample.phase,
        )
        count += 1
        hits = [hit + good for hit, good in zip(hits, right, strict=True)]
        if not all(right):
            wrong.append(
                f"{sample.name} {sample.code} {sample.phase} {root}: {found.code} {found.phase} {found.root_line}"
            )
    return Score(hits[0] / count, hits[1] / count, hits[2] / count, wrong)
