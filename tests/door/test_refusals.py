"""What the door refuses: by token, path, method, size, kind, model and state; always in one shape."""

import dataclasses
import time

import pytest

from panel.fleet.door import NoSnapshot, Route, Token, token_hash
from panel.fleet.door.access import INTERNAL, sign_internal
from panel.fleet.door.errors import DoorError
from tests.door.conftest import SHORT, TOKEN, House, answer, request

BODY = {"model": "tiny", "messages": []}
KEY = b"k" * 32


def shaped(got: object) -> None:
    error, berth = got.json["error"], got.json["berth"]  # type: ignore[attr-defined]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"] and berth["who"] == "panel"
    assert got.headers["x-berth-said-by"] == "panel"  # type: ignore[attr-defined]
    assert got.headers["content-type"] == "application/json"  # type: ignore[attr-defined]
    assert got.headers["cache-control"] == "no-store"  # type: ignore[attr-defined]


# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", "token.missing"),
        ("authorization: Basic bWFyYTpwdw==\r\n", "token.malformed"),
        ("authorization: Bearer\r\n", "token.malformed"),
        ("authorization: Bearer " + "x" * 5000 + "\r\n", "token.malformed"),
        (f"authorization: Bearer {TOKEN}\r\nauthorization: Bearer {TOKEN}\r\n", "token.malformed"),
        ("authorization: Bearer wrong\r\n", "token.unknown"),
        ("authorization: Bearer \xff\xfe\r\n", "token.unknown"),
        (f"authorization: Bearer {token_hash(TOKEN)}\r\n", "token.unknown"),
        (f"cookie: token={TOKEN}\r\n", "token.missing"),
    ],
)
async def test_who_is_not_known_gets_401(house: House, header: str, code: str) -> None:
    for data in (
        request("/v1/models", method="GET", token=None, headers=header),
        request("/v1/chat/completions", body=BODY, token=None, headers=header),
        request("/v1/nothing", body=BODY, token=None, headers=header),
    ):
        got = await house.send(data)
        assert (got.status, got.code) == (401, code)
        assert got.headers["www-authenticate"].startswith("Bearer")
        shaped(got)
    assert house.engine.asked == []


async def test_the_word_bearer_is_taken_in_any_case(house: House) -> None:
    got = await house.send(
        request("/v1/models", method="GET", token=None, headers=f"Authorization: bEARER  {TOKEN}\r\n")
    )
    assert got.status == 200


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"ended": "revoked"}, 401, "token.revoked"),
        ({"ended": "user_inactive"}, 401, "token.user_inactive"),
        ({"expires_at": time.time() - 1}, 401, "token.expired"),
        ({"scope": "api"}, 403, "token.scope"),
    ],
)
async def test_a_token_that_no_longer_or_never_opens_the_door(
    house: House, change: dict, status: int, code: str
) -> None:
    house.tokens[token_hash(TOKEN)] = dataclasses.replace(house.tokens[token_hash(TOKEN)], **change)
    got = await house.post(BODY)
    assert (got.status, got.code) == (status, code)
    shaped(got)
    assert not house.door.used


async def test_the_use_of_a_token_is_noted_for_later(house: House) -> None:
    house.tokens[token_hash("other")] = Token(id=8, user_id=2, user="lin", expires_at=time.time() + 60)
    await house.post(BODY)
    await house.post(BODY, token="other")
    assert set(house.door.used) == {7, 8}


async def test_without_a_snapshot_nobody_enters(house: House) -> None:
    async def none(*, newest: bool = False) -> object:
        raise NoSnapshot

    house.door._snapshot = none  # type: ignore[assignment]
    got = await house.post(BODY)
    assert (got.status, got.code, got.headers["retry-after"]) == (503, "panel.not_ready", "2")


# --- the panel's own tokens -----------------------------------------------------------------------------------------


def starting(house: House, **change: object) -> None:
    house.routes["tiny"] = dataclasses.replace(house.routes["tiny"], state="starting", open=False, **change)


async def test_the_probe_reaches_its_run_before_it_is_ready_and_others_do_not(house: House) -> None:
    starting(house)
    probe = sign_internal(KEY, deployment_id=1, run_id="r1", expires_at=time.time() + 60)
    assert (await house.post(BODY, token=probe)).headers["x-berth-said-by"] == "engine"
    assert (await house.post(BODY)).status == 503
    former = sign_internal(KEY, deployment_id=1, run_id="r0", expires_at=time.time() + 60)
    assert (await house.post(BODY, token=former)).status == 503
    no_run = sign_internal(KEY, deployment_id=1, expires_at=time.time() + 60)
    assert (await house.post(BODY, token=no_run)).status == 503


async def test_an_internal_token_opens_one_deployment_only(house: House) -> None:
    house.routes["other"] = dataclasses.replace(house.routes["tiny"], name="other", deployment_id=2)
    token = sign_internal(KEY, deployment_id=1, expires_at=time.time() + 60)
    assert (await house.post(BODY, token=token)).status == 200
    got = await house.post({**BODY, "model": "other"}, token=token)
    assert (got.status, got.json["berth"]["models"]) == (404, ["tiny"])
    assert [m["id"] for m in (await house.get("/v1/models", token=token)).json["data"]] == ["tiny"]


async def test_a_persons_token_for_some_deployments_knows_of_no_others(house: House) -> None:
    house.routes["other"] = dataclasses.replace(house.routes["tiny"], name="other", deployment_id=2)
    one = dataclasses.replace(house.tokens[token_hash(TOKEN)], deployments=frozenset({1}))
    house.tokens |= {token_hash("one"): one, token_hash("none"): dataclasses.replace(one, deployments=frozenset())}
    assert (await house.post(BODY, token="one")).status == 200
    got = await house.post({**BODY, "model": "other"}, token="one")
    assert (got.status, got.code, got.json["berth"]["models"]) == (404, "model.unknown", ["tiny"])
    assert (await house.get("/v1/models/other", token="one")).status == 404
    assert [m["id"] for m in (await house.get("/v1/models", token="one")).json["data"]] == ["tiny"]
    assert (await house.get("/v1/models", token="none")).json["data"] == []
    assert (await house.post(BODY, token="none")).status == 404
    assert len((await house.get("/v1/models")).json["data"]) == 2


async def test_an_internal_token_cannot_be_made_up_or_kept(house: House) -> None:
    good = sign_internal(KEY, deployment_id=1, run_id="r1", expires_at=time.time() + 60)
    payload, mac = good.removeprefix(INTERNAL).split(".")
    forged = [
        sign_internal(b"x" * 32, deployment_id=1, expires_at=time.time() + 60),
        sign_internal(b"", deployment_id=1, expires_at=time.time() + 60),
        f"{INTERNAL}{payload}.",
        f"{INTERNAL}{payload}",
        f"{INTERNAL}.{mac}",
        f"{INTERNAL}e30.{mac}",
        f"{INTERNAL}\xff.\xff",
    ]
    for token in forged:
        got = await house.post(BODY, token=token)
        assert (got.status, got.code) == (401, "token.unknown"), token
    late = sign_internal(KEY, deployment_id=1, run_id="r1", expires_at=time.time() - 1)
    assert (await house.post(BODY, token=late)).code == "token.expired"


# --- paths and methods ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/models/",
        "/v1/models/tiny/x",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/../metrics",
        "/v1/models/../../metrics",
        "/v1/chat/../chat/completions",
        "/v1/%63hat/completions",
        "/v1/chat%2fcompletions",
        "/v1/./chat/completions",
        "/v1/chat/completions;x",
        "/V1/chat/completions",
        "/v1/responses",
        "/v1/load_lora_adapter",
        "/tokenize",
        "/metrics",
        "/health",
    ],
)
async def test_only_the_listed_paths_are_open(house: House, path: str) -> None:
    for method, body in (("POST", BODY), ("GET", None)):
        got = await house.send(request(path, method=method, body=body))
        assert (got.status, got.code) == (404, "request.path")
        shaped(got)
    assert house.engine.asked == []


async def test_encoded_names_are_not_models(house: House) -> None:
    for path in ("/v1/models/%2e%2e", "/v1/models/t%69ny", "/v1/models/..", "/v1/models/TINY"):
        got = await house.get(path)
        assert (got.status, got.code) == (404, "model.unknown")


async def test_an_absolute_address_leads_nowhere_else(house: House) -> None:
    got = await house.send(request("http://169.254.169.254/v1/chat/completions", body=BODY))
    assert got.status == 200
    assert house.engine.asked[0].head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:")


async def test_a_query_does_not_reach_the_engine(house: House) -> None:
    assert (await house.post(BODY, path="/v1/chat/completions?api-version=1&x=%0d%0aevil:1")).status == 200
    assert house.engine.asked[0].head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST, OPTIONS"),
        ("PUT", "/v1/embeddings", "POST, OPTIONS"),
        ("HEAD", "/v1/rerank", "POST, OPTIONS"),
        ("DELETE", "/v1/models/tiny", "GET, HEAD, OPTIONS"),
        ("POST", "/v1/models", "GET, HEAD, OPTIONS"),
        ("TRACE", "/v1/models", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_told_the_right_one(house: House, method: str, path: str, allow: str) -> None:
    got = await house.send(request(path, method=method))
    assert (got.status, got.headers["allow"]) == (405, allow)


async def test_options_and_head(house: House) -> None:
    got = await house.get("/v1/chat/completions", method="OPTIONS", token=None)
    assert (got.status, got.headers["allow"]) == (204, "POST, OPTIONS")
    assert not [name for name in got.headers if name.startswith("access-control")]
    head, full = await house.get("/v1/models", method="HEAD"), await house.get("/v1/models")
    assert head.headers["content-length"] == str(len(full.body))
    assert head.body == b""


# --- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        ("text/plain", ""),
        ("multipart/form-data; boundary=x", ""),
        ("application/jsonx", ""),
        ("", ""),
        ("application/json", "content-encoding: gzip\r\n"),
    ],
)
async def test_only_plain_json_is_taken(house: House, kind: str, headers: str) -> None:
    got = await house.post(BODY, kind=kind, headers=headers)
    assert (got.status, got.code) == (415, "request.media_type")


async def test_a_charset_beside_json_is_fine(house: House) -> None:
    assert (await house.post(BODY, kind="Application/JSON; charset=utf-8")).status == 200


async def test_a_body_that_is_too_large_by_its_own_word(house: House) -> None:
    got = await house.send(
        request("/v1/embeddings", body=b"{}").replace(b"content-length: 2", b"content-length: 9999999")
    )
    assert (got.status, got.code) == (413, "request.too_large")
    shaped(got)


async def test_a_body_that_is_too_large_in_chunks(house: House) -> None:
    head = request("/v1/embeddings", headers="transfer-encoding: chunked\r\ncontent-type: application/json\r\n")
    reader, writer = await house.open()
    writer.write(head)
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    for _ in range(17):
        writer.write(piece)
    line = await reader.readline()
    assert line.startswith(b"HTTP/1.1 413")
    writer.close()
    assert house.door._held.bytes == 0


async def test_a_body_that_drips_is_not_waited_for(house: House) -> None:
    started = time.monotonic()
    got = await house.send(request("/v1/embeddings", body=b"{}").replace(b"content-length: 2", b"content-length: 500"))
    assert (got.status, got.code) == (408, "request.too_slow")
    assert got.headers["connection"] == "close"
    assert time.monotonic() - started < 1.5
    assert house.door._held.bytes == 0


async def test_a_body_that_drips_steadily_is_bounded_too(house: House) -> None:
    import asyncio

    reader, writer = await house.open()
    writer.write(request("/v1/embeddings", body=b"{}").replace(b"content-length: 2", b"content-length: 500")[:-2])

    async def drip() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.1)

    task = asyncio.ensure_future(drip())
    assert (await asyncio.wait_for(reader.readline(), SHORT.body_total_s + 1)).startswith(b"HTTP/1.1 408")
    task.cancel()
    writer.close()


async def test_bodies_of_all_requests_together_are_bounded(house: House) -> None:
    house.door._held.limit = 100
    got = await house.post({**BODY, "x": "y" * 200})
    assert (got.status, got.code) == (503, "panel.busy")
    assert house.door._held.bytes == 0
    assert (await house.post({"model": "tiny"})).status == 200


async def test_expect_is_answered_only_when_the_body_is_wanted(house: House) -> None:
    data = request("/v1/embeddings", body=b'{"model":"tiny"}', token="wrong", headers="expect: 100-continue\r\n")
    reader, writer = await house.open()
    writer.write(data[: data.index(b"\r\n\r\n") + 4])
    assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    writer.close()
    reader, writer = await house.open()
    data = data.replace(b"wrong", TOKEN.encode())
    writer.write(data[: data.index(b"\r\n\r\n") + 4])
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(data[data.index(b"\r\n\r\n") + 4 :])
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize(
    "headers",
    [
        "content-length: 16\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "content-length: 16\r\ncontent-length: 4\r\n",
        "content-length: -1\r\n",
        "content-length: 0x10\r\n",
        "content-length: +16\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding : chunked\r\n",
        "content-length: 16\r\nx\0y: 1\r\n",
        "content-length: 16\r\n folded: 1\r\n",
    ],
)
async def test_framing_that_two_servers_could_read_in_two_ways_is_refused(house: House, headers: str) -> None:
    smuggled = request("/v1/completions", body=b'{"model":"tiny"}')
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: b\r\nauthorization: Bearer {TOKEN}\r\n"
    head += f"content-type: application/json\r\n{headers}\r\n"
    got = await house.send(head.encode("latin-1") + b"0\r\n\r\n" + smuggled)
    assert got.status == 400
    assert house.engine.asked == []


async def test_a_header_cannot_carry_a_second_header_to_the_engine(house: House) -> None:
    for value in (b"a\rb: 1", b"a\nb: 1", b"a\r\n\tb", b"a\x00b", b"\xff\xfe"):
        data = request("/v1/chat/completions", body=BODY, headers="user-agent: MARK\r\n").replace(b"MARK", value)
        await house.send(data)
    for asked in house.engine.asked:
        assert set(asked.headers) <= {
            "host",
            "content-length",
            "authorization",
            "content-type",
            "user-agent",
            "x-request-id",
        }
        assert b"\nb: 1" not in asked.head


# --- models and states ----------------------------------------------------------------------------------------------


async def test_the_list_holds_what_answers_now(house: House) -> None:
    house.routes["bge"] = dataclasses.replace(house.routes["tiny"], name="bge", deployment_id=2, task="embed")
    house.routes["cold"] = Route("cold", 3, "stopped")
    got = await house.get("/v1/models")
    assert got.json["object"] == "list"
    assert [m["id"] for m in got.json["data"]] == ["bge", "tiny"]
    assert got.json["data"][1] == {
        "id": "tiny",
        "object": "model",
        "created": 1,
        "owned_by": "berth",
        "berth": {"state": "ready", "task": "generate"},
    }
    assert (await house.get("/v1/models/bge")).json["id"] == "bge"
    assert (await house.get("/v1/models/cold")).code == "deployment.stopped"


async def test_an_unknown_model_names_those_that_answer(house: House) -> None:
    got = await house.post({**BODY, "model": "gpt-4"})
    assert (got.status, got.code, got.json["error"]["param"]) == (404, "model.unknown", "model")
    assert "'gpt-4'" in got.json["error"]["message"] and "Models: tiny." in got.json["error"]["message"]
    assert got.json["berth"]["models"] == ["tiny"] and "/v1/models" in got.json["berth"]["hint"]
    shaped(got)


async def test_a_strange_model_name_is_only_text(house: House) -> None:
    for name in ("\ud800", "a" * 4000, "../tiny", "tiny\u0000", "tiny\r\nx: y", "<script>", ""):
        got = await house.post({**BODY, "model": name})
        assert (got.status, got.code) == (404, "model.unknown"), name
        assert len(got.body) < 1500


async def test_a_starting_model_says_phase_and_seconds_left(house: House) -> None:
    starting(house, phase="load", done=3.0, total=12.0, eta_at=time.time() + 39.5)
    got = await house.post(BODY)
    assert (got.status, got.code) == (503, "deployment.starting")
    facts = got.json["berth"]
    assert (facts["phase"], facts["done"], facts["total"], facts["state"]) == ("load", 3.0, 12.0, "starting")
    assert 38 <= facts["seconds_left"] <= 40
    assert got.headers["retry-after"] == str(facts["seconds_left"])
    assert "phase load, 3 of 12" in got.json["error"]["message"]
    shaped(got)


async def test_a_starting_model_without_known_time_or_over_it(house: House) -> None:
    for eta in (None, time.time() - 5):
        starting(house, eta_at=eta)
        got = await house.post(BODY)
        assert got.headers["retry-after"] == "5" and "seconds_left" not in got.json["berth"]
    starting(house, eta_at=time.time() + 1000)
    got = await house.post(BODY)
    assert got.headers["retry-after"] == "60" and got.json["berth"]["seconds_left"] > 900


@pytest.mark.parametrize("state", ["stopping", "stopped", "failed"])
async def test_a_model_that_will_not_come_by_itself_says_why(house: House, state: str) -> None:
    house.routes["tiny"] = Route("tiny", 1, state, reason="run.exit", params={"exit_code": 1})
    got = await house.post(BODY)
    assert (got.status, got.code) == (503, f"deployment.{state}")
    assert got.json["berth"]["reason"] == {"code": "run.exit", "params": {"exit_code": 1}}
    assert got.headers["x-should-retry"] == "false" and "retry-after" not in got.headers


@pytest.mark.parametrize("state", ["queued", "placing", "preparing", "lost"])
async def test_a_model_that_may_come_asks_for_patience(house: House, state: str) -> None:
    house.routes["tiny"] = Route("tiny", 1, state)
    got = await house.post(BODY)
    assert (got.status, got.code, got.headers["retry-after"]) == (503, f"deployment.{state}", "5")


async def test_a_lost_host_whose_engine_still_answers_is_served(house: House) -> None:
    house.routes["tiny"] = dataclasses.replace(house.routes["tiny"], state="lost", open=True)
    house.engine.script = answer(b"{}")
    assert (await house.post(BODY)).status == 200


async def test_a_web_socket_is_turned_away() -> None:
    from panel.fleet.door import Door

    sent = []

    async def send(message: object) -> None:
        sent.append(message)

    await Door(lambda: None)({"type": "websocket", "path": "/v1/realtime"}, lambda: None, send)  # type: ignore[arg-type,return-value]
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_every_refusal_has_a_type_of_openai() -> None:
    error = DoorError(418, "x", "y").body()
    assert b'"type": "server_error"' in error
