"""A certificate that no public authority vouches for, held by its fingerprint.

A pin is the SHA-256 of the certificate's public key (so that a renewed certificate with the same key still counts) or
of the whole certificate: `sha256:` and 64 hexadecimal digits. With a pin nothing else of the certificate matters,
neither its name nor its dates nor this machine's clock.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
from typing import Any

_PIN = re.compile(r"sha256:[0-9a-f]{64}")
SEQUENCE, VERSION_TAG = 0x30, 0xA0


def is_pin(text: str) -> bool:
    return _PIN.fullmatch(text) is not None


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """(tag, where its content begins, where it ends) of the DER element at `at`. Raises ValueError."""
    try:
        tag, length, start = data[at], data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            length, start = int.from_bytes(data[start : start + count], "big"), start + count
    except IndexError as exc:
        raise ValueError("no DER") from exc
    if start + length > len(data):
        raise ValueError("no DER")
    return tag, start, start + length


def public_key(certificate: bytes) -> bytes:
    """The SubjectPublicKeyInfo of a certificate, both in DER. Raises ValueError."""
    _, at, _ = _element(certificate, 0)
    _, at, _ = _element(certificate, at)  # what was signed
    if _element(certificate, at)[0] == VERSION_TAG:
        _, _, at = _element(certificate, at)
    for _ in range(5):  # serial number, algorithm, issuer, dates, subject
        _, _, at = _element(certificate, at)
    tag, _, end = _element(certificate, at)
    if tag != SEQUENCE:
        raise ValueError("no certificate")
    return certificate[at:end]


def pin_of(certificate: bytes) -> str:
    """The pin of a certificate's public key. Raises ValueError when it is none."""
    return "sha256:" + hashlib.sha256(public_key(certificate)).hexdigest()


def fits(certificate: bytes | None, pin: str) -> bool:
    """Whether this is the certificate that was pinned."""
    if not certificate:
        return False
    if "sha256:" + hashlib.sha256(certificate).hexdigest() == pin:
        return True
    try:
        return pin_of(certificate) == pin
    except ValueError:
        return False


class PinnedContext(ssl.SSLContext):
    """A TLS client context that accepts one certificate: looked at after the handshake, before a byte is sent."""

    pin: str

    def __new__(cls, pin: str) -> PinnedContext:
        made: PinnedContext = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        made.pin = pin
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        return made

    def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        wrapped = super().wrap_socket(sock, *args, **kwargs)
        if not fits(wrapped.getpeercert(binary_form=True), self.pin):
            wrapped.close()
            raise ssl.SSLCertVerificationError("the certificate is not the one that was pinned")
        return wrapped
