"""Become an agent of a panel, and what else is asked of it from the shell: check, update, leave."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from panel.fleet.agent import config, door_process, private, procs, seat
from panel.fleet.agent.client import Away, Client, Rejected
from panel.fleet.agent.config import Config, ConfigError, check_panel_url
from panel.fleet.agent.files import Registry
from panel.fleet.agent.gpus import Reading
from panel.fleet.agent.jobs import Jobs
from panel.fleet.agent.journal import Journal
from panel.fleet.agent.pins import is_pin
from panel.fleet.agent.version import VERSION
from panel.fleet.wire import JoinReply, JoinRequest, Report

log = logging.getLogger("agent")

KNOWN, NOT_KNOWN, NO_ANSWER = 0, 1, 4  # exit codes of --check and --leave
SCRIPT = "join/berth-join.sh"
MAX_SCRIPT = 1 << 20


@dataclass(frozen=True)
class Panel:
    """Where the panel is and how its certificate is checked."""

    url: str
    ca_file: str | None = None
    pin: str = ""
    plain_http: bool = False

    def settings(self) -> dict[str, Any]:
        """As agent.json has it."""
        more: dict[str, Any] = {"ca_file": self.ca_file} if self.ca_file else {}
        more |= {"panel_pin": self.pin} if self.pin else {}
        return {"panel": self.url, "token_file": "token", **more, **({"plain_http": True} if self.plain_http else {})}


def join(folder: Path, panel: Panel, code: str) -> JoinReply:
    """Trade a one-time code for this host's token and write the settings. Raises ConfigError with one sentence.

    Settings that the owner of this host made are kept; who said nothing of package sources takes those that the panel
    names now, and none that it may name once it is somebody else's. No agent may run for this folder (Busy): it would
    go on with the old token, and with another host's memory.
    """
    check_panel_url(panel.url, plain_http=panel.plain_http)
    if panel.pin and not is_pin(panel.pin):
        raise ConfigError("--pin must be sha256: and 64 hexadecimal digits.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    journal = Journal(folder)
    journal.lock(wait_s=2.0)
    try:
        _other_panel(folder, panel.url)
        reply = _ask(folder, panel, code)
        path = folder / "agent.json"
        settings = json.loads(path.read_text()) if path.exists() else {}
        if settings.get("host_id", reply.host_id) != reply.host_id:
            _become_another(folder, journal)
        if reply.install_sources is not None:  # what the owner said before counts more
            settings.setdefault("install_sources", reply.install_sources)
        kept = {k: v for k, v in settings.items() if k not in ("ca_file", "panel_pin", "plain_http")}
        private.write(folder / "token", reply.token + "\n")
        private.write(path, json.dumps({**kept, **panel.settings(), "host_id": reply.host_id}, indent=2) + "\n")
    finally:
        journal.close()
    return reply


def _ask(folder: Path, panel: Panel, code: str) -> JoinReply:
    client = Client(
        Config(folder=folder, panel=panel.url, ca_file=panel.ca_file, panel_pin=panel.pin, plain_http=panel.plain_http)
    )
    request = JoinRequest(code=code, hostname=socket.gethostname(), agent_version=VERSION)
    try:
        raw = client.call("POST", "join", body=request.model_dump_json().encode())
        return JoinReply.model_validate_json(raw or b"")
    except Away as exc:
        raise ConfigError(f"The panel at {panel.url} cannot be reached: {exc}") from exc
    except Rejected as exc:
        raise ConfigError(f"The panel refused the code: {exc}") from exc
    except ValueError as exc:
        raise ConfigError(f"The panel at {panel.url} gave an answer that makes no sense.") from exc
    finally:
        client.close()


def _living(folder: Path) -> list[str]:
    """Jobs of this folder whose processes live, by their marker."""
    if not (folder / "jobs").is_dir():
        return []
    known = {path.name for path in (folder / "jobs").iterdir()}
    return sorted(known & {procs.marker_of(stat.pid) for stat in procs.snapshot().values() if stat.alive})


def _other_panel(folder: Path, url: str) -> None:
    """A host that changes its panel must have stopped what the former one started: nobody else would ever stop it."""
    path = folder / "agent.json"
    before = json.loads(path.read_text()).get("panel", url) if path.exists() else url
    if before != url and (left := _living(folder)):
        raise ConfigError(f"{len(left)} job(s) of the panel at {before} still run here. Stop them first: --stop-all.")


def _become_another(folder: Path, journal: Journal) -> None:
    """Another host's jobs are not ours (a copied machine): what is over is dropped.

    What lives is kept, so that the agent can stop it: it is in no work of the new host. Of a folder that was copied on
    one machine the original's jobs live too, but their shims hold the locks of the original.
    """
    living = [job_id for job_id in _living(folder) if journal.watched(job_id)]
    for record in journal.jobs.iterdir():
        if record.name not in living:
            journal.drop(record.name)
    for name in ("state.json", "tombstones"):
        (folder / name).unlink(missing_ok=True)


# --- from the shell -------------------------------------------------------------------------------------------------


def _call(settings: Config, method: str, path: str, **more: Any) -> int:
    client = Client(settings)
    try:
        client.call(method, path, **more)
    except Away as exc:
        log.error("The panel cannot be reached: %s", exc)
        return NO_ANSWER
    except Rejected as exc:
        log.error("The panel does not want this agent: %s", exc)
        return NOT_KNOWN
    finally:
        client.close()
    return KNOWN


def check(folder: Path) -> int:
    """Whether the panel takes this host's token: 0 yes, 1 no, 4 no answer."""
    return _call(config.load(folder), "GET", "hello")


def leave(folder: Path) -> int:
    """Tell the panel that this host is taken away, and what became of its jobs; exit codes as `check`."""
    journal = Journal(folder)
    journal.lock(wait_s=10.0)
    settings = replace(config.load(folder), instance=seat.instance(folder))
    door_process.end(folder)
    jobs = Jobs(journal, Registry(settings))
    jobs.adopt()
    jobs.tick()
    door_process.end(folder)  # nobody will come through it any more, whatever still runs behind it
    report = Report(
        agent_version=VERSION,
        sent_at=time.time(),
        rev=jobs.seen_rev,
        jobs=jobs.statuses(Reading()),
    )
    return _call(settings, "POST", "leave", params={"for": "good"}, body=report.model_dump_json().encode())


def update(folder: Path) -> int:
    """Fetch the panel's script by the checked line and run it; it puts its own version in place of this one."""
    owner = folder.stat().st_uid
    if owner != os.getuid():
        raise ConfigError(
            f"{folder} is the user {owner}'s, and nobody else takes a program from that user's settings. Copy the "
            "command from the panel's page for adding a host, with a code for this host."
        )
    settings = config.load(folder)
    client = Client(settings)
    try:
        text = client.call("GET", "script") or b""
    except (Away, Rejected) as exc:
        raise ConfigError(f"The panel at {settings.panel} did not give its script: {exc}") from exc
    finally:
        client.close()
    if not text.startswith(b"#!/bin/sh\n") or len(text) > MAX_SCRIPT:
        raise ConfigError(f"What the panel at {settings.panel} sent is no script.")
    script = folder.parent / "update.sh"
    try:
        script.write_bytes(text)
    except OSError as exc:
        raise ConfigError(f"{script} cannot be written ({exc.strerror}); run this as the user who joined.") from exc
    os.execv("/bin/sh", ["/bin/sh", str(script), "--update", "--dir", str(folder.parent)])
