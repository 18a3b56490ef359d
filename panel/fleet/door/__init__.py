"""The data plane: a pure ASGI reverse proxy at `/v1`. No Django, no database: it knows only a snapshot in memory.

    request → token by hash → allow-listed path → bounded body → `model` read from it → route → engine → bytes back

docs/door.md says what it answers and when. The same code runs in the panel's web process and beside an agent.
"""

from panel.fleet.door.app import Door
from panel.fleet.door.limits import Limits
from panel.fleet.door.snapshot import NoSnapshot, Route, Snapshot, Token, Via, token_hash

__all__ = ["Door", "Limits", "NoSnapshot", "Route", "Snapshot", "Token", "Via", "token_hash"]
