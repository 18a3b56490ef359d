"""Uvicorn for a door: a limit on the whole request head, TLS with an own certificate, and a quiet way out."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import ssl
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from panel.fleet.agent import private
from panel.fleet.door.cycle import Cycle
from panel.fleet.door.limits import Limits

GRACE_S = 120  # answers that are under way when the process is told to stop
KEEP_S = 75  # idle connections of the panel's door, which ends its side sooner
MOST = 4096  # connections and requests at once


class HeadLimit(HttpToolsProtocol):
    """Uvicorn waits for ever: for a request's head, and for a client that takes nothing of its answer."""

    head_s = Limits.head_s
    stall_s = Limits.client_stall_s
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _idle_at: float | None = None  # loop time, while nothing is asked

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A head that came whole, as most do, needs no timer. (Its end is when the scope learns of the method.)
        if self._head_timer is None and self.scope and "method" not in self.scope and not self.transport.is_closing():
            self._begin_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()
        self.cycle.__class__ = Cycle

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._end_stall()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    # Uvicorn sets and cancels a timer with every request; here it runs on and looks whether there was one.

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._wait_idle(self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_at = None

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_at is None:
            return
        left = self._idle_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._wait_idle(left)
        else:
            super().timeout_keep_alive_handler()

    def _wait_idle(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        super().pause_writing()
        # The app may be gone by then: closing a connection in order waits for all that was written.
        self._stall_timer = self.loop.call_later(self.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _begin_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_s, self._head_late)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        self.transport.abort()


class Server(uvicorn.Server):
    """Tells when it listens and when it stops to; its own signals only."""

    def __init__(self, config: uvicorn.Config, on_close: Any) -> None:
        super().__init__(config)
        self._on_close = on_close

    async def shutdown(self, sockets: Any = None) -> None:
        # Another door may take the port at once; this one only finishes what it began.
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        self._on_close()
        await super().shutdown(sockets)


def config(app: Any, tls: tuple[Path, Path]) -> uvicorn.Config:
    """`tls` is (certificate, key). TLS 1.3 only: the one client is the panel's door."""
    certificate, key = tls
    made = uvicorn.Config(
        app,
        loop="asyncio",
        http=HeadLimit,
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        limit_concurrency=MOST,
        timeout_keep_alive=KEEP_S,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
    )
    made.load()
    assert made.ssl is not None
    # Uvicorn has no setting for it: one who connects and says nothing would hold a connection for a minute.
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = Limits.head_s  # type: ignore[attr-defined]
    made.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
    return made


# --- the certificate --------------------------------------------------------------------------------------------------


def fingerprint(certificate: Path) -> str:
    """SHA-256 (hex) of a certificate in DER, which is what the panel pins. Raises OSError or ValueError."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="ascii"))).hexdigest()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """(certificate, key) of this door, made once; 0600. It proves nothing by itself: the panel knows it by its hash."""
    certificate, key = folder / "door.crt", folder / "door.key"
    with contextlib.suppress(OSError, ValueError):
        if key.stat().st_size and fingerprint(certificate):
            return certificate, key
    # Only where it is needed: this library takes as much memory as the rest of the door.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "berth door")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=365 * 20))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private.write(key, secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    private.write(certificate, made.public_bytes(serialization.Encoding.PEM))
    return certificate, key
