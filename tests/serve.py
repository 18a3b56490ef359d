"""A web process for tests: `python -m tests.serve module:application [seconds of grace]`.

Binds a free loopback port, prints it on one line, and serves until TERM, as the real one does.
"""

import importlib
import socket
import sys

import uvicorn


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    grace = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    application = getattr(importlib.import_module(module), name)
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(
        application, lifespan="on", access_log=False, log_level="warning", timeout_graceful_shutdown=grace
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
