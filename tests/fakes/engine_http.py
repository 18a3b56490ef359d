"""The HTTP side of the fake engine: OpenAI's routes as vLLM answers them, with its key check and its error shapes."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from engine_metrics import Metrics  # type: ignore[import-not-found]

ROUTES = {
    "generate": {"/v1/chat/completions", "/v1/completions"},
    "embed": {"/v1/embeddings", "/v1/score", "/v1/rerank", "/score", "/rerank"},
    "score": {"/v1/score", "/v1/rerank", "/score", "/rerank"},
}
NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one."
)


class Refused(Exception):
    """An error answer: HTTP status and body."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class EngineServer:
    """Serves on a socket that already listens, in threads of its own. `fatal` is set when a question killed it.

    Requests for the paths `quiet` leave no line in the log.
    """

    def __init__(self, fake: Any, names: list[str], key: str, log: Any, quiet: Sequence[str] = ()) -> None:
        self.fake, self.names, self.key, self.log, self.quiet = fake, names, key, log, quiet
        self.fatal = threading.Event()
        self.metrics = Metrics(names[0], fake.metrics)
        self.asked = 0
        self.lock = threading.Lock()

    def serve(self, listener: socket.socket) -> None:
        engine = self

        class Bound(Handler):
            owner = engine

        server = ThreadingHTTPServer(listener.getsockname(), Bound, bind_and_activate=False)
        server.daemon_threads = True
        server.socket.close()
        server.socket = listener
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def count(self) -> int:
        with self.lock:
            self.asked += 1
            return self.asked


class Handler(BaseHTTPRequestHandler):
    owner: EngineServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: lines are written by `access`, as uvicorn does."""

    def access(self, status: int) -> None:
        self.owner.metrics.answered(self.path, status)
        if self.path.split("?")[0] in self.owner.quiet:
            return
        client = f"{self.client_address[0]}:{self.client_address[1]}"
        self.owner.log.plain(
            f'INFO:     {client} - "{self.command} {self.path} HTTP/1.1" {status} {HTTPStatus(status).phrase}'
        )

    def reply(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        )
        self.access(status)
        self.wfile.write(head.encode() + data)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/health":
            self.access(200)
            self.wfile.write(b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: 0\r\n\r\n")
        elif path == "/version":
            self.reply(200, {"version": self.owner.fake.version})
        elif path == "/metrics":
            self.show_metrics()
        elif not self.allowed():
            self.reply(401, {"error": "Unauthorized"})
        elif path == "/v1/models":
            rows = [{"id": n, "object": "model", "owned_by": "vllm", "max_model_len": 2048} for n in self.owner.names]
            self.reply(200, {"object": "list", "data": rows})
        else:
            self.reply(404, {"detail": "Not Found"})

    def show_metrics(self) -> None:
        text = self.owner.metrics.text()
        if text is None:
            return self.reply(404, {"detail": "Not Found"})
        data = text.encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(data)}\r\n\r\n"
        self.wfile.write(head.encode() + data)
        return None

    def allowed(self) -> bool:
        """vLLM's key guards only what lies below /v1."""
        given = self.headers.get("authorization", "")
        return not self.owner.key or not self.path.startswith("/v1") or given == f"Bearer {self.owner.key}"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        while self.owner.log.held("asked"):
            time.sleep(0.02)
        if not self.allowed():
            return self.reply(401, {"error": "Unauthorized"})
        if self.path.split("?")[0] not in ROUTES[self.owner.fake.task]:
            return self.reply(404, {"detail": "Not Found"})
        self.owner.metrics.add(running=1)
        try:
            self.answer(self.path.split("?")[0], self.checked(raw))
        except Refused as refusal:
            self.reply(refusal.status, refusal.body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the asker left
        finally:
            self.owner.metrics.add(running=-1)
        return None

    def checked(self, raw: bytes) -> dict[str, Any]:
        """The body as JSON for a model that is served; misfortunes that were asked for happen here."""
        fake = self.owner.fake
        try:
            body = json.loads(raw)
        except ValueError as exc:
            raise Refused(400, f"invalid JSON: {exc}") from exc
        if not isinstance(body, dict) or (body.get("model") or self.owner.names[0]) not in self.owner.names:
            name = body.get("model") if isinstance(body, dict) else body
            raise Refused(404, f"The model `{name}` does not exist.", "NotFoundError", "model")
        number = self.owner.count()
        while fake.hangs_at_request and number >= fake.hangs_at_request:
            time.sleep(0.05)  # for ever, while its health is 200
        time.sleep(fake.answer_after_s)
        if fake.dies_at_request and number >= fake.dies_at_request:
            self.owner.fatal.set()
            raise Refused(500, "EngineCore encountered an issue.", "InternalServerError")
        if fake.answer_status != 200:
            raise Refused(fake.answer_status, "Internal server error", "InternalServerError")
        return body

    def answer(self, path: str, body: dict[str, Any]) -> None:
        if path == "/v1/chat/completions":
            if not self.owner.fake.chat_template:
                raise Refused(400, NO_TEMPLATE)
            if not isinstance(body.get("messages"), list) or not body["messages"]:
                raise Refused(400, "messages: Field required")
            self.generate(body, chat=True)
        elif path == "/v1/completions":
            self.generate(body, chat=False)
        elif path == "/v1/embeddings":
            given = body.get("input", "")
            texts = [str(text) for text in given] if isinstance(given, list) else [str(given)]
            rows = [{"object": "embedding", "index": i, "embedding": vector(t)} for i, t in enumerate(texts)]
            self.reply(200, {"object": "list", "model": self.owner.names[0], "data": rows, "usage": usage(texts)})
        else:
            self.score(path, body)

    def score(self, path: str, body: dict[str, Any]) -> None:
        if path.endswith("rerank"):
            texts = [str(text) for text in body.get("documents", [])]
            rows = [{"index": i, "document": {"text": t}, "relevance_score": 1 / (2 + i)} for i, t in enumerate(texts)]
            return self.reply(200, {"id": "rerank-1", "model": self.owner.names[0], "results": rows})
        given = body.get("text_2", body.get("documents", body.get("data_2", [])))
        texts = [str(text) for text in given] if isinstance(given, list) else [str(given)]
        scores = [{"index": i, "object": "score", "score": 1 / (2 + i)} for i in range(len(texts))]
        return self.reply(200, {"object": "list", "model": self.owner.names[0], "data": scores})

    def generate(self, body: dict[str, Any], *, chat: bool) -> None:
        name, stamp = body.get("model") or self.owner.names[0], int(time.time())
        words = pieces(self.owner.fake.text)[
            : int(body.get("max_tokens") or body.get("max_completion_tokens") or 10**6)
        ]
        base = {"id": f"cmpl-{os.getpid()}", "created": stamp, "model": name}
        self.owner.metrics.add(prompt_tokens=5, generation_tokens=len(words), steps=len(words), done=1)
        if body.get("stream"):
            return self.stream(self.events(base, words, chat=chat, with_usage=bool(body.get("stream_options"))))
        text = "".join(words)
        part = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None, **part}
        kind = "chat.completion" if chat else "text_completion"
        return self.reply(200, {**base, "object": kind, "choices": [choice], "usage": usage(words)})

    def events(self, base: dict[str, Any], words: list[str], *, chat: bool, with_usage: bool) -> Iterator[bytes]:
        kind = "chat.completion.chunk" if chat else "text_completion"
        for number, word in enumerate(words):
            part: dict[str, Any] = {"delta": {"content": word}} if chat else {"text": word}
            if chat and number == 0:
                part["delta"]["role"] = "assistant"
            last = number == len(words) - 1
            choice = {"index": 0, "finish_reason": "stop" if last else None, **part}
            yield b"data: " + json.dumps({**base, "object": kind, "choices": [choice]}).encode() + b"\n\n"
            time.sleep(self.owner.fake.token_s)
        if with_usage:
            yield (
                b"data: "
                + json.dumps({**base, "object": kind, "choices": [], "usage": usage(words)}).encode()
                + b"\n\n"
            )
        yield b"data: [DONE]\n\n"

    def stream(self, events: Iterator[bytes]) -> None:
        self.access(200)
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for event in events:
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")


def pieces(text: str) -> list[str]:
    """Words with their leading blank: the tokens of this engine."""
    words = text.split(" ")
    return [words[0], *(" " + word for word in words[1:])]


def usage(words: list[str]) -> dict[str, int]:
    return {"prompt_tokens": 5, "completion_tokens": len(words), "total_tokens": 5 + len(words)}


def vector(text: str) -> list[float]:
    """Eight numbers that depend on the text alone."""
    seed = zlib.crc32(text.encode())
    return [((seed >> (4 * i)) & 15) / 16 for i in range(8)]
