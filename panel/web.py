"""The web process: `python -m panel.web` serves panel.asgi with uvicorn on the address that BERTH_BIND names.

Bound to one address of the outside it listens on loopback as well: the panel's own parts (probe, local agent) speak
plain HTTP and do so only inside this machine.
"""

import os
import socket
import sys
from typing import Any

import uvicorn

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "panel.settings")

from django.conf import settings

from panel.core.network import listen_addresses
from panel.fleet.door.serve import HeadLimit

GRACE_S = 3  # open streams end after so long when the process is told to stop
BACKLOG = 2048


def bound(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError (the start looked before, so this is a race that someone else won)."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def config(app: Any = "panel.asgi:application") -> uvicorn.Config:
    proxied = settings.BERTH_BEHIND_PROXY
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=HeadLimit,
        lifespan="on",  # a start that fails must fail, not go on without the door
        ws="none",
        access_log=False,
        log_config=None,  # its lines go the way of all others
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_S,
        proxy_headers=proxied,
        forwarded_allow_ips=settings.BERTH_PROXY_ADDRESSES if proxied else [],
    )


def main() -> int:
    try:
        sockets = [bound(*address) for address in listen_addresses(settings.BERTH_BIND_HOST, settings.BERTH_PORT)]
    except OSError as exc:
        sys.stderr.write(f"{settings.BERTH_BIND_HOST}:{settings.BERTH_PORT}: {exc.strerror}\n")
        return 1
    server = uvicorn.Server(config())
    server.run(sockets=sockets)
    return 0 if server.started else 1


if __name__ == "__main__":
    raise SystemExit(main())
