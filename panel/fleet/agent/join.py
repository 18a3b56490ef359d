"""Become an agent of a panel: trade a one-time code for this host's token, and write the settings."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from panel.fleet.agent.client import Away, Client, Rejected
from panel.fleet.agent.config import Config, ConfigError, check_panel_url
from panel.fleet.agent.loop import VERSION
from panel.fleet.wire import JoinReply, JoinRequest


def write_private(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def join(folder: Path, panel: str, code: str, ca_file: str | None = None) -> int:
    """Returns the host's number at the panel. Raises ConfigError with one sentence."""
    check_panel_url(panel)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    client = Client(Config(folder=folder, panel=panel, ca_file=ca_file))
    request = JoinRequest(code=code, hostname=socket.gethostname(), agent_version=VERSION)
    try:
        raw = client.call("POST", "join", body=request.model_dump_json().encode())
        reply = JoinReply.model_validate_json(raw or b"")
    except Away as exc:
        raise ConfigError(f"The panel at {panel} cannot be reached: {exc}") from exc
    except Rejected as exc:
        raise ConfigError(f"The panel refused the code: {exc}") from exc
    except ValueError as exc:
        raise ConfigError(f"The panel at {panel} gave an answer that makes no sense.") from exc
    finally:
        client.close()
    path = folder / "agent.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    settings.update({"panel": panel, "token_file": "token"}, **({"ca_file": ca_file} if ca_file else {}))
    write_private(folder / "token", reply.token + "\n")
    write_private(path, json.dumps(settings, indent=2) + "\n")
    return reply.host_id
