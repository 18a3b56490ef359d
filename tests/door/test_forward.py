"""What goes to the engine and what comes back: bytes, headers, streams, connections."""

import asyncio
import random
import time

from panel.fleet.door import Limits
from tests.door.conftest import EVENTS, TOKEN, House, answer, chunk, eventually, raw, read_answer, request

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


async def test_the_body_goes_on_unchanged_and_the_answer_comes_back_unchanged(house: House) -> None:
    sent = b'{ "messages" : [ {"content":"h\\u00e9, \xf0\x9f\x98\x80 1.0e5"} ],\n "model":"tiny" , "n": 1.50 }'
    back = b'{"odd":   "spacing", "n": 1.50, "bytes": "\xe2\x82\xac"}'
    house.engine.script = answer(back)
    got = await house.post(sent)
    assert (got.status, got.body) == (200, back)
    assert house.engine.asked[0].body == sent
    assert got.headers["x-berth-said-by"] == "engine"
    assert got.headers["content-type"] == "application/json"


async def test_the_engine_gets_its_own_key_and_nothing_that_is_the_clients(house: House) -> None:
    hidden = "cookie: berth_session=s\r\nx-forwarded-for: 1.2.3.4\r\norigin: http://evil\r\n"
    hidden += "te: trailers\r\nx-data-parallel-rank: 3\r\n"
    await house.post(BODY, headers=hidden + "user-agent: curl/8\r\nx-request-id: mine-1\r\n")
    asked = house.engine.asked[0]
    assert asked.head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert asked.headers == {
        "host": f"127.0.0.1:{house.engine.port}",
        "content-length": str(len(asked.body)),
        "authorization": "Bearer engine-key",
        "content-type": "application/json",
        "user-agent": "curl/8",
        "x-request-id": "mine-1",
    }
    assert TOKEN.encode() not in asked.head


async def test_only_known_headers_of_the_engine_come_back(house: House) -> None:
    house.engine.script = answer(
        b"{}",
        headers="content-type: application/json\r\nset-cookie: berth_session=evil\r\naccess-control-allow-origin: *\r\n"
        "x-berth-said-by: panel\r\nserver: uvicorn\r\nconnection: keep-alive, x-secret\r\nx-secret: 1\r\n"
        "retry-after: 3\r\n",
    )
    got = await house.post(BODY)
    assert got.headers["x-berth-said-by"] == "engine"
    assert got.headers["retry-after"] == "3"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert not {"set-cookie", "access-control-allow-origin", "x-secret"} & set(got.headers)


async def test_a_stream_is_whole_whatever_its_pieces(house: House) -> None:
    rng = random.Random(4)
    pieces = [rng.randbytes(rng.choice([1, 2, 17, 1000, 70_000])) for _ in range(60)]
    house.engine.script = raw(EVENTS + b"".join(map(chunk, pieces)) + b"0\r\n\r\n")
    got = await house.post(BODY)
    assert got.whole and got.body == b"".join(pieces)
    assert got.headers["x-accel-buffering"] == "no"


async def test_each_chunk_arrives_before_the_next_is_made(house: House) -> None:
    gate: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(_: object, writer: asyncio.StreamWriter, __: object) -> None:
        writer.write(EVENTS)
        while data := await gate.get():
            writer.write(chunk(data))
        writer.write(b"0\r\n\r\n")

    house.engine.script = script
    reader, writer = await house.open()
    writer.write(request("/v1/chat/completions", body=BODY))
    late = []
    for number in range(50):
        data = b"data: %d\n\n" % number
        started = time.perf_counter()
        gate.put_nowait(data)
        if number == 0:
            await reader.readuntil(b"\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"\n\n\r\n"), 5)).endswith(data + b"\r\n")
        late.append(time.perf_counter() - started)
    gate.put_nowait(b"")
    assert await asyncio.wait_for(reader.readexactly(5), 5) == b"0\r\n\r\n"
    assert sorted(late)[25] < 0.02  # with client, door and engine in this one loop
    writer.close()


async def test_two_hundred_streams_at_once_are_all_whole(house: House) -> None:
    async def script(_: object, writer: asyncio.StreamWriter, asked: object) -> None:
        name = asked.headers["x-request-id"].encode()  # type: ignore[attr-defined]
        writer.write(EVENTS)
        for number in range(20):
            writer.write(chunk(b"data: %s %d\n\n" % (name, number)))
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")

    house.engine.script = script
    house.door.limits = house.door._pool.limits = Limits()  # one busy loop does the work of three processes here

    async def one(number: int) -> bool:
        got = await house.post(BODY, headers=f"x-request-id: s{number}\r\n")
        return got.whole and got.body == b"".join(b"data: s%d %d\n\n" % (number, n) for n in range(20))

    assert all(await asyncio.gather(*(one(n) for n in range(200))))
    assert house.door.counts["tiny"].requests == 200
    await eventually(lambda: house.door.counts["tiny"].active == 0)


async def test_connections_to_the_engine_are_used_again(house: House) -> None:
    for _ in range(5):
        assert (await house.post(BODY)).status == 200
    assert house.engine.connections == 1
    await eventually(lambda: house.engine.lost == 1)  # idle too long: closed by the door


async def test_a_connection_that_died_while_idle_is_replaced_unseen(house: House) -> None:
    answered = 0

    async def script(reader: object, writer: asyncio.StreamWriter, asked: object) -> None:
        nonlocal answered
        if house.engine.connections == 1 and answered:  # the engine closed it just as it was used again
            writer.transport.abort()
            raise ConnectionError
        answered += 1
        await answer(b"{}")(reader, writer, asked)  # type: ignore[arg-type]

    house.engine.script = script
    assert (await house.post(BODY)).status == 200
    assert (await house.post(BODY)).status == 200
    assert house.engine.connections == 2


async def test_a_large_body_and_a_large_answer_pass(house: House) -> None:
    big = {"model": "tiny", "input": "x" * 900_000}
    house.engine.script = answer(b"y" * 5_000_000)
    got = await house.post(big, path="/v1/embeddings")
    assert len(got.body) == 5_000_000
    assert len(house.engine.asked[0].body) > 900_000


async def test_answers_without_a_length_end_with_the_connection(house: House) -> None:
    house.engine.script = raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it", close=True)
    got = await house.post(BODY)
    assert got.whole and got.body == b"all of it"


async def test_an_interim_answer_is_skipped(house: House) -> None:
    house.engine.script = raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    assert (await house.post(BODY)).body == b"{}"


async def test_keep_alive_serves_one_client_many_times(house: House) -> None:
    reader, writer = await house.open()
    for _ in range(3):
        writer.write(request("/v1/chat/completions", body=BODY) + request("/v1/models", method="GET"))
        assert (await read_answer(reader)).status == 200
        assert (await read_answer(reader)).json["object"] == "list"
    writer.close()
