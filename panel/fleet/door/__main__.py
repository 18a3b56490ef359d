"""`python -m panel.fleet.door --dir DIR --bind ADDRESS:PORT`: the door of this host, kept by its agent.

    DIR/open.json            what is open; the agent writes it, this process only reads it
    DIR/door.crt, door.key   made at the first start, 0600
    DIR/lock                 held by the one door of this folder that listens
    DIR/state.json           who and where it is, for the agent

A port that is taken is not the end: the next free one is used, up to SPAN further. It outlives the agent, and ends
when neither agent nor engine is left for a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import os
import resource
import socket
import sys
import time
from pathlib import Path

from panel.fleet.agent import loglines, private
from panel.fleet.agent.procs import Ident
from panel.fleet.door import needed
from panel.fleet.door.host import Book, HostDoor
from panel.fleet.door.limits import Limits
from panel.fleet.door.mark import code_mark
from panel.fleet.door.sparse import Sparse
from panel.fleet.door.upstream import notice_a_cut

log = logging.getLogger("berth.door")

SPAN = 100  # ports that are tried, from the wanted one on
LOCK_S = 5.0  # a door that leaves lets go of the lock before it has finished its last answers
NO_PORT, HELD = 3, 4  # exit codes


def split(bind: str) -> tuple[str, int]:
    """ "0.0.0.0:8443", "[::]:8443" → host, port. Raises ValueError."""
    host, colon, port = bind.rpartition(":")
    number = int(port)
    if not colon or not host or not 0 < number < 65536:
        raise ValueError(bind)
    return host.strip("[]"), number


def listen(bind: str, before: int) -> socket.socket:
    """A listening socket: the port of last time where it is free, else the first free one. Raises OSError."""
    host, first = split(bind)
    last = min(65535, first + SPAN)
    for port in [*([before] if first <= before <= last else []), *range(first, last + 1)]:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        notice_a_cut(sock, Limits.unheard_s)  # accepted connections take it over, and this:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does not for a listener given to it: 40 ms
        try:
            sock.bind((host, port))
            sock.listen(1024)
        except OSError as exc:
            sock.close()
            if exc.errno not in (98, 13):  # EADDRINUSE, EACCES: the next one may do
                raise
        else:
            sock.setblocking(False)
            return sock
    raise OSError(98, f"no free port from {first} to {last}")


def take_lock(folder: Path) -> int:
    """The handle of the held lock, -1 when another door has it for good."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > end:
                return -1
            time.sleep(0.02)


def port_of_last_time(state: Path) -> int:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(state.read_text())["port"])
    return 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m panel.fleet.door", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--bind", required=True, metavar="ADDRESS:PORT")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(loglines.Plain("%(asctime)s %(name)s: %(message)s"))
        handler.addFilter(Sparse())  # its log is a file, and whoever reaches the port can make it say something
    # Strangers hold connections too, until they have shown no key: the few that a shell allows would be theirs soon.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    folder: Path = args.dir
    lock = take_lock(folder)
    if lock < 0:
        log.error("another door of %s listens", folder)
        return HELD
    # After the lock: importing the server is most of the start, and nobody should wait for it twice.
    from panel.fleet.door import serve

    tls = serve.make_certificate(folder)
    try:
        sock = listen(args.bind, port_of_last_time(folder / "state.json"))
    except (OSError, ValueError) as exc:
        log.error("no door at %s: %s", args.bind, exc)
        return NO_PORT
    me = Ident.of(os.getpid())
    state = {
        "process": me.dump() if me else None,
        "bind": args.bind,
        "port": sock.getsockname()[1],
        "certificate": serve.fingerprint(tls[0]),
        "code": code_mark(),
    }
    needed.watch(folder, Book(folder / "open.json"))
    app = HostDoor(Book(folder / "open.json"))
    server = serve.Server(serve.config(app, tls), lambda: fcntl.flock(lock, fcntl.LOCK_UN))
    private.write(folder / "state.json", json.dumps(state), durable=False)
    server.run(sockets=[sock])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
