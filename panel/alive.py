"""Is this process's part alive? For health checks of containers: `python -m panel.alive web`, `… loop`, `… probe`.

Exit code 0 when it answers, 1 with one line when it does not. Loads no Django, since it runs every few seconds.
"""

import http.client
import socket
import sys
from pathlib import Path

from panel.core import env
from panel.core.network import loopback
from panel.core.services_urls import redis_urls

ANSWER_S = 4.0
QUEUES = ("loop", "probe")


class Silent(Exception):
    """It does not answer; the text says what was asked."""


def web() -> None:
    """The web process of this machine answers /healthz."""
    host, port = env.address("BERTH_BIND", "127.0.0.1:8080")
    asked = http.client.HTTPConnection(loopback(host), port, timeout=ANSWER_S)
    try:
        asked.request("GET", "/healthz")
        status = asked.getresponse().status
    except OSError as exc:
        raise Silent(f"the web process does not answer on port {port}: {exc}") from exc
    finally:
        asked.close()
    if status != 200:
        raise Silent(f"the web process answers /healthz with {status}")


def worker(queue: str) -> None:
    """The worker of this queue on this machine answers a ping through the broker."""
    from celery import Celery

    name = f"{queue}@{socket.gethostname()}"
    _url, broker = redis_urls(env.text("REDIS_URL"), env.path("BERTH_DATA", Path(__file__).parents[1] / "var"))
    limits = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S, "max_retries": 1}
    with Celery("alive", broker=broker, set_as_current=False) as app:
        app.conf.broker_transport_options = limits
        try:
            # One answer is enough: without the limit it would wait for more until the time is over.
            answers = app.control.ping(destination=[name], timeout=ANSWER_S, limit=1)
        except Exception as exc:  # every broker library has errors of its own; all of them mean the same here
            raise Silent(f"the broker does not answer: {exc}") from exc
    if not answers:
        raise Silent(f"the worker {name} does not answer")


def main(argv: list[str]) -> int:
    if len(argv) != 1 or argv[0] not in ("web", *QUEUES):
        sys.stderr.write(f"python -m panel.alive web|{'|'.join(QUEUES)}\n")
        return 2
    try:
        web() if argv[0] == "web" else worker(argv[0])
    except (Silent, env.SettingError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
