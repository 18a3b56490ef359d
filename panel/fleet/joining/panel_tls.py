"""How a machine that joins can tell this panel from another: by a public authority, by a team's own, or by a pin.

The panel itself speaks plain HTTP to the proxy in front of it, so it does not hold the certificate. BERTH_TLS_CERT
names the file; without it the panel looks at its own public address, when a code is made and never at another time.
"""

import socket
import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from django.conf import settings

from panel.fleet.agent.config import is_loopback
from panel.fleet.agent.pins import pin_of

LOOK_S = 3.0


@dataclass(frozen=True)
class Trust:
    """`kind`: loopback (no TLS, this machine only), plain (no TLS), public, authority, pinned, unknown.

    `pin` is given for pinned ones only. unknown: the own address could not be looked at.
    """

    kind: str
    pin: str = ""


def trust() -> Trust:
    """What a machine needs in order to check this panel's certificate. Takes a few seconds at most."""
    parts = urlsplit(settings.BERTH_PUBLIC_URL)
    host, port = parts.hostname or "", parts.port or 443
    if parts.scheme == "http":
        return Trust("loopback" if is_loopback(host) else "plain")
    if certificates := _named():
        return Trust("authority") if _is_authority(certificates[0]) else Trust("pinned", _pin(certificates[0]))
    return _look(host, port)


def authority_pem() -> str:
    """The team's own authority, as it is carried by the script; "" when there is none."""
    certificates = _named() if settings.BERTH_PUBLIC_URL.startswith("https:") else []
    if not certificates or not _is_authority(certificates[0]):
        return ""
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def _named() -> list[x509.Certificate]:
    """The certificates of BERTH_TLS_CERT. Raises OSError or ValueError when that is no such file: a wrong setting."""
    path = Path(settings.BERTH_TLS_CERT) if settings.BERTH_TLS_CERT else None
    return list(_read(path, path.stat().st_mtime_ns)) if path else []


@lru_cache(maxsize=4)
def _read(path: Path, _changed_ns: int) -> tuple[x509.Certificate, ...]:
    return tuple(x509.load_pem_x509_certificates(path.read_bytes()))


def _is_authority(certificate: x509.Certificate) -> bool:
    """Whether it signs others' certificates. One that was made for this address is a server's own, though openssl
    marks what `req -x509` makes as an authority.
    """
    extensions = certificate.extensions
    try:
        if not extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
    except x509.ExtensionNotFound:
        return False
    host = urlsplit(settings.BERTH_PUBLIC_URL).hostname or ""
    named = {str(name.value) for name in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)}
    return host not in named and not any(ext.oid == x509.SubjectAlternativeName.oid for ext in extensions)


def _pin(certificate: x509.Certificate) -> str:
    return pin_of(certificate.public_bytes(Encoding.DER))


def _look(host: str, port: int) -> Trust:
    """The certificate that the public address shows from here."""
    try:
        _handshake(host, port, ssl.create_default_context())
    except ssl.SSLCertVerificationError:
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        try:
            return Trust("pinned", pin_of(_handshake(host, port, unchecked)))
        except (OSError, ValueError):
            return Trust("unknown")
    except OSError:
        return Trust("unknown")
    return Trust("public")


def _handshake(host: str, port: int, context: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection((host, port), timeout=LOOK_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        return tls.getpeercert(binary_form=True) or b""
