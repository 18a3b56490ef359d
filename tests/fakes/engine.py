"""A small but real engine: a process that behaves like `vllm serve MODEL --host … --port …` and can misbehave on wish.

Standard library only. It parses its arguments by the real engine's own schema (flags.json), prints the lines of
vLLM 0.32 phase by phase, binds its port early and listens late, renames its children as vLLM does, checks
VLLM_API_KEY, answers OpenAI's routes, and stops on TERM.

How it behaves is read from `fake.json` in the model's folder (or `<file>.fake.json` beside a GGUF), then from the
environment variable FAKE_ENGINE (JSON), key by key; `mode` is a name of MODES, other keys are fields of `Fake`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import engine_flood  # type: ignore[import-not-found]
from engine_http import EngineServer  # type: ignore[import-not-found]
from engine_log import Log, phases  # type: ignore[import-not-found]

VERSION = "0.32.0+cpu"
FLAGS = Path(__file__).with_name("flags.json")


@dataclass(frozen=True)
class Fake:
    """What this engine does. Times in seconds."""

    version: str = VERSION
    task: str = "generate"  # generate, embed, score: which routes exist
    phase_s: float = 0.02  # pause before each phase
    shards: int = 2
    graphs: int = 3  # only on a GPU
    text: str = "The capital of France is Paris."
    token_s: float = 0.0  # pause between streamed chunks
    chat_template: bool = True
    answer_after_s: float = 0.0
    answer_status: int = 200
    hangs_at_request: int = 0  # the n-th question and all after it get no answer, while its health is 200
    metrics: str = ""  # a file that steers its /metrics, see engine_metrics.py
    dies_at_request: int = 0  # the n-th question kills it, as a GGUF without a kernel does
    end: str = ""  # exit, traceback, hang, signal, silent; at the phase `end_at`
    end_at: str = "args"  # phase code; "start": before the first line; "ready": once it listens
    end_after_s: float = 0.0
    exit_code: int = 1
    end_signal: int = signal.SIGILL
    error: str = "ValueError: No available memory for the cache blocks."
    longest: int = 0  # tokens of the longest request that its memory holds; 0: any
    ignore_term: bool = False
    stop_s: float = 0.0  # how long an orderly stop takes
    children: int = 0  # renamed workers, the odd ones in their own session
    children_stay: bool = False  # they ignore TERM and outlive the parent
    orphan: bool = False  # one grandchild whose parent has gone
    flood_mib: int = 0  # written to the log at the phase `load`
    ram_mib: int = 0
    flood_plan: str = ""  # once it is ready and this file is there: a flood by that plan, see engine_flood.py
    copies: str = ""  # a folder in which each run keeps what it wrote, and the pids of its processes


MODES: dict[str, dict[str, Any]] = {
    "ok": {},
    "exit_at_once": {"end": "exit", "end_at": "start", "exit_code": 1},
    "traceback": {"end": "traceback", "end_at": "load", "end_after_s": 2.0},
    "oom": {
        "end": "traceback",
        "end_at": "load",
        "error": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity "
        "of 23.58 GiB of which 512.00 MiB is free.",
    },
    "hang": {"end": "hang", "end_at": "load"},
    "answers_500": {"answer_status": 500},
    "answers_late": {"answer_after_s": 60.0},
    "ignores_term": {"ignore_term": True, "children": 2, "children_stay": True},
    "floods": {"flood_mib": 96},
    "forks": {"children": 3, "orphan": True, "children_stay": True},
    "dies_when_ready": {"end": "exit", "end_at": "ready", "end_after_s": 1.0, "exit_code": 1},
    "dies_at_request": {"dies_at_request": 1},
    "exits_zero": {"end": "exit", "end_at": "ready", "end_after_s": 0.5, "exit_code": 0},
    "sigill": {"end": "signal", "end_at": "start", "end_signal": int(signal.SIGILL)},
    "killed": {"end": "signal", "end_at": "load", "end_signal": int(signal.SIGKILL)},
    "no_template": {"chat_template": False},
    "embed": {"task": "embed"},
    "score": {"task": "score"},
}


def read_fake(model: str) -> Fake:
    """The behaviour that the model's folder and the environment ask for; an unknown key ends the process."""
    asked: dict[str, Any] = {}
    path = Path(model)
    beside = path / "fake.json" if path.is_dir() else path.with_name(path.name + ".fake.json")
    texts = [os.environ.get("FAKE_ENGINE_DEFAULTS", "")]
    texts += [beside.read_text(encoding="utf-8")] if model and beside.is_file() else []
    texts += [os.environ.get("FAKE_ENGINE", "")]
    for text in filter(None, texts):
        given = json.loads(text)
        asked |= MODES[given.pop("mode", "ok")] | given
    unknown = set(asked) - {field.name for field in fields(Fake)}
    if unknown:
        sys.exit(f"fake engine: unknown keys {sorted(unknown)}")
    return replace(Fake(), **asked)


class _Shown:
    """A default that only looks like the real one."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _type(row: dict[str, Any]) -> Callable[[str], Any]:
    """What converts the text of an argument; it bears the real one's name."""
    known: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "loads": json.loads}

    def convert(text: str) -> Any:
        return text

    convert.__name__ = row["type"]
    return known.get(row["type"], convert)


def serve_parser(parser: argparse.ArgumentParser | None = None) -> argparse.ArgumentParser:
    """The parser of `vllm serve`, made from the real one's schema; a given one also gets its groups and defaults."""
    described = parser is not None
    if parser is None:
        parser = argparse.ArgumentParser(prog="vllm serve", usage="vllm serve [model_tag] [options]", add_help=False)
    groups: dict[str, Any] = {}
    for row in json.loads(FLAGS.read_text(encoding="utf-8")):
        names = [flag for flag in row["flags"] if not flag.startswith("--no-")]
        if "--help" in names:
            continue
        options: dict[str, Any] = {"dest": row["dest"], "default": _Shown(row["default"]) if described else None}
        if row["nargs"] == "0":
            options["action"] = argparse.BooleanOptionalAction if names != row["flags"] else "store_true"
        else:
            options |= {"nargs": None if row["nargs"] == "None" else row["nargs"]}
            options |= {"type": None if row["type"] == "None" else _type(row)}
            if row["choices"]:
                options["choices"] = [(options["type"] or str)(choice) for choice in row["choices"]]
        where = parser
        if described and row["group"] not in ("options", "positional arguments"):
            where = groups.setdefault(row["group"], None) or parser.add_argument_group(row["group"])
            groups[row["group"]] = where
        if names:
            where.add_argument(*names, help=row["help"] if described else None, **options)
        else:
            where.add_argument("model_tag", nargs="?")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Arguments after `serve`; exits with 2 and the real engine's words. Underscores in names become dashes."""
    words = ["--" + w[2:].split("=", 1)[0].replace("_", "-") + w[2:].partition("=")[1] + w[2:].partition("=")[2]
             if w.startswith("--") else w for w in argv]  # fmt: skip
    known, unknown = serve_parser().parse_known_args(words)
    if unknown:
        sys.stderr.write("usage: vllm [-h] [-v]\n            {chat,complete,serve,bench,run-batch}\n            ...\n")
        sys.stderr.write(f"vllm: error: unrecognized arguments: {' '.join(unknown)}\n")
        sys.exit(2)
    return known


# --- names and children ----------------------------------------------------------------------------------------------


def rename(title: str) -> None:
    """Change the command line of this process in place, as setproctitle does.

    Without SPT_NOENV=1 that overwrites the environment that /proc shows, which is what hides a child from its owner.
    """
    stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()
    arg_start, arg_end, env_start, env_end = (int(stat[i]) for i in (45, 46, 47, 48))
    end = arg_end if os.environ.get("SPT_NOENV") else max(arg_end, env_end)
    room = end - arg_start
    if arg_start and room > 0 and env_start:
        ctypes.memmove(arg_start, title.encode()[: room - 1].ljust(room, b"\0"), room)
    ctypes.CDLL(None).prctl(15, title.encode()[:15], 0, 0, 0)  # PR_SET_NAME


def note_pid(copies: str) -> None:
    """Keep this process's number and start beside the copies, where no renaming hides it."""
    if copies:
        ticks = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[19]
        with Path(copies, os.environ.get("BERTH_JOB", "none") + ".pids").open("a", encoding="ascii") as file:
            file.write(f"{os.getpid()} {ticks}\n")


def child(title: str, *, own_session: bool, stays: bool, orphan: bool = False, copies: str = "") -> int:
    """Fork a process that does nothing until it is ended or its parent goes; returns its pid."""
    parent = os.getpid()
    # Until the child has its own manner, TERM waits: it would be swallowed by the parent's handler, which it inherits.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    ready, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        os.read(ready, 1)  # the child has its name, or is gone
        os.close(ready)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if orphan:
            os.waitpid(pid, 0)
        return pid
    if orphan:
        if os.fork():
            os._exit(0)
        parent = -1
    note_pid(copies)
    if own_session:
        os.setsid()
    rename(title)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if stays else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.write(told, b"1")
    os.close(told)
    os.close(ready)
    while stays or orphan or os.getppid() == parent:
        time.sleep(0.05)
    os._exit(0)


def fork_children(fake: Fake) -> list[int]:
    pids = []
    for number in range(fake.children):
        title = "VLLM::EngineCore" if number == 0 else f"VLLM::Worker_TP{number - 1}"
        pids.append(child(title, own_session=number % 2 == 1, stays=fake.children_stay, copies=fake.copies))
    if fake.orphan:
        child("VLLM::Router", own_session=True, stays=fake.children_stay, orphan=True, copies=fake.copies)
    return pids


# --- the run ---------------------------------------------------------------------------------------------------------


class Told:
    """Set by a signal handler, waited for by the main thread. A threading.Event would deadlock there: the handler runs
    inside the wait that holds the event's lock.
    """

    def __init__(self) -> None:
        self._told = False

    def set(self) -> None:
        self._told = True

    def is_set(self) -> bool:
        return self._told

    def wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self._told and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
        return self._told


class Engine:
    """One run: from the first line to the end."""

    def __init__(self, fake: Fake, arguments: argparse.Namespace, model: str) -> None:
        self.fake, self.arguments, self.model = fake, arguments, model
        cpu = os.environ.get("VLLM_TARGET_DEVICE") == "cpu"
        self.device = "cpu" if cpu else "cuda"
        self.stopping = Told()
        self.pids: list[int] = []
        names = arguments.served_model_name or [model]
        self.log = Log(fake.copies, names[0])
        quiet = (arguments.disable_access_log_for_endpoints or "").split(",")
        self.server = EngineServer(fake, names, os.environ.get("VLLM_API_KEY", ""), self.log, quiet)
        self.memory = bytearray(0)

    def too_long(self) -> Fake:
        """It ends as the real one does, where one request of the asked length does not fit."""
        asked, longest = str(self.arguments.max_model_len), self.fake.longest
        if not longest or not asked.isdigit() or int(asked) <= longest:
            return self.fake
        error = (
            f"ValueError: To serve at least one request with the model's max seq len ({asked}), (2.0 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (1.0 GiB). Based on the available memory, the "
            f"estimated maximum model length is {longest}."
        )
        return replace(self.fake, end="traceback", end_at="load", error=error)

    def run(self) -> int:
        self.fake = self.too_long()
        signal.signal(signal.SIGTERM, self.on_term)
        signal.signal(signal.SIGINT, self.on_term)
        note_pid(self.fake.copies)
        self.maybe_end("start")
        listener = self.bind()
        for code, write in phases(self.log, self.fake, self.model, self.arguments, self.device):
            self.stopping.wait(self.fake.phase_s)
            if self.stopping.is_set():
                return self.stop()
            write()
            while self.log.held(code) and not self.stopping.wait(0.02):
                pass
            if code == "dist":
                self.pids = fork_children(self.fake)
            if code == "load":
                self.memory = bytearray(os.urandom(1) * (self.fake.ram_mib << 20))
                self.flood()
            self.maybe_end(code)
        listener.listen(128)
        self.server.serve(listener)
        self.log.plain(f"INFO:     Started server process [{os.getpid()}]")
        self.log.plain("INFO:     Waiting for application startup.")
        self.log.plain("INFO:     Application startup complete.")
        self.maybe_end("ready")
        plan = self.fake.flood_plan
        while not self.stopping.wait(0.05):
            if plan and os.path.exists(plan):  # noqa: PTH110 - a string that may be empty
                engine_flood.flood(plan)
                plan = ""
            if self.server.fatal.is_set():
                return self.die_at_request()
        return self.stop()

    def bind(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.arguments.host or "0.0.0.0", self.arguments.port or 8000))
        except OSError as exc:
            self.log.plain(f"Traceback (most recent call last):\nOSError: [Errno {exc.errno}] {exc.strerror}")
            sys.exit(1)
        return listener

    def on_term(self, _number: int, _frame: object) -> None:
        if not self.fake.ignore_term:
            self.stopping.set()

    def maybe_end(self, code: str) -> None:
        """Do the wanted misfortune when its phase has come. A hang lasts until TERM."""
        fake = self.fake
        if not fake.end or fake.end_at != code:
            return
        if self.stopping.wait(fake.end_after_s) or fake.end == "hang":
            while not self.stopping.wait(0.05):
                pass
            sys.exit(self.stop())
        if fake.end == "signal":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), fake.end_signal)
        if fake.end == "traceback":
            self.log.traceback(fake.error, "core.py:1110", "EngineCore")
            self.log.plain("RuntimeError: Engine core initialization failed. See root cause above. "
                           "Failed core proc(s): {}")  # fmt: skip
        self.end_children()
        os._exit(fake.exit_code)

    def flood(self) -> None:
        """Write the wanted mebibytes as log lines of 1 KiB."""
        line = ("x" * 900).ljust(1000)
        for number in range(self.fake.flood_mib * 1024):
            self.log.plain(f"DEBUG flood {number:010d} {line}"[:1023])

    def die_at_request(self) -> int:
        self.log.traceback("ValueError: Triton dequant kernels require CUDA tensors", "core.py:1512", "EngineCore")
        self.log.error(
            "async_llm.py:906", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
        )
        self.end_children()
        return self.fake.exit_code

    def stop(self) -> int:
        self.log.info("launcher.py:254", "[shutdown] API server: shutdown triggered")
        time.sleep(self.fake.stop_s)
        self.end_children()
        self.log.plain("INFO:     Shutting down\nINFO:     Waiting for application shutdown.")
        self.log.plain("INFO:     Application shutdown complete.")
        return 0

    def end_children(self) -> None:
        """End what it forked, unless they are meant to stay."""
        for pid in [] if self.fake.children_stay else self.pids:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)


def no_such_model(model: str) -> int:
    """The real engine takes a missing path for a name on the hub; its words mislead."""
    text = f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{model}'."
    Log().plain(f"Traceback (most recent call last):\nhuggingface_hub.errors.HFValidationError: {text}")
    return 1


def configure(arguments: argparse.Namespace) -> None:
    """As the real one builds its configuration before anything else, where its package is beside it."""
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
    except ImportError:
        return
    AsyncEngineArgs.from_cli_args(arguments).create_engine_config()


def main(argv: list[str]) -> int:
    """The command line of `vllm`. `--version` and `serve` are known, nothing else."""
    if argv[:1] in (["--version"], ["-v"]):
        sys.stdout.write(read_fake("").version + "\n")
        return 0
    if argv[:1] != ["serve"]:
        sys.stderr.write("usage: vllm [-h] [-v] {serve} ...\n")
        return 2
    arguments = parse(argv[1:])
    model = arguments.model_tag or arguments.model or ""
    if not Path(model).exists():
        return no_such_model(model)
    configure(arguments)
    return Engine(read_fake(model), arguments, model).run()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # open connections do not hold a dying engine
