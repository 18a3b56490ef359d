"""The door before the fake engine: a process with vLLM's routes, key check and error shapes."""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.door.conftest import House, eventually, request

ENGINE = Path(__file__).parents[1] / "fakes" / "engine.py"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


@contextlib.asynccontextmanager
async def engine(
    house: House, folder: Path, key: str = "engine-key", **fake: Any
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """The process, with the route `tiny` leading to it."""
    (folder / "config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(ENGINE), "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--served-model-name", "tiny"],
        env={**os.environ, "VLLM_API_KEY": key, "FAKE_ENGINE": json.dumps({"phase_s": 0, **fake})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    house.routes["tiny"] = dataclasses.replace(house.routes["tiny"], port=port)

    def listens() -> bool:
        assert process.poll() is None
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        await eventually(listens, 20)
        yield process
    finally:
        process.kill()
        process.wait()


async def test_it_answers_whole_and_streamed(house: House, tmp_path: Path) -> None:
    async with engine(house, tmp_path):
        got = await house.post(CHAT)
        assert got.status == 200 and "Paris" in got.json["choices"][0]["message"]["content"]
        got = await house.post({**CHAT, "stream": True})
        assert got.whole and got.body.endswith(b"data: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in got.body.split(b"\n\n") if line.startswith(b"data: {")]
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        assert text == "The capital of France is Paris."
        got = await house.post({"model": "tiny", "messages": []})
        assert (got.status, got.headers["x-berth-said-by"]) == (400, "engine")


async def test_another_key_is_the_engines_fault_not_the_clients(house: House, tmp_path: Path) -> None:
    async with engine(house, tmp_path, key="another"):
        got = await house.post(CHAT)
        assert (got.status, got.code) == (502, "engine.key_refused")


async def test_an_engine_killed_in_the_middle_of_a_stream(house: House, tmp_path: Path) -> None:
    async with engine(house, tmp_path, text="word " * 1000, token_s=0.02) as process:
        asked = asyncio.ensure_future(house.send(request("/v1/chat/completions", body={**CHAT, "stream": True})))
        await eventually(lambda: house.door.counts.get("tiny") and house.door.counts["tiny"].active)
        await asyncio.sleep(0.3)
        process.kill()
        got = await asked
        assert got.status == 200 and not got.whole
        assert b'"code": "engine.broke_off"' in got.body
        process.wait()
        assert (await house.post(CHAT)).code == "engine.unreachable"
