"""The panel's own secret: signs sessions and encrypts stored secrets. Made once, kept 0600 in the data folder."""

import contextlib
import os
import secrets
from pathlib import Path


def data_secret(data: Path) -> str:
    """The secret in `<data>/secret.key`; created when absent. Two processes that start at once agree on one."""
    path = data / "secret.key"
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="ascii").strip()
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = data / f".secret.{os.getpid()}.{secrets.token_hex(4)}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_urlsafe(48))
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)  # link, not rename: the first one wins
    draft.unlink()
    return path.read_text(encoding="ascii").strip()
