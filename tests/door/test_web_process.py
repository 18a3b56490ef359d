"""The web process as it runs: uvicorn in a process of its own, the real database and broker, the door beside Django."""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone

from deployments.models import Deployment, Revision, Run
from panel.accounts.models import ApiToken, User
from panel.core import sse
from panel.core.crypto import seal
from panel.fleet.door import token_hash
from panel.fleet.models import Host, Job
from tests.door.conftest import EVENTS, Answer, Engine, chunk, raw, read_answer, request
from tests.servers import Servers
from tests.web import web_process

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_factories=["asyncio"])]
SECRET = "berth_web_process"


def make_rows(port: int) -> Deployment:
    host = Host.objects.create(name="here", is_local=True, token_hash="h")
    job = Job.objects.create(host=host, kind="engine", state="running", status={"port": port, "listening": True})
    row = Deployment.objects.create(name="tiny", state="ready", desired="running")
    row.revision = Revision.objects.create(deployment=row, number=1, spec={"artifact_id": 1})
    row.run = Run.objects.create(
        deployment=row,
        revision=row.revision,
        number=1,
        host=host,
        job=job,
        secrets=seal(json.dumps({"api_key": "k"})),
        started_by="mara",
    )
    row.save()
    owner = User.objects.create(username="mara")
    ApiToken.objects.create(user=owner, name="t", token_hash=token_hash(SECRET), prefix="berth_w")
    return row


async def send(port: int, data: bytes) -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await read_answer(reader, head_only=data.startswith(b"HEAD"))
    finally:
        writer.close()


def listing(**kwargs: Any) -> bytes:
    return request("/v1/models", method="GET", **{"token": SECRET, **kwargs})


async def test_door_and_pages_in_one_process(servers: Servers, transactional_db: None, tmp_path: Path) -> None:
    async with Engine().listening() as engine:
        with web_process(servers, tmp_path) as web:
            await talk(engine, int(web.url.rpartition(":")[2]))
            await asyncio.to_thread(web.stop, within_s=5)
            assert web.process.returncode in (0, -signal.SIGTERM)
    used = await ApiToken.objects.aget()
    await sync_to_async(connections.close_all)()
    assert used.last_used_at is not None and abs((timezone.now() - used.last_used_at).total_seconds()) < 30


async def talk(engine: Engine, port: int) -> None:
    row = await sync_to_async(make_rows)(engine.port)
    await sync_to_async(sse.publish)("door")

    health = await send(port, request("/healthz", method="GET", token=None))
    assert (health.status, health.body) == (200, b"ok\n")
    assert (await send(port, request("/healthz", method="HEAD", token=None))).headers["content-length"] == "3"
    assert (await send(port, request("/healthz", method="POST", token=None))).headers["allow"] == "GET, HEAD"
    page = await send(port, request("/login", method="GET", token=None))
    assert "x-berth-said-by" not in page.headers  # Django's
    assert (await send(port, listing(token=None))).code == "token.missing"

    await until(port, listing(), lambda got: got.status == 200 and got.json["data"], 2)
    engine.script = raw(EVENTS + chunk(b"data: 1\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    ask = request("/v1/chat/completions", body={"model": "tiny", "messages": [], "stream": True}, token=SECRET)
    got = await send(port, ask)
    assert (got.whole, got.body) == (True, b"data: 1\n\ndata: [DONE]\n\n")
    assert engine.asked[0].headers["authorization"] == "Bearer k"

    # An event reaches the door at once, also while nobody asks.
    await sync_to_async(Deployment.objects.filter(pk=row.pk).update)(state="stopping")
    await sync_to_async(sse.publish)("door")
    await until(port, ask, lambda got: got.status == 503, 0.5)

    # Without any event a revoked token stops within two seconds, while it is in use and after a rest.
    await send(port, listing())
    await sync_to_async(ApiToken.objects.update)(revoked_at=timezone.now())
    revoked = time.monotonic()
    await until(port, listing(), lambda got: got.status == 401, 2)
    assert time.monotonic() - revoked < 2
    await sync_to_async(ApiToken.objects.update)(revoked_at=None)
    await asyncio.sleep(2)
    assert (await send(port, listing())).status == 200


async def until(port: int, data: bytes, there: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not there(got := await send(port, data)):
        assert time.monotonic() < end, (got.status, got.body)
        await asyncio.sleep(0.02)


# --- the panel's own questions --------------------------------------------------------------------------------------


async def test_one_question_with_one_deadline() -> None:
    from deployments.gateway.ask import ask_async
    from tests.door.conftest import answer, hang

    async with Engine().listening() as engine:
        base = f"http://127.0.0.1:{engine.port}"
        engine.script = answer(b'{"a": 1}', headers="content-type: application/json\r\nx-berth-said-by: engine\r\n")
        got = await ask_async(base, "tok", "/v1/completions", {"model": "tiny"}, 5)
        assert (got.status, got.json, got.said_by, got.who) == (200, {"a": 1}, "engine", "engine")
        assert 0 < got.latency_ms < 3000
        assert engine.asked[0].headers["authorization"] == "Bearer tok"
        broke = b'{"error": {}, "berth": {"who": "engine"}}'
        engine.script = answer(broke, "502 Bad Gateway", "x-berth-said-by: panel\r\n")
        got = await ask_async(base, "tok", "/v1/completions", {}, 5)
        assert (got.status, got.said_by, got.who) == (502, "panel", "engine")
        engine.script = hang
        assert (await ask_async(base, "t", "/v1/completions", {}, 0.1)).text == "timeout"

        async def drip(_: Any, writer: asyncio.StreamWriter, __: Any) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)

        engine.script = drip
        began = time.monotonic()
        assert (await ask_async(base, "t", "/v1/completions", {}, 0.3)).text == "timeout"
        assert time.monotonic() - began < 1
    assert (await ask_async(base, "t", "/v1/completions", {}, 5)).text == "unreachable"
