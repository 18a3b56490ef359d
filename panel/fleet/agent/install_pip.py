"""Run pip for an install: its settings, what it prints (masked), how far it is.

Addresses reach pip by environment variables alone: they stand in no command line, no file and no log.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from panel.fleet.agent.install_plan import Request, canonical
from panel.fleet.agent.provision import SetupProblem

KEEP_LINES = 600  # of a command's output, for its explanation
MAX_LINE = 4000  # characters
LONGEST_READ = 1 << 16  # of one read; what is longer comes as several lines
# The host owner's own settings of pip and of the way out, which an order adds to.
HOST_SETTINGS = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_TRUSTED_HOST",
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_PROXY",
    "PIP_CONFIG_FILE",
    "PIP_CONSTRAINT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_RETRIES",
    "NETRC",
    "REQUESTS_CA_BUNDLE",
    "ALL_PROXY",
    "all_proxy",
    "XDG_CONFIG_HOME",
    "XDG_CONFIG_DIRS",
)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s:]*(:[^/@\s]*)?@")
_WHEEL = re.compile(r"^\s*(?:Downloading|Using cached|Processing)\s+(?P<path>\S+\.whl)(?P<rest>\.metadata)?")
_RAW = re.compile(r"^Progress (\d+) of (\d+)$")
MIB = 1 << 20


@dataclass
class Teller:
    """Where an install says what it does: `line` takes text without its end, `progress` how far it is.

    `progress` takes phase, done, total and note, as wire.Progress has them.
    """

    line: Callable[[str], None]
    progress: Callable[[str, int, int, str], None] = lambda phase, done, total, note: None
    secrets: tuple[str, ...] = ()

    def say(self, text: str) -> None:
        self.line(mask(text, self.secrets))

    def phase(self, phase: str, done: int = 0, total: int = 0, note: str = "") -> None:
        self.progress(phase, done, total, mask(note, self.secrets)[:200])


def mask(text: str, secrets: Iterable[str]) -> str:
    """Without credentials: the known ones wherever they stand, others where an address shows them."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _CREDENTIALS.sub("***@", text)


def secrets_in(addresses: Iterable[str]) -> tuple[str, ...]:
    """The user names with passwords, passwords, tokens and query strings of addresses, as written and as decoded."""
    found: set[str] = set()
    for address in (part for text in addresses for part in text.split()):
        with contextlib.suppress(ValueError):  # a broken address holds nothing that pip could use
            parts = urlsplit(address)
            login = parts.netloc.rpartition("@")[0]
            found.update((login, parts.password or "", parts.query))
            if login and not parts.password:
                found.add(parts.username or "")
    found |= {unquote(secret) for secret in found}
    # A short one would blacken the log everywhere; in an address it is masked by its place.
    return tuple(sorted((secret for secret in found if len(secret) >= 4), key=len, reverse=True))


def settings_of(request: Request, host_env: Mapping[str, str], downloads: Path) -> dict[str, str]:
    """pip's environment. What the order names replaces this host's own setting of the same kind."""
    env = {name: host_env[name] for name in HOST_SETTINGS if host_env.get(name)}
    named = {
        "PIP_INDEX_URL": request.index_url,
        "PIP_EXTRA_INDEX_URL": " ".join(request.extra_urls),
        "PIP_FIND_LINKS": " ".join(request.links),
        "PIP_PROXY": request.proxy,
    }
    env |= {name: value for name, value in named.items() if value}
    if request.wheel_folder:
        env = {name: value for name, value in env.items() if name in ("PIP_CONSTRAINT", "PIP_CONFIG_FILE")}
        env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": request.wheel_folder}
    if env.get("PIP_RETRIES") == "0":  # then pip would not say that a source cannot be reached
        env["PIP_RETRIES"] = "1"
    return env | {
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ONLY_BINARY": ":all:",  # nothing is built, so nothing of a package runs while it is installed
        "PIP_CACHE_DIR": str(downloads),
        "PYTHONUNBUFFERED": "1",
    }


@dataclass
class Counter:
    """How many of the wanted packages came, from pip's lines."""

    teller: Teller
    total: int
    seen: set[str] = field(default_factory=set)
    _current: str = ""
    _told: int = 0

    def feed(self, line: str) -> bool:
        """False for a line that is progress alone and belongs in no log."""
        raw = _RAW.match(line)
        if raw:
            done, size = (int(number) // MIB for number in raw.groups())
            if done >= self._told + 16:  # often enough for a bar, seldom enough for the network
                self._told = done
                self._say("downloading", f"{self._current} {done}/{size} MiB")
            return False
        wheel = _WHEEL.match(line)
        if wheel and not wheel["rest"]:
            name = wheel["path"].replace("\\", "/").rsplit("/", 1)[-1].split("-", 1)[0]
            self._current, self._told = canonical(name), 0
            self.seen.add(self._current)
            self._say("downloading", self._current)
        elif line.startswith("Installing collected packages:"):
            self._say("installing", "")
        return True

    def _say(self, phase: str, note: str) -> None:
        done = min(len(self.seen), self.total) if self.total else len(self.seen)
        self.teller.phase(phase, done, self.total, note)


def run(
    argv: Sequence[str],
    teller: Teller,
    *,
    env: Mapping[str, str],
    timeout_s: float,
    keep: Sequence[int] = (),
    heard: Callable[[str], bool] = lambda line: True,
) -> tuple[int, str]:
    """Run a command, telling each line it prints; returns the exit code and the newest lines, both masked.

    Past `timeout_s` it is killed and SetupProblem raised. `keep` are descriptors that it inherits: it holds our lock.
    """
    teller.say(f"$ {' '.join(argv)}")
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(env),
        pass_fds=tuple(keep),
        text=True,
        errors="replace",
        start_new_session=True,  # pip hands its work to a pip of the new environment: they end together
    )
    late = threading.Event()
    timer = threading.Timer(timeout_s, _expire, (child, late))
    timer.daemon = True
    timer.start()
    try:
        output = _listen(child, teller, heard)
        code = child.wait()
    except BaseException:  # a stop of this job: what it started must not outlive it
        _kill(child)
        child.wait()
        raise
    finally:
        timer.cancel()
        if child.stdout is not None:
            child.stdout.close()
    if late.is_set():
        step = f"{Path(argv[0]).name} {' '.join(argv[1:4])}"
        raise SetupProblem(
            "too_slow",
            f"A step did not end within {timeout_s:.0f} s: {step}.",
            "Try again: what was downloaded is kept.",
            step=step,
            seconds=round(timeout_s),
        )
    return code, output


def _expire(child: subprocess.Popen[str], late: threading.Event) -> None:
    late.set()  # before the kill: who sees the end knows why
    _kill(child)


def _kill(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _listen(child: subprocess.Popen[str], teller: Teller, heard: Callable[[str], bool]) -> str:
    """Tell what the child prints until it closes its output; the newest lines, masked."""
    lines: deque[str] = deque(maxlen=KEEP_LINES)
    assert child.stdout is not None
    for raw in iter(partial(child.stdout.readline, LONGEST_READ), ""):  # a line without an end fills no memory
        line = mask(raw.rstrip("\n")[:MAX_LINE], teller.secrets)
        if heard(line):
            lines.append(line)
            teller.line(line)
    return "\n".join(lines)
