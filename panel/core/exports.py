"""Where goes what is not kept any longer: gzip files in one folder, written whole before anything is taken away."""

import gzip
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from django.conf import settings


def path_of(name: str) -> Path:
    """The file of this name, such as "events/2026-01.jsonl.gz", whether it is there or not."""
    folder: Path = settings.BERTH_EXPORT_FOLDER
    return folder / name


def write(name: str, parts: Iterable[bytes]) -> Path:
    """Write a file that only its owner can read; on disk when this returns, and never half. Raises OSError.

    A file of this name is replaced: the same is exported again where the first try could not be finished.
    """
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(draft, "xb", opener=_private) as file:
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6) as packed:
                for part in parts:
                    packed.write(part)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # the name, too
    finally:
        os.close(handle)
    return path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
