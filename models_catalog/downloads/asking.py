"""Ask a hub one question over HTTP: bounded in time and bytes, with the token for nobody but the hub.

The address comes from the settings; where it may be is hubs.policy. What it redirects to may not be another server.
Through a proxy the proxy looks names up, and it decides.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import certifi

from models_catalog.downloads import hubs
from panel.core import http, outbound
from panel.fleet.agent.config import is_loopback

if TYPE_CHECKING:
    import httpx

MOST_BYTES = 24 << 20  # of one answer; a tree of 10,000 files has 3 MiB
DEADLINE_S = 12.0  # of one question
REDIRECTS = 3


class HubTrouble(Exception):
    """Why a hub gave no answer, as a code of `wording.FAILURES` with parameters."""

    def __init__(self, code: str, **params: Any) -> None:
        super().__init__(code)
        self.code = f"download.{code}"
        self.params = params

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "params": self.params}


@dataclass(frozen=True)
class Answer:
    """JSON of the body, and the address of the next part where the hub names one."""

    value: Any
    next: str = ""


@dataclass
class Asker:
    """A hub with the token that is used there."""

    hub: hubs.HubAt
    token: str = field(default="", repr=False)
    deadline_s: float = DEADLINE_S

    def json(
        self, path: str, query: Mapping[str, Any] | None = None, *, method: str = "GET", body: Any = None
    ) -> Answer:
        """`path` is below the endpoint, or a whole address of it. Raises HubTrouble."""
        raw, headers = self._fetch(path, query, method, body)
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as exc:
            raise HubTrouble("server_error", host=self.host, what="json") from exc
        return Answer(value, _next(headers.get("link", "")))

    def text(self, path: str, most: int = 1 << 20) -> bytes:
        """A small file. Raises HubTrouble."""
        return self._fetch(path, None, "GET", None, most)[0]

    @property
    def host(self) -> str:
        return urlsplit(self.hub.endpoint).hostname or ""

    # --- inside -------------------------------------------------------------------------------------------------------

    def _fetch(
        self, path: str, query: Mapping[str, Any] | None, method: str, body: Any, most: int = MOST_BYTES
    ) -> tuple[bytes, httpx.Headers]:
        if self.token and urlsplit(self.hub.endpoint).scheme == "http" and not is_loopback(self.host):
            raise HubTrouble("plain_http", endpoint=self.hub.endpoint)
        httpx = http.library()
        until = time.monotonic() + self.deadline_s
        url = path if "://" in path else self.hub.endpoint.rstrip("/") + path
        if query:
            url = str(httpx.URL(url).copy_merge_params(dict(query)))
        try:
            for _turn in range(REDIRECTS + 1):
                if urlsplit(url)[:2] != urlsplit(self.hub.endpoint)[:2]:
                    raise HubTrouble("server_error", host=self.host, what="redirect")
                status, headers, raw = self._once(url, method, body, most, until)
                if status not in (301, 302, 303, 307, 308):
                    self._check(status, headers)
                    return raw, headers
                url = urljoin(url, headers.get("location", ""))
        except httpx.ProxyError as exc:
            raise HubTrouble("proxy", error=str(exc)[:200]) from exc
        except httpx.TimeoutException as exc:
            raise HubTrouble("silent", host=self.host) from exc
        except httpx.HTTPError as exc:
            raise _unreachable(exc, self.host) from exc
        raise HubTrouble("server_error", host=self.host, what="redirects")

    def _once(self, url: str, method: str, body: Any, most: int, until: float) -> tuple[int, httpx.Headers, bytes]:
        headers = {"Accept-Encoding": "identity", "User-Agent": "berth"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        address, extensions = self._pinned(url, headers)
        left = max(0.1, until - time.monotonic())
        httpx = http.library()
        with (
            httpx.Client(
                proxy=hubs.proxy() or None, timeout=httpx.Timeout(left), trust_env=False, verify=_trusted()
            ) as client,
            client.stream(method, address, headers=headers, json=body, extensions=extensions) as answer,
        ):
            parts, size = [], 0
            for chunk in answer.iter_bytes():
                size += len(chunk)
                if size > most:
                    raise HubTrouble("server_error", host=self.host, what="size")
                if time.monotonic() > until:
                    raise HubTrouble("silent", host=self.host)
                parts.append(chunk)
            return answer.status_code, answer.headers, b"".join(parts)

    def _pinned(self, url: str, headers: dict[str, str]) -> tuple[str, dict[str, Any]]:
        """The same address by number, looked up once, so that the name cannot mean one thing now and another later."""
        if hubs.proxy():
            return url, {}
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            found = asyncio.run(asyncio.wait_for(outbound.pinned(host, port, hubs.policy(self.hub)), self.deadline_s))
        except outbound.Forbidden as exc:
            raise HubTrouble("address_not_allowed", host=host[:200], why=exc.code) from exc
        except (OSError, TimeoutError, UnicodeError) as exc:
            raise HubTrouble("dns", host=host[:200]) from exc
        if not found:
            raise HubTrouble("dns", host=host[:200])
        number = next((item for item in found if ":" not in item), found[0])
        headers["Host"] = parts.netloc
        netloc = f"[{number}]:{port}" if ":" in number else f"{number}:{port}"
        return parts._replace(netloc=netloc).geturl(), {"sni_hostname": host}

    def _check(self, status: int, headers: httpx.Headers) -> None:
        if status < 300:
            return
        code = headers.get("x-error-code", "")
        known = {"RepoNotFound": "repo", "RevisionNotFound": "revision", "EntryNotFound": "file"}
        if code == "GatedRepo":
            raise HubTrouble("gated", status=status, token=bool(self.token))
        if code in known or status == 404:
            raise HubTrouble("not_found", what=known.get(code, "repo"), token=bool(self.token))
        if status in (401, 403):
            raise HubTrouble("unauthorized", status=status, token=bool(self.token))
        if status == 407:
            raise HubTrouble("proxy", status=status)
        if status == 429:
            raise HubTrouble("rate_limited", host=self.host)
        raise HubTrouble("server_error", status=status, host=self.host)


@cache
def _trusted() -> ssl.SSLContext:
    """The machine's own authorities, where companies put theirs, and the usual ones; made once, since it takes long."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _unreachable(exc: httpx.HTTPError, host: str) -> HubTrouble:
    text = str(exc)
    if "CERTIFICATE" in text.upper() or "SSL" in text.upper():
        return HubTrouble("tls", error=text[:200])
    return HubTrouble("offline", host=host)


def _next(link: str) -> str:
    """The address after `rel="next"` of a Link header."""
    for part in link.split(","):
        address, _, words = part.partition(";")
        if 'rel="next"' in words:
            return address.strip(" <>")
    return ""
