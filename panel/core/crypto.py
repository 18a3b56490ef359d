"""Secrets at rest: sealed with a key derived from the panel's own secret, so a copy of the database tells nothing.

A changed `BERTH_SECRET_KEY` makes stored secrets unreadable; former values in `SECRET_KEY_FALLBACKS` still open them.
"""

import base64
from functools import lru_cache
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from panel.core.errors import PanelError

_PURPOSE = b"berth/secrets at rest/1"


class CannotUnseal(PanelError):
    """The stored bytes were sealed with another secret key, or were changed."""

    code = "secret_unreadable"
    message: Any = _("A stored secret cannot be read: the panel's secret key is not the one that sealed it.")
    hint: Any = _("Restore the former secret key, or enter the secret again.")
    status = 500


@lru_cache(maxsize=8)
def _fernet(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(_derive(key)) for key in keys])


def _derive(key: str) -> bytes:
    hkdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE)
    return base64.urlsafe_b64encode(hkdf.derive(key.encode()))


def _current() -> MultiFernet:
    return _fernet((settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


def seal(text: str) -> bytes:
    """The text as encrypted, authenticated bytes, for a BinaryField."""
    return _current().encrypt(text.encode())


def unseal(blob: bytes | memoryview) -> str:
    """The text that was sealed. Raises CannotUnseal when the key is another or the bytes were changed."""
    try:
        return _current().decrypt(bytes(blob)).decode()
    except InvalidToken as exc:
        raise CannotUnseal from exc
