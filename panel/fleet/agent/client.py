"""Calls to the one panel this agent belongs to: bounded both ways, with the host token, no redirects."""

from __future__ import annotations

import json
import random
import ssl
import sys
from typing import Any
from urllib.parse import urlsplit

# httpx brings a command line, and with it click and rich wherever they happen to be installed: megabytes and half of
# the agent's start for nothing. It copes with their absence, so let them be absent.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type] # None makes the import fail, as documented

import httpx  # noqa: E402

from panel.fleet.agent.config import Config, is_loopback  # noqa: E402
from panel.fleet.agent.pins import PinnedContext  # noqa: E402
from panel.fleet.agent.version import VERSION  # noqa: E402
from panel.fleet.wire import INSTANCE_HEADER, WIRE_HEADER, WIRE_VERSION  # noqa: E402

MAX_REPLY = 16 << 20


class Away(Exception):
    """The panel cannot be reached, or answers nonsense. Try again later."""


class Rejected(Exception):
    """The panel answered with an error status: its code and its sentence, or the beginning of whatever came."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.code = status, ""
        said = text[:200]
        try:
            error = json.loads(text)
        except (ValueError, RecursionError):
            error = None
        if isinstance(error, dict):
            self.code = str(error.get("code", ""))[:64]
            said = f"{self.code}: {error.get('message', '')} {error.get('hint', '')}".strip()[:1000]
        super().__init__(f"{status} {said}")


def _tls(config: Config) -> ssl.SSLContext:
    """Certificates are always checked. Without TLS no list of authorities is loaded: it costs megabytes."""
    if config.panel_pin:
        return PinnedContext(config.panel_pin)
    if urlsplit(config.panel).scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context(cafile=config.ca_file)


class Client:
    """One connection to the panel; each thread has its own."""

    def __init__(self, config: Config, tls: ssl.SSLContext | None = None) -> None:
        own = is_loopback(urlsplit(config.panel).hostname or "")
        headers = {"User-Agent": f"berth-agent/{VERSION}", WIRE_HEADER: str(WIRE_VERSION)}
        if config.token:
            headers["Authorization"] = f"Bearer {config.token}"
        if config.instance:
            headers[INSTANCE_HEADER] = config.instance
        self._http = httpx.Client(
            base_url=config.work_url,
            headers=headers,
            verify=tls or _tls(config),
            timeout=httpx.Timeout(15.0, connect=5.0),
            follow_redirects=False,
            trust_env=not own,  # a proxy of the environment has no business between us and ourselves
            limits=httpx.Limits(max_connections=1),
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: bytes | None = None,
        timeout_s: float = 15.0,
    ) -> bytes | None:
        """The reply's body, None for 204. Raises Away or Rejected."""
        try:
            with self._http.stream(
                method, path, params=params, content=body, timeout=httpx.Timeout(timeout_s, connect=min(5.0, timeout_s))
            ) as reply:
                data = bytearray()
                for part in reply.iter_bytes():
                    data += part
                    if len(data) > MAX_REPLY:
                        raise Away("reply too large")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as exc:
            raise Away(f"{type(exc).__name__}: {exc}") from exc
        if reply.status_code == 204:
            return None
        if reply.status_code != 200:
            raise Rejected(reply.status_code, data.decode(errors="replace"))
        return bytes(data)

    def close(self) -> None:
        self._http.close()


class Backoff:
    """Growing pauses with jitter, so that a hundred agents do not knock at once when the panel comes back."""

    def __init__(self, first: float = 0.2, most: float = 10.0) -> None:
        self.first, self.most, self._next = first, most, first

    @property
    def fresh(self) -> bool:
        """No failure since the last success: worth a line in the log, which the next thousand are not."""
        return self._next == self.first

    def pause(self) -> float:
        pause, self._next = self._next, min(self.most, self._next * 2)
        return pause * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._next = self.first
