"""One request for a range of a hub's file: redirects, what an answer means, and what can be tried again.

A token goes to the hub's own address alone, never to the store that it redirects to. An address of a store carries a
signature, so no address but the name of its host is ever said.
"""

from __future__ import annotations

import email.utils
import re
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies

import httpx

from panel.fleet.agent.download_peers import Peers, place_of
from panel.fleet.agent.download_trouble import Trouble as Trouble
from panel.fleet.agent.version import VERSION

MAX_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
RETRY_STATUS = (408, 409, 425, 500, 502, 503, 504)
STORE_STATUS = (401, 403, 404, 410)  # of a store: its address has run out, and the hub gives a new one
RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True)
class Patience:
    """How long to wait, seconds. `first_s`: for the first byte of all; `read_s`: for the next bytes of an answer."""

    connect_s: float = 10.0
    read_s: float = 30.0
    first_s: float = 45.0
    stall_s: float = 900.0
    most_pause_s: float = 30.0


@dataclass
class Session:
    """Requests to one hub. `endpoint` is its address, `named` are those that the owner allowed. For several threads."""

    endpoint: str
    token: str = field(default="", repr=False)
    proxy: str = field(default="", repr=False)
    patience: Patience = field(default_factory=Patience)
    connections: int = 4
    named: Sequence[str] = ()
    client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=self.connections + 1, max_keepalive_connections=self.connections + 1)
        headers = {"User-Agent": f"berth-agent/{VERSION}", "Accept-Encoding": "identity"}
        self.client = httpx.Client(
            headers=headers,
            proxy=self.proxy or None,
            verify=_authorities(),
            timeout=httpx.Timeout(self.patience.read_s, connect=self.patience.connect_s),
            limits=limits,
            follow_redirects=False,
        )
        self._peers = Peers(self.endpoint, self.named)
        # Of direct connections alone, also of those that NO_PROXY asks for: a proxy looks names up itself.
        self.client._transport._pool._network_backend = self._peers  # type: ignore[attr-defined]
        self._proxied = bool(self.proxy or getproxies())  # of the order, or of this host's environment
        self._site = _site(self.endpoint)

    def close(self) -> None:
        self.client.close()

    # --- requests -----------------------------------------------------------------------------------------------------

    def commit_of(self, address: str) -> str:
        """The commit that a branch or tag is now, "" when the hub does not tell. Raises Trouble."""
        response, own = self._open("HEAD", address)
        try:
            if response.status_code >= 400:
                self._check_status(response, own)
            return str(response.headers.get("X-Repo-Commit", ""))
        finally:
            response.close()

    @contextmanager
    def range(self, address: str, start: int, end: int, size: int, sum_: str) -> Iterator[Iterator[bytes]]:
        """The bytes [start, end) of a file of `size` bytes. Raises Trouble, also while they are read.

        A server that knows no ranges sends the file from its beginning; then the bytes before `start` are passed over.
        """
        response, own = self._open("GET", address, sum_, Range=f"bytes={start}-{end - 1}")
        try:
            self._check_status(response, own)
            yield self._body(response, self._check_range(response, start, size), end - start)
        finally:
            response.close()

    def _open(self, method: str, address: str, expect: str = "", **headers: str) -> tuple[httpx.Response, bool]:
        """(open answer behind all redirects, whether the hub itself gave it). Raises Trouble."""
        for _hop in range(MAX_REDIRECTS + 1):
            own = _site(address) == self._site
            self._peers.check(address)
            more = {"Authorization": f"Bearer {self.token}"} if own and self.token else {}
            try:
                request = self.client.build_request(method, address, headers={**headers, **more})
                response = self.client.send(request, stream=True)
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as exc:
                raise self._explained(exc) from exc
            try:
                if own and expect:
                    _check_etag(response, expect)
                target = response.headers.get("Location", "")
                told = method == "HEAD" and "X-Repo-Commit" in response.headers
                if response.status_code not in REDIRECTS or not target or told:
                    return response, own
                address = _checked_redirect(address, target)
            except Trouble:
                response.close()
                raise
            response.close()
        raise Trouble("server_error", fatal=True, what="redirects")

    def _body(self, response: httpx.Response, skip: int, count: int) -> Iterator[bytes]:
        """`count` bytes after the first `skip`; raises Trouble when the answer ends before."""
        try:
            for chunk in response.iter_raw():
                if skip >= len(chunk):
                    skip -= len(chunk)
                    continue
                part = chunk[skip : skip + count]
                skip = 0
                count -= len(part)
                yield part
                if not count:
                    return
        except (httpx.HTTPError, httpx.StreamError, OSError) as exc:
            raise self._explained(exc) from exc
        raise Trouble("short_body")

    # --- what an answer means -----------------------------------------------------------------------------------------

    def _check_status(self, response: httpx.Response, own: bool) -> None:
        status, said = response.status_code, response.headers.get("X-Error-Code", "")
        if status in (200, 206):
            return
        host = (response.url.host or "")[:200]
        if status == 407:
            raise Trouble("proxy", fatal=True, status=status)
        if status == 429:
            raise Trouble("rate_limited", wait_s=_retry_after(response), host=host)
        if not own and status in STORE_STATUS:
            raise Trouble("server_error", status=status, host=host)
        if said == "RepoNotFound":  # the Hub also says so, with 401, of a private one
            raise Trouble("not_found", fatal=True, what="repo", token=bool(self.token))
        if status in (401, 403):
            code = "gated" if said == "GatedRepo" else "unauthorized"
            raise Trouble(code, fatal=True, status=status, token=bool(self.token))
        if status == 404:
            what = "revision" if said == "RevisionNotFound" else "file"
            raise Trouble("not_found", fatal=True, what=what)
        if status == 416:
            raise Trouble("changed", fatal=True, what="size")
        fatal = status not in RETRY_STATUS and status < 500
        raise Trouble("server_error", fatal=fatal, wait_s=_retry_after(response), status=status, host=host)

    def _check_range(self, response: httpx.Response, start: int, size: int) -> int:
        """Bytes to pass over. Raises Trouble when it is another file or part than was asked for."""
        if response.headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
            raise Trouble("server_error", fatal=True, what="encoding")
        if response.status_code == 200:
            length = response.headers.get("Content-Length", str(size))
            if length != str(size):
                raise Trouble("changed", fatal=True, what="size")
            return start
        found = RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise Trouble("server_error", what="range")
        if int(found[3]) != size:
            raise Trouble("changed", fatal=True, what="size")
        return 0

    def _explained(self, exc: Exception) -> Trouble:
        causes = list(_chain(exc))
        if isinstance(exc, httpx.ProxyError):
            return Trouble("proxy", error=str(exc)[:200])
        certificate = next((one for one in causes if isinstance(one, ssl.SSLCertVerificationError)), None)
        if certificate is not None:
            return Trouble("tls", fatal=True, error=str(certificate.verify_message)[:200])
        if any(isinstance(one, ssl.SSLError) for one in causes) and isinstance(exc, httpx.ConnectError):
            return Trouble("tls", error=str(exc)[:200])
        if isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout):
            if self._proxied:
                return Trouble("proxy", error=str(exc)[:200])
            lost = any(isinstance(one, socket.gaierror) for one in causes)
            return Trouble("dns" if lost else "offline", host=(urlsplit(self.endpoint).hostname or "")[:200])
        if isinstance(exc, httpx.ReadTimeout):
            return Trouble("silent")
        if isinstance(exc, httpx.RemoteProtocolError) and "without sending complete" in str(exc):
            return Trouble("short_body")
        return Trouble("connection_lost")


def _authorities() -> ssl.SSLContext:
    """This system's authorities, and SSL_CERT_FILE or SSL_CERT_DIR where they are set."""
    return ssl.create_default_context()


def _site(address: str) -> tuple[str, str, int]:
    return urlsplit(address).scheme, *place_of(address)


def _checked_redirect(before: str, target: str) -> str:
    try:
        after = urljoin(before, target)
        old, new = urlsplit(before), urlsplit(after)
        place_of(after)
    except ValueError as exc:  # no address at all: a port of 99999, half a bracket
        raise Trouble("server_error", fatal=True, what="redirect") from exc
    if new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme == "http"):
        raise Trouble("server_error", fatal=True, what="redirect")
    return after


def _check_etag(response: httpx.Response, expect: str) -> None:
    """The hub says which content it will serve; another one than was planned need not be fetched."""
    raw = response.headers.get("X-Linked-Etag") or ""
    told = raw.removeprefix("W/").strip('"').lower()
    if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", told) and len(told) == len(expect) and told != expect:
        raise Trouble("changed", fatal=True, what="content")


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks to wait, 0 when it does not say."""
    text = response.headers.get("Retry-After", "")
    if text.isdigit():
        return float(text[:6])
    try:
        return max(0.0, min(999_999.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time()))
    except (TypeError, ValueError):
        return 0.0


def _chain(exc: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        yield exc
        exc = exc.__cause__ or exc.__context__
