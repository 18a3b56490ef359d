"""A panel with a year behind it: lists on an idle panel, then 50 API requests a second with 200 live pages open.

The client runs on the machine that it measures and takes its share of the cores. A bare Starlette under the same server
settings, asked by the same client in the same run, says what that costs.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.people import Streams, at_once, at_rate, live_page, one_by_one, percentile
from tests.panel.running import Panel

LIMITS = {"list": 60.0, "home": 40.0, "api": 250.0, "healthz": 20.0, "home kB": 150.0}  # ms, ms, ms, ms, kB
PAGES, RATE, SECONDS = 200, 50, 60
ASKED = 40  # requests of each list
CLIENTS, RATE_S = 16, 10.0
# Beside every page and list without a further word in its address: filtered, sorted, from their far end.
FAR = (
    "/?state=ready",
    "/?q=chat-07",
    "/?page=20",
    "/models/?show=fits",
    "/models/?show=unused",
    "/models/?q=model-7",
    "/models/?sort=size",
    "/models/?page=10",
    "/failures/?days=30&q=chat-07",
    "/failures/?page=20",
)
FAR_API = (
    "/api/v1/deployments?q=chat-07",
    "/api/v1/failures",
    "/api/v1/failures?days=90&host=gpu-007",
    "/api/v1/events?who=person-7&limit=50",
)


def whole_lists() -> list[str]:
    """Every operation that gives a list and needs nothing said, as the API describes itself."""
    from panel.api import PREFIX, document

    found = []
    for path, operations in document()["paths"].items():
        words = {word["name"] for word in operations.get("get", {}).get("parameters", [])}
        if "limit" in words and "{" not in path:
            found.append(f"{path}?limit=50")
    assert found and all(path.startswith(PREFIX) for path in found)
    return found


def whole_pages() -> list[str]:
    """Every page that somebody signed in can open and that needs nothing in its address, but for streams."""
    from tests.house.test_permissions import ANYONE, NOBODY, TABLE

    found = [path for path, (reads, _writes) in TABLE.items() if reads not in (ANYONE, NOBODY) and "<" not in path]
    asks_more = ("live", ".json", "downloads/new")  # streams, files, and a form of one model that its address names
    return [f"/{path}" for path in found if not path.endswith(asks_more)]


def paths_of(deployment: int, run: str, model: int) -> tuple[list[str], list[str]]:
    """(API, pages): every list and page, one deployment, one start and one model, and long lists from their far end."""
    one = f"/api/v1/deployments/{deployment}"
    api = [*whole_lists(), *FAR_API, one, f"{one}/runs", f"/api/v1/runs/{run}"]
    api += [f"{one}/fixes", f"{one}/revisions", f"/api/v1/events?on=deployment:{deployment}"]
    pages = [f"/deployments/{deployment}/", f"/deployments/{deployment}/edit", f"/deployments/{deployment}/answers"]
    pages += [f"/runs/{run}/", f"/models/{model}/", f"/models/{model}/elsewhere"]
    pages += [f"/activity?on=deployment:{deployment}"]
    return api, [*whole_pages(), *FAR, *pages]


async def lists(port: int, token: str, cookie: str, paths: tuple[list[str], list[str]], out: Any) -> bool:
    """Each list by itself; whether all keep their limits."""
    good = True
    api, pages = paths
    for head, some in ((token, api), (cookie, pages)):
        for path in some:
            seen = await one_by_one(port, head, path, ASKED)
            limit = LIMITS["home"] if path == "/" else LIMITS["list"]
            good &= not seen.errors and percentile(seen.times, 0.5 if path == "/" else 0.95) <= limit
            out(seen.line(f"  {path}", limit) + f", {seen.size / 1000:.0f} kB")
            if path == "/":
                good &= seen.size / 1000 <= LIMITS["home kB"]
    return good


async def crowd(port: int, token: str, cookie: str, deployment: int, api: list[str], out: Any) -> bool:
    """The minute: live pages, requests at fixed moments, and /healthz ten times a second."""
    streams, opened = Streams(), asyncio.Semaphore(8)
    live = ["/deployments/live", f"/deployments/{deployment}/live"]
    pages = [asyncio.create_task(live_page(port, cookie, live[n % 2], streams, opened)) for n in range(PAGES)]
    while streams.open + len(streams.lost) < PAGES:
        await asyncio.sleep(0.05)
    watched = asyncio.create_task(at_rate(port, "", ["/healthz"], 10, SECONDS))
    seen = await at_rate(port, token, api, RATE, SECONDS)
    health = await watched
    lost = f"lost {len(streams.lost)} {streams.lost[:1] or ''}".strip()
    out(f"  Live pages open: {streams.open} of {PAGES}, {lost}, {streams.events} events")
    out(seen.line(f"  API at {RATE} requests/s", LIMITS["api"]))
    out(health.line("  /healthz meanwhile", LIMITS["healthz"]))
    good = not (seen.errors or health.errors or streams.lost) and streams.open == PAGES
    good &= percentile(seen.times, 0.95) <= LIMITS["api"] and max(health.times) <= LIMITS["healthz"]
    rate, most = await at_once(port, token, api, CLIENTS, RATE_S)
    out(most.line(f"  API, as much as goes: {rate:.0f} requests/s"))
    for page in pages:
        page.cancel()
    await asyncio.gather(*pages, return_exceptions=True)
    return good and not most.errors


@contextmanager
def starlette() -> Iterator[int]:
    """A bare Starlette in a process of its own, with the server settings of the panel's web process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "uvicorn", "benchmarks.yardstick:app", "--port", str(port), "--loop", "uvloop"]
    process = subprocess.Popen([*argv, "--http", "httptools", "--no-access-log", "--log-level", "warning"])
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def access(deployment: Any, session: str) -> tuple[str, str]:
    """(head of an API request, head of a page's)."""
    from panel.accounts.models import Scope, User
    from panel.accounts.tokens import create_token

    user = User.objects.get(username="bench")
    _row, token = create_token(user, "bench", actor=user, scope=Scope.API_READ)
    return (
        f"Authorization: Bearer {token}\r\nAccept: application/json\r\n",
        f"Cookie: berth_session={session}\r\nAccept: text/html\r\n",
    )


def main(panel: Panel, deployment: Any, session: str, out: Any) -> bool:
    """Fill the database and measure; `deployment` is ready, `session` is that of its admin."""
    from benchmarks.fill import fill
    from deployments.models import Deployment

    began = time.monotonic()
    rows = fill(deployment)
    size = ", ".join(f"{count:,} {name}" for name, count in rows.items())
    out(f"A panel with {size} (made in {time.monotonic() - began:.0f} s)")
    token, cookie = access(deployment, session)
    time.sleep(3)  # autovacuum and the loop settle
    run = deployment.run
    paths = paths_of(deployment.pk, str(run.pk), run.copy.artifact.model_id)
    good = asyncio.run(lists(panel.port, token, cookie, paths, out))
    good &= asyncio.run(crowd(panel.port, token, cookie, deployment.pk, paths[0], out))
    # These never ran: `down`, which comes next, must not wait for a thousand ends that nobody will report.
    Deployment.objects.exclude(pk=deployment.pk).update(desired="stopped", state="stopped", run=None)
    with starlette() as port:
        rate, _seen = asyncio.run(at_once(port, "", ["/json"], CLIENTS, RATE_S))
    out(f"  A bare Starlette: {rate:.0f} requests/s")
    return good
