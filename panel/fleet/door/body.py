"""The request body: read within bounds, and the model's name found in it without building or changing anything.

The bytes go to the engine as they came. Building the whole JSON would hold the event loop for up to a second on a body
full of numbers, so a scanner walks a large one instead and pauses often; small ones are parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Generator, Iterator, MutableMapping
from typing import Any

from panel.fleet.door.deadline import Limit
from panel.fleet.door.errors import BodyError, DoorError
from panel.fleet.door.limits import Limits
from panel.fleet.door.upstream import ClientGone

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_DEPTH = 128
WHOLE = 32 << 10  # bytes; up to here the body is parsed as a whole, which takes well under a millisecond
SLICE = 1 << 20  # bytes of plain text passed between two pauses
MAX_SPACE = 64 << 10  # bytes of white space in one place
MAX_NAME = 4096  # bytes of a model's name; a longer one is none
MAX_SCALAR = 1024  # bytes of a number
TOKENS = 2000  # marks passed between two pauses
_SPACE = re.compile(rb"[ \t\r\n]*")
_MARK = re.compile(rb'["{}\[\]]')
_SCALAR = re.compile(rb"-?[0-9][0-9.eE+-]*|true|false|null")
_BOM = b"\xef\xbb\xbf"


class Held:
    """Bytes of request bodies in memory now, over all requests of this process."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0

    def add(self, size: int) -> None:
        if self.bytes + size > self.limit:
            raise DoorError(
                503,
                "panel.busy",
                "The panel holds too many large requests at this moment.",
                "Ask again in a few seconds.",
                retry_after=2,
            )
        self.bytes += size


async def read_body(receive: Receive, declared: int | None, limits: Limits, held: Held, patience: Limit) -> bytes:
    """The whole body. Raises DoorError (408, 413, 503) and ClientGone; the caller gives the bytes back to `held`."""
    if declared is not None and declared > limits.body:
        raise _too_large(limits, close=declared > 8 * limits.body)
    pieces: list[bytes] = []
    size = 0
    end = patience.now() + limits.body_total_s
    try:
        while True:
            with patience.within(limits.body_pause_s, end):
                message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            if size + len(piece) > limits.body:
                raise _too_large(limits, close=True)
            held.add(len(piece))
            size += len(piece)
            pieces.append(piece)
            if not message.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    except TimeoutError as exc:
        held.bytes -= size
        raise DoorError(
            408, "request.too_slow", "The request's body did not arrive in time.", "Send it again.", close=True
        ) from exc
    except BaseException:
        held.bytes -= size
        raise


def _too_large(limits: Limits, *, close: bool) -> DoorError:
    return DoorError(
        413,
        "request.too_large",
        f"The request's body is larger than {limits.body >> 20} MiB.",
        "Send less in one request.",
        close=close,
    )


async def find_model(body: bytes) -> str:
    """The value of the one top-level `model`. Raises BodyError."""
    if body.startswith(_BOM):
        raise BodyError("request.bom", "The body begins with a byte order mark.", "Send plain UTF-8 JSON.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise BodyError(
            "request.not_utf8", f"The body is not UTF-8: byte {exc.start} is wrong.", "Send UTF-8 JSON."
        ) from exc
    found = _parse(text) if len(body) <= WHOLE else None
    if found is None or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        found = []
        for _pause in _scan(body, found):
            await asyncio.sleep(0)
    if not found:
        raise BodyError(
            "model.missing", "The body names no model.", 'Add "model"; GET /v1/models lists them.', param="model"
        )
    if len(found) > 1:
        # Parsers differ on which of two counts; the one who pays for an answer must not depend on that.
        raise BodyError("model.twice", "The body names the model more than once.", param="model")
    if not isinstance(found[0], str):
        raise BodyError("model.not_text", "The model's name must be a string.", param="model")
    return found[0]


def _parse(text: str) -> list[Any]:
    """Each top-level `model` of a small body. An object is read as a tuple of pairs, so that none of two is lost."""
    whole, end = None, -1
    try:
        # What clients send is an object and nothing around it; `decode` also takes, and explains, everything else.
        with contextlib.suppress(StopIteration):
            whole, end = _PAIRS.scan_once(text, 0)  # type: ignore[attr-defined]
        if end != len(text):
            whole = _PAIRS.decode(text)
    except RecursionError as exc:
        raise _too_deep() from exc
    except ValueError as exc:
        raise _bad_json(str(exc)) from exc
    if not isinstance(whole, tuple):
        raise _bad_json("it must be an object", "request.not_an_object")
    return [value for name, value in whole if name == "model"]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_PAIRS = json.JSONDecoder(object_pairs_hook=tuple, parse_constant=_no_constant)


def _scan(body: bytes, found: list[Any]) -> Iterator[None]:
    """Walk the top-level object; each `model` goes into `found`, None for what is no text. Yields to let others run."""
    at = _skip(body, 0)
    if body[at : at + 1] != b"{":
        raise _bad_json("it must be an object", "request.not_an_object")
    at = _skip(body, at + 1)
    closed = body[at : at + 1] == b"}"
    while not closed:
        if body[at : at + 1] != b'"':
            raise _bad_json(f"a name was expected at byte {at}")
        key_at = at
        at = yield from _string_end(body, at)
        # A name with escapes may spell "model" too; a long one cannot.
        is_model = at - key_at <= 40 and _text(body[key_at:at], key_at) == "model"
        at = _skip(body, at)
        if body[at : at + 1] != b":":
            raise _bad_json(f"a colon was expected at byte {at}")
        value_at = _skip(body, at + 1)
        at = yield from _value_end(body, value_at)
        if is_model:
            text = body[value_at:at] if at - value_at < MAX_NAME else b'"..."'
            found.append(_text(text, value_at) if text.startswith(b'"') else None)
        at = _skip(body, at)
        closed = body[at : at + 1] == b"}"
        if not closed:
            if body[at : at + 1] != b",":
                raise _bad_json(f"a comma was expected at byte {at}")
            at = _skip(body, at + 1)
    if _skip(body, at + 1) != len(body):
        raise _bad_json(f"there is more after its end at byte {at}")


def _skip(body: bytes, at: int) -> int:
    match = _SPACE.match(body, at, at + MAX_SPACE)
    return match.end() if match else at


def _string_end(body: bytes, at: int) -> Generator[None, None, int]:
    """The place after the string that begins at `at`."""
    tokens = 0
    end = at
    while True:
        end = body.find(b'"', end + 1)
        if end < 0:
            raise _bad_json(f"the text at byte {at} does not end")
        if _backslashes(body, at + 1, end) % 2 == 0:
            return end + 1
        tokens += 1
        if tokens % TOKENS == 0:
            yield


def _backslashes(body: bytes, start: int, end: int) -> int:
    """How many backslashes stand right before `end`, at C speed however many there are."""
    window = 32
    while True:
        piece = body[max(start, end - window) : end]
        run = len(piece) - len(piece.rstrip(b"\\"))
        if run < len(piece) or len(piece) < window:
            return run
        window *= 4


def _value_end(body: bytes, at: int) -> Generator[None, None, int]:
    """The place after the value that begins at `at`."""
    first = body[at : at + 1]
    if first == b'"':
        return (yield from _string_end(body, at))
    if first not in (b"{", b"["):
        match = _SCALAR.match(body, at, at + MAX_SCALAR)
        if match is None:
            raise _bad_json(f"a value was expected at byte {at}")
        return match.end()
    depth, tokens = 1, 0
    at += 1
    while depth:
        match = _MARK.search(body, at, at + SLICE)
        tokens += 1
        if match is None:
            at += SLICE
            if at >= len(body):
                raise _bad_json("it ends too early")
            yield
            continue
        if tokens % TOKENS == 0:
            yield
        mark = match.group()
        at = match.end()
        if mark == b'"':
            at = yield from _string_end(body, at - 1)
        elif mark in b"{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep()
        else:
            depth -= 1
    return at


def _text(raw: bytes, at: int) -> str:
    try:
        return str(json.loads(raw))
    except ValueError as exc:
        raise _bad_json(f"the text at byte {at} is broken") from exc


def _bad_json(why: str, code: str = "request.bad_json") -> BodyError:
    return BodyError(code, f"The body is not the JSON object that was expected: {why}.", "Send a JSON object.")


def _too_deep() -> BodyError:
    return BodyError("request.too_deep", "The body's JSON is nested too deeply.", f"At most {MAX_DEPTH} levels.")
