"""The panel's own secret: signs sessions and encrypts stored secrets. Made once, kept 0600 in the data folder."""

import contextlib
import os
import secrets
from pathlib import Path

from panel.core.env import SettingError


def data_secret(data: Path) -> str:
    """The secret in `<data>/secret.key`; created when absent. Two processes that start at once agree on one.

    Raises SettingError when the data folder cannot be used.
    """
    path = data / "secret.key"
    try:
        with contextlib.suppress(FileNotFoundError):
            return path.read_text(encoding="ascii").strip()
        return _make(path)
    except OSError as exc:
        raise SettingError(
            f"The data folder {data} cannot be used: {exc.strerror}. "
            "Give this user the right to write there, or choose another folder with BERTH_DATA."
        ) from exc


def _make(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".secret.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_urlsafe(48))
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)  # link, not rename: the first one wins
    draft.unlink()
    return path.read_text(encoding="ascii").strip()
