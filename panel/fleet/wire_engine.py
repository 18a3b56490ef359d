"""Orders about an engine's command: run it, or only have the engine itself check it. Part of the wire, see wire.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from panel.fleet.wire_base import Message

MAX_FILES = 1000  # of a model, to be compared
MAX_CODE = 2000  # files of a model's own code, of all its copies


class Command(Message):
    """One command line of an engine. `argv[0]` must be the executable of a registered runtime of this host.

    `gpu_uuids` empty means no GPU is visible to the process. `code` are the model's own files of code that may run, as
    (name, SHA-256 in hex); the host starts with no others (agent/own_code.py). None: from a panel that names none.
    """

    argv: list[str] = Field(min_length=1, max_length=500)
    env: dict[str, str] = {}
    secret_env: dict[str, str] = {}
    gpu_uuids: list[str] = []
    model_path: str
    needs_avx2: bool = False
    allow_remote_code: bool = False
    code: list[tuple[str, str]] | None = Field(default=None, max_length=MAX_CODE)


class EngineTask(Command):
    """Run a server process.

    `log_head_mib` and `log_tail_mib` bound the log on the host's disk: the first and the newest part are kept.
    """

    kind: Literal["engine"] = "engine"
    log_head_mib: int = 8
    log_tail_mib: int = 56


class CheckTask(Command):
    """Have the engine check its command without loading weights: its own start, until its configuration stands.

    Under the same rules and environment as a start; what a start could not run is refused here as well. `key` is the
    panel's own name for what is checked. Result: one dict with `verdict` (passed; refused; unknown: this engine cannot
    be asked so), `exit_code` or `signal`, `output` (its newest lines), `seconds`, and `host` (what it met there:
    shm_mib, open_files, disks as {what: free MiB}); `files`: which `files` of the order (name within the model's
    folder, bytes) are missing or of another size, as dicts with `name`, `was`, `now` (None: missing). An older agent
    tells none.
    """

    kind: Literal["check"] = "check"
    key: str = Field(default="", max_length=64)
    files: list[tuple[str, int]] = Field(default=[], max_length=MAX_FILES)
