"""A disk that is soon full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs at `folder`, which is made; `size` as mount takes it, such as 200k."""
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={size}", "berth", str(folder)]
    if subprocess.run(argv, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
