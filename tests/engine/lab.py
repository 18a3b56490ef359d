"""Where real engines are made to fail: as processes of their own or through a whole Berth, two at a time.

A story is a generator that stops whenever it has to wait; the lab goes round between the stories under way. An engine
uses one core while it starts, so that two fill a small machine.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from deployments import applying, queries, remedies, services
from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.result import Diagnosis, Evidence
from deployments.diagnosis.told import sentence
from deployments.fix_words import title
from deployments.mending.fix import Fix
from deployments.wording import words
from panel.fleet import logstore
from panel.fleet.agent.flag_schema import probe_env
from panel.fleet.models import Runtime
from tests.e2e.stack import Stack
from tests.waiting import PATIENCE, free_port

log = logging.getLogger(__name__)
START_S = 150.0  # an idle machine of two cores needs 30 s beside another start
AT_ONCE = 2
# The core does the worker's part, as it does where a person sets this: a third of a start on a CPU is its imports.
ONE_PROCESS_LESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
Story = Generator[None, None, "Outcome"]


@dataclass
class Told:
    """What is said of a failed start. `root` is the text of the line that proves it."""

    code: str
    phase: str
    root: str
    title: str
    why: str = ""
    fixes: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""


def told_short(end: Outcome | Exception) -> str:
    """One line of it, for whoever waits."""
    if isinstance(end, Exception):
        return str(end)[:1500]
    said = end.told
    return f"{said.code} {said.phase} | {said.root[:160]} | {end.refused} | {end.offered} | ready: {end.ready}"


@dataclass
class Outcome:
    """What came of a story: what was said, the first fix as the page says it, the sentence by which Berth refuses the
    same, whether the second start was ready.
    """

    told: Told
    offered: str = ""
    refused: str = ""
    ready: bool = False
    by_click: bool = False
    deployment: Any = None


def waits(what: Callable[[], Any], why: str, timeout: float = START_S) -> Generator[None, None, Any]:
    """Go on when `what()` is true; its value. AssertionError when that takes too long."""
    end = time.monotonic() + timeout * PATIENCE
    while not (value := what()):
        assert time.monotonic() < end, f"not within {timeout:g} s: {why} (last: {value!r})"
        yield
    return value


def together(stories: Mapping[str, Callable[[], Story]], most: int = AT_ONCE) -> dict[str, Outcome | Exception]:
    """Run the stories, some at a time, in their order; how each ended."""
    ended: dict[str, Outcome | Exception] = {}
    began: dict[str, float] = {}
    waiting, going = deque(stories.items()), dict[str, Story]()
    while waiting or going:
        while waiting and len(going) < most:
            name, begin = waiting.popleft()
            going[name], began[name] = begin(), time.monotonic()
        for name, story in list(going.items()):
            try:
                next(story)
                continue
            except StopIteration as end:
                ended[name] = end.value
            except Exception as exc:
                ended[name] = exc
            del going[name]
            log.warning("%s took %.0f s: %s", name, time.monotonic() - began[name], told_short(ended[name]))
        time.sleep(0.02)
    return ended


class Raw:
    """`vllm serve` as a person would type it, without a panel."""

    def __init__(
        self, lab: Lab, name: str, model: Path | str, *flags: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.path = lab.folder / f"{name}.log"
        argv = [lab.vllm, "serve", str(model), "--host", "127.0.0.1", "--port", str(free_port())]
        argv += ["--served-model-name", name, "--max-num-seqs", "8", "--enforce-eager", *flags]
        known = probe_env() | {
            "HOME": str(lab.berth.folder),
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
        with self.path.open("wb") as out:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**known, "VLLM_LOGGING_LEVEL": "INFO", **(env or {})},
                cwd=lab.folder,
                start_new_session=True,
            )
        self.began = time.monotonic()
        lab.processes.append(self.process)

    @property
    def log(self) -> bytes:
        return self.path.read_bytes()

    def over(self) -> bool:
        return self.process.poll() is not None

    def fails(self, **evidence: Any) -> Generator[None, None, Told]:
        """Wait for its end; what the rules say of it."""
        yield from waits(self.over, f"{self.path.stem} ended")
        code = self.process.returncode
        reader = Reader()
        reader.feed(self.log)
        ended = {"signal": -code} if code < 0 else {"exit_code": code}
        return told(diagnose(reader, **ended, evidence=Evidence(**evidence)), self.log)


def told(found: Diagnosis, log: bytes) -> Told:
    fixes = [fix.as_dict() for fix in found.fixes]
    text = log.decode(errors="replace")
    why = sentence(found.why, found.told)
    return Told(found.code, found.phase, found.root, found.title, why, fixes, text)


class Lab:
    """A Berth with tiny models, and engines beside it. Models are made before they are looked for, once."""

    def __init__(self, berth: Stack, folder: Path) -> None:
        self.berth, self.folder = berth, folder
        self.models = folder / "models"
        self.models.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def vllm(self) -> str:
        return str(Runtime.objects.filter(present=True, engine="vllm").first().executable)

    def close(self) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait(10)

    # --- through the panel ---

    def deploy(self, model: Path, **spec: Any) -> Any:
        never = {"restart": {"policy": "never"}, "kv_cache_gib": 1, "grace_s": 0.5, "env": ONE_PROCESS_LESS}
        return self.berth.deploy(model.name, str(model), **{**never, **spec})

    def until(self, row: Any, state: str) -> Generator[None, None, None]:
        """Wait for this state; another one in which it rests is a failure of the test."""
        yield from waits(lambda: self.berth.state(row) in (state, "failed", "ready"), f"{row.name} is {state}")
        assert row.state == state, (row.name, row.state, row.reason, self.log_of(row)[-3000:])

    def fails(self, row: Any) -> Generator[None, None, Told]:
        """Wait for the failure of a deployment; what its page says."""
        yield from self.until(row, "failed")
        known, said = row.reason.get("params") or {}, words(row.reason)
        block = row.run.error_block if row.run is not None else {}
        lines = dict(zip(block.get("numbers", ()), block.get("lines", ()), strict=False))
        code, root = known.get("cause") or row.reason.get("code", ""), lines.get(known.get("root_line"), "")
        assert said is not None
        return Told(code, known.get("phase", ""), root, said.text, str(said.hint), log=self.log_of(row))

    def refusal(self, row: Any) -> str:
        """The sentences by which nothing was started, with those of each place."""
        listed = (row.reason.get("params") or {}).get("candidates") or []
        return " ".join(said.text for reason in (row.reason, *listed) if (said := words(reason)) is not None)

    def first_fix(self, row: Any) -> tuple[Fix | None, str]:
        """The first fix of the page, and its title."""
        first = next(iter(remedies.of(queries.one(row.pk))), None)
        return first, title(first)[0] if first is not None else ""

    def again(self, row: Any, said: Told, refused: str = "") -> Generator[None, None, Outcome]:
        """The first fix by its click, or Start where it was done elsewhere; and a second start."""
        first, offered = self.first_fix(row)
        outcome = Outcome(said, offered, refused, by_click=first is not None and first.by_click, deployment=row)
        row, before = queries.one(row.pk), row.run_id
        if first is not None and first.by_click:
            applying.apply(row, first.key, base_number=row.revision.number, actor=None)
        else:
            services.start(row, actor=None)
        begun = lambda: self.berth.state(row) and row.run_id not in (None, before)  # noqa: E731
        yield from waits(begun, f"a second run of {row.name} began: {offered}")
        outcome.ready = yield from self.gets_ready(row)
        outcome.deployment = row
        return outcome

    def gets_ready(self, row: Any) -> Generator[None, None, bool]:
        """Wait until it answered, then stop it and wait for the proof: memory is for the next story."""
        yield from self.until(row, "ready")
        assert row.run.answer["answer"], row.run.answer
        services.stop(row, actor=None)
        yield from waits(lambda: self.berth.state(row) == "stopped", f"{row.name} is stopped")
        return True

    def log_of(self, row: Any) -> str:
        if row.run is None or row.run.job_id is None:
            return ""
        return b"".join(part.data for part in logstore.read_all(row.run.job_id)).decode(errors="replace")

    def log_now(self, row: Any) -> str:
        """As it lies on the host: it reaches the panel a moment later."""
        found = (self.berth.data / "agent" / "jobs").glob(f"{row.run_id}/*")
        return "".join(path.read_text("utf-8", "replace") for path in found if path.name == "log")

    def processes_of(self, row: Any) -> Iterable[psutil.Process]:
        return self.berth.job_processes(row.run_id)
