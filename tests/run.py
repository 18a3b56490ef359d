"""`make test`: every part of the tests in turn, cheap ones first, and at the end one line for each.

    python -m tests.run [pytest arguments]

A part that cannot run here is named loudly; with BERTH_TEST_ALL=1 it is a failure. What failed in the whole run and
passes alone is named as unsteady: a busy machine should not hide which tests are wrong and which are only impatient.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "test-output"
REQUIRE_ALL = os.environ.get("BERTH_TEST_ALL") == "1"
PG15 = Path("/usr/lib/postgresql/15/bin")
OLDEST = "python3.10"  # that an agent runs on; the panel needs a newer one
TWO = ("-n", "2")  # tests mostly wait
TWO_FILES = (*TWO, "--dist", "loadfile")  # what a file's tests share is costly: a whole Berth
TESTS_FAILED, NOTHING_SELECTED = 1, 5  # pytest's exit codes


@dataclass
class Part:
    """One run of pytest. `closing` is its last line, `left_out` what it could not run and why."""

    name: str
    marks: str
    env: dict[str, str]
    more: tuple[str, ...] = ()  # options and paths of pytest
    code: int = 0
    closing: str = "not run"
    left_out: str = ""
    unsteady: list[str] = field(default_factory=list)

    def run(self, arguments: list[str]) -> None:
        """Run the part; what failed is run once more by itself, and what then passes is named as unsteady."""
        say(f"\n### {self.name}")
        cache = ["-o", f"cache_dir={OUTPUT / 'cache' / self.slug}"]
        lines = self._pytest(["--cache-clear", *cache, *self.more, *arguments], self.slug)
        if self.code == TESTS_FAILED:
            say(f"\n### {self.name}: what failed, once more")
            first = self.closing
            alone = [*self.more, *arguments, "-n", "0"]
            again = self._pytest(["--lf", "--lfnf=none", *cache, *alone], f"{self.slug}-again")
            if not self.code:
                self.unsteady = [line.split()[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
                self.closing = f"{first}; once more: {self.closing}"
            lines += again
        if self.code == NOTHING_SELECTED:
            self.code, self.left_out = 0, "there are no such tests"
        elif skipped := re.search(r"(\d+) skipped", self.closing):
            self.left_out = f"{skipped[1]} tests were left out; the reasons stand above"

    @property
    def slug(self) -> str:
        return self.name.replace(" ", "-")

    def _pytest(self, arguments: list[str], log: str) -> list[str]:
        """Its output, which is shown and kept as it comes; sets `code` and `closing`."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-m", self.marks, *arguments],
            cwd=ROOT, env={**os.environ, **self.env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        lines = []
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
        self.code = process.wait()
        OUTPUT.mkdir(exist_ok=True)
        (OUTPUT / f"{log}.log").write_text("".join(lines), encoding="utf-8")
        last = next((line for line in reversed(lines) if re.search(r"\bin [\d.]+s", line)), "no closing line\n")
        self.closing = last.strip().strip("= ")
        return lines


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def prepare_engine() -> int:
    """vLLM (CPU) and the small model; minutes the first time, nothing when they are there."""
    say("\n### preparing the engine")
    return subprocess.run([sys.executable, "-m", "panel.fleet.agent.engine_cpu"], cwd=ROOT, check=False).returncode


def oldest_python() -> str:
    """A Python 3.10 with the agent's locked packages; "" where the machine has none or the packages are out of reach."""
    python = OUTPUT / OLDEST / "bin" / "python"
    ready = python.parent.parent / "wanted.txt"
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser().glob("versions/3.10.*/bin/python")
    for base in [shutil.which(OLDEST), *map(str, pyenv)]:
        if base and not subprocess.run([base, "-c", "import venv, ensurepip"], capture_output=True).returncode:
            break
    else:
        return ""
    wanted = subprocess.run([sys.executable, "-m", "panel.lock", "select", "agent"], cwd=ROOT, capture_output=True)
    if not ready.exists() or ready.read_bytes() != wanted.stdout:
        say(f"\n### preparing {OLDEST} for an agent")
        subprocess.run([base, "-m", "venv", "--clear", str(python.parent.parent)], check=True)
        new = ready.with_suffix(".new")
        new.write_bytes(wanted.stdout)
        pip = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "-r", str(new)]
        if subprocess.run(pip).returncode:
            return ""
        new.rename(ready)
    return str(python)


def parts() -> list[Part]:
    alone = "not integration and not browser and not engine"
    served = "integration and not browser and not engine"
    found = [
        Part("quick tests", f"not slow and {alone}", {}, TWO),
        Part("quick tests with servers", f"not slow and {served}", {}, TWO),
        Part("process trees without servers", f"slow and {alone}", {}, TWO),
        Part("process trees with servers", f"slow and {served}", {}, TWO_FILES),
        Part("tests in a browser", "browser and not engine", {}, TWO),
        Part("tests with a real engine", "engine", {}),
    ]
    if (PG15 / "initdb").exists() and not os.environ.get("DATABASE_URL"):
        on_15 = {"BERTH_TEST_PG_BIN": str(PG15)}
        found.insert(-1, Part("tests on PostgreSQL 15", f"not slow and {served}", on_15, TWO))
    if python := oldest_python():
        only = ("tests/e2e/test_main_job.py",)
        found.insert(-1, Part(f"main job, agent on {OLDEST}", "integration", {"BERTH_TEST_AGENT_PYTHON": python}, only))
    else:
        say(f"\n### no {OLDEST} here: the agent is not run on it")
    return found


def main(arguments: list[str]) -> int:
    begin = time.monotonic()
    todo = parts()
    for part in todo:
        if part.marks == "engine" and REQUIRE_ALL and (code := prepare_engine()):
            part.code, part.closing = code, "the engine could not be prepared"
            continue
        part.run(arguments)
    say(f"\n### what was run, in {(time.monotonic() - begin) / 60:.1f} min")
    for part in todo:
        say(f"  {'ok    ' if not part.code else 'FAILED'}  {part.name}: {part.closing}")
    for part in todo:
        for name in part.unsteady:
            say(f"!!! UNSTEADY !!!  {part.name}: {name} failed, then passed alone; mend it")
    left_out = [part for part in todo if part.left_out]
    for part in left_out:
        say(f"!!! LEFT OUT !!!  {part.name}: {part.left_out}")
    failed = any(part.code for part in todo) or (REQUIRE_ALL and left_out)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
