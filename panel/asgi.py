"""The web process: /healthz, the door (/v1) and the agents' line answer by themselves; Django has the pages."""

import asyncio
import os
import sys
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "panel.settings")

from panel.core import garbage
from panel.core.bodies import Bounded
from panel.core.handler import application as pages
from panel.core.trace import Traced

django = Traced(Bounded(pages()))

from deployments.gateway.source import Source  # noqa: E402  (needs the apps)
from panel.core.health import healthz  # noqa: E402
from panel.core.sse import hub  # noqa: E402
from panel.fleet import doors  # noqa: E402
from panel.fleet.door import Door  # noqa: E402
from panel.fleet.line import PREFIX, Line  # noqa: E402

source = Source()
door = Door(source, where=doors.where)
source.used = door.used
line = Line()
agents = Traced(Bounded(line))


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Run under a server with `lifespan` on: it starts and stops what keeps the door's snapshot fresh."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    path = scope["path"]
    if path == "/v1" or path.startswith("/v1/"):
        await door(scope, receive, send)
    elif path == "/healthz":
        await healthz(scope, receive, send)
    elif path.startswith(PREFIX):
        await agents(scope, receive, send)
    else:
        await django(scope, receive, send)


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            garbage.settle(asyncio.get_running_loop())
            # A thread that is at work lets go after this long, so that /healthz, streams and the door wait little.
            sys.setswitchinterval(0.001)
            source.start()
            await send({"type": "lifespan.startup.complete"})
        else:
            await source.stop()
            door.close()
            line.close()
            await hub.aclose()
            await send({"type": "lifespan.shutdown.complete"})
            return
