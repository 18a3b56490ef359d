"""A model hub on loopback that speaks the Hugging Face Hub's API and ModelScope's, with every way to fail.

    with Hub() as hub:
        hub.add("acme/tiny", {"config.json": b"{}", "model.safetensors": weights}, license="mit")
        hub.fail(Fault("drop", after=100_000), times=3)     # the next three downloads; see Fault
        … endpoint=hub.url …

LFS files are redirected to a "CDN", which is another port, as the real hub does. `hub.asked` lists all requests for
content, each with the range that was asked for and the bytes that were sent; `hub.sent` counts the bytes.

As a process of its own: `python -m tests.fakes.hub FOLDER` serves `FOLDER/<owner>/<name>/…`, says its address on the
first line, and ends with its input.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.fakes.hub_api import Api
from tests.fakes.hub_files import Ask, Fault, File, Repo

LFS = (".safetensors", ".gguf", ".bin", ".pt", ".model")
CHUNK = 1 << 18
REDIRECT_FAULTS = ("status", "drop", "silent")  # that an answer without content can have
__all__ = ["Ask", "Fault", "File", "Hub", "Repo"]


class Hub:
    """See the module."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.repos: dict[str, Repo] = {}
        self.tokens: dict[str, str] = {}  # token → name of its owner
        self.asked: list[Ask] = []
        self.api: list[str] = []  # requests of the API
        self.queue: list[Fault] = []
        self.chance: Callable[[Ask], Fault | None] = lambda ask: None  # asked when the queue is empty
        self.released = threading.Event()  # ends what stalls
        self.send_buffer = 0
        self.page = 1000  # entries of one answer of the tree
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler(where)) for where in ("hub", "cdn")]
        for server in self.servers:
            server.daemon_threads = True
        self.port, self.cdn_port = (server.server_address[1] for server in self.servers)
        self.url = f"http://127.0.0.1:{self.port}"
        self.cdn = f"http://127.0.0.1:{self.cdn_port}"

    def _handler(self, where: str) -> type[_Handler]:
        return type("Handler", (_Handler,), {"hub": self, "where": where})

    def __enter__(self) -> Hub:
        for server in self.servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.released.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    # --- what a test says -------------------------------------------------------------------------------------------

    def add(self, name: str, files: Mapping[str, bytes | Path] | Path, **facts: Any) -> Repo:
        """A repository; `files` are contents by path, or a folder. gated, private, allowed; the rest is shown."""
        if isinstance(files, Path):
            folder = files
            files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        made = {path: File(path, data, path.endswith(LFS)) for path, data in files.items()}
        commit = hashlib.sha1("".join(sorted(file.git for file in made.values())).encode() + name.encode()).hexdigest()
        own = {key: facts.pop(key) for key in ("gated", "private", "allowed") if key in facts}
        repo = Repo(name, made, commit, facts=facts, refs={"main": commit, "master": commit}, **own)
        self.repos[name] = repo
        return repo

    def fail(self, fault: Fault, times: int = 1) -> None:
        self.queue += [fault] * times

    @property
    def sent(self) -> int:
        with self.lock:
            return sum(ask.sent for ask in self.asked)

    def sums(self, name: str, *paths: str) -> list[dict[str, Any]]:
        """Files as wire.DownloadFile has them; all when no path is named."""
        files = self.repos[name].files
        return [
            {"path": file.path, "size": file.size, "sha256": file.sha256 if file.lfs else "", "etag": file.etag}
            for file in files.values()
            if not paths or file.path in paths
        ]

    def fault_of(self, ask: Ask, kinds: tuple[str, ...] = ()) -> Fault | None:
        """The next one that fits; `kinds` that are possible now, () for all."""

        def fits(fault: Fault) -> bool:
            here = fault.where in ("", ask.where) and ask.path.endswith(fault.path)
            return here and (not kinds or fault.kind in kinds)

        with self.lock:
            for index, fault in enumerate(self.queue):
                if fits(fault):
                    return self.queue.pop(index)
        found = self.chance(ask)
        return found if found is not None and fits(found) else None


class _Handler(Api, BaseHTTPRequestHandler):
    hub: Hub
    where: str
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def setup(self) -> None:
        if self.hub.send_buffer:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.hub.send_buffer)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def log_message(self, *args: object) -> None:
        return

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.api.append(f"PUT {self.path} {body.decode()}")
        self._modelscope_search(json.loads(body or b"{}"))

    def _get(self) -> None:
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), {key: value[-1] for key, value in parse_qs(parts.query).items()}
        if self.where == "cdn":
            self._from_cdn(path, query)
        elif path.startswith("/api/v1/models/") and path.endswith("/repo"):
            name = path.removeprefix("/api/v1/models/").removesuffix("/repo")
            self._content(name, query.get("Revision", "master"), query.get("FilePath", ""), redirect=False)
        elif found := re.fullmatch(r"/([^/]+/[^/]+|[^/]+)/resolve/([^/]+)/(.+)", parts.path):
            self._content(found[1], unquote(found[2]), unquote(found[3]), redirect=True)
        else:
            self.hub.api.append(self.path)
            self._modelscope(path, query) if path.startswith("/api/v1/") else self._api(path, query)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _reply(self, status: int, value: Any, **headers: str) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for key, text in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _error(self, status: int, code: str, message: str = "") -> None:
        self._reply(status, {"error": message or code}, X_Error_Code=code, X_Error_Message=message or code)

    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()

    def _may(self, name: str) -> Repo | None:
        """The repository, or the error that the real hub gives."""
        token, repo = self._token(), self.hub.repos.get(name)
        if token and token not in self.hub.tokens:
            self._error(401, "", "Invalid credentials in Authorization header")
        elif repo is None or (repo.private and token not in repo.allowed):
            self._error(404 if token else 401, "RepoNotFound", "Repository not found")
        elif repo.gated and token not in repo.allowed:
            self._error(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted.")
        else:
            return repo
        return None

    # --- content ------------------------------------------------------------------------------------------------------

    def _content(self, name: str, revision: str, path: str, *, redirect: bool) -> None:
        repo = self._may(name)
        if repo is None:
            return
        if revision not in {*repo.refs, repo.commit}:
            self._error(404, "RevisionNotFound", "Invalid rev id")
            return
        file = repo.files.get(path)
        if file is None:
            self._error(404, "EntryNotFound", "Entry not found")
            return
        if not (redirect and file.lfs):
            self._send(name, file, {"ETag": f'"{file.git}"', "X-Repo-Commit": repo.commit})
            return
        ask = self._ask(name, file)
        fault = self.hub.fault_of(ask, REDIRECT_FAULTS) if self.command == "GET" else None
        if fault is not None:
            self._broken(fault, ask, file)
            return
        self.send_response(302)
        for key, text in {
            "Location": f"{self.hub.cdn}/{quote(name)}/{quote(path)}?signature=secret-{file.sha256[:8]}",
            "X-Linked-Etag": f'"{file.sha256}"',
            "X-Linked-Size": str(file.size),
            "X-Repo-Commit": repo.commit,
            "ETag": f'"{file.git}"',
            "Content-Length": "0",
        }.items():
            self.send_header(key, text)
        self.end_headers()
        self.wfile.flush()

    def _from_cdn(self, path: str, query: dict[str, str]) -> None:
        owner, name, rest = [*path.strip("/").split("/", 2), "", ""][:3]
        repo = self.hub.repos.get(f"{owner}/{name}")
        file = repo.files.get(rest) if repo else None
        if file is None or not query.get("signature", "").startswith("secret-"):
            self._error(403, "", "no signature")
            return
        self._send(f"{owner}/{name}", file, {"ETag": f'"{file.sha256}"'})

    def _ask(self, name: str, file: File) -> Ask:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start, end = (int(found[1]), int(found[2] or file.size - 1) + 1) if found else (0, file.size)
        return Ask(self.where, name, file.path, start, min(end, file.size), self._token())

    def _send(self, name: str, file: File, headers: dict[str, str]) -> None:
        ask = self._ask(name, file)
        if self.command == "HEAD":
            self._begin(200, {**headers, "Content-Length": str(file.size), "Accept-Ranges": "bytes"})
            return
        with self.hub.lock:
            self.hub.asked.append(ask)
        if ask.start >= file.size > 0:
            self._error(416, "")
            return
        fault = self.hub.fault_of(ask)
        if fault is not None and fault.kind in ("status", "silent"):
            self._broken(fault, ask, file)
            return
        whole = not self.headers.get("Range") or (fault is not None and fault.kind == "whole")
        if whole:
            ask.start, ask.end = 0, file.size
        ask.status = 200 if whole else 206
        size = file.size + (1 if fault is not None and fault.kind == "other_size" else 0)
        headers = {**headers, "Content-Length": str(ask.end - ask.start if not whole else size)}
        if not whole:
            headers |= {"Content-Range": f"bytes {ask.start}-{ask.end - 1}/{size}"}
        self._begin(ask.status, {"Accept-Ranges": "bytes", **headers})
        self._pour(file, ask, fault)

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, text in headers.items():
            self.send_header(key, text)
        self.end_headers()
        self.wfile.flush()

    def _broken(self, fault: Fault, ask: Ask, file: File) -> None:
        ask.status = fault.status
        if fault.kind == "silent":
            self.hub.released.wait(60)
            self.close_connection = True
        elif fault.kind == "drop":
            self._reset()
        else:
            self._reply(fault.status, {"error": "ordered"}, **fault.headers)

    def _reset(self) -> None:
        """The other side sees its connection broken, not closed."""
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.request.close()

    def _pour(self, file: File, ask: Ask, fault: Fault | None) -> None:
        if fault is None and isinstance(file.data, Path):
            with file.data.open("rb") as source:
                ask.sent += self.request.sendfile(source, ask.start, ask.end - ask.start)
            return
        kind = fault.kind if fault is not None else ""
        stop = ask.start + fault.after if fault is not None and kind in ("drop", "short", "stall") else ask.end
        data = memoryview(file.bytes)
        at, begun = ask.start, time.monotonic()
        while at < min(stop, ask.end):
            chunk = data[at : min(at + CHUNK, stop, ask.end)]
            if kind == "wrong" and at == ask.start:
                chunk = memoryview(bytes([chunk[0] ^ 1]) + bytes(chunk[1:]))
            if fault is not None and fault.rate:
                chunk = chunk[: max(1, int(fault.rate / 20))]
                wait = (at - ask.start) / fault.rate - (time.monotonic() - begun)
                if wait > 0 and self.hub.released.wait(wait):
                    fault = None
            self.request.sendall(chunk)
            at += len(chunk)
            ask.sent += len(chunk)
        if at >= ask.end:
            return
        if kind == "drop":
            self._reset()
        elif kind == "stall":
            self.hub.released.wait(60)
        self.close_connection = True


def main(argv: list[str]) -> int:
    with Hub() as hub:
        for folder in sorted(Path(argv[0]).glob("*/*")):
            hub.add("/".join(folder.parts[-2:]), folder)
        sys.stdout.write(json.dumps({"url": hub.url, "cdn": hub.cdn}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
