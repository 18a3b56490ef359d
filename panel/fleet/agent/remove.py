"""Delete an installed engine: only a folder of the managed folder with our own marker that nothing runs from.

The folder is renamed first: from that moment on nothing new can start from it, and a second try finishes what a kill
left. Raises guard.Refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from panel.fleet.agent.guard import Refused
from panel.fleet.agent.provision import SetupProblem, locked, process_using, read_marker

GONE = ".removed-"  # beginning of the names of folders that are being deleted


def folder_of(managed: Path, executable: str) -> Path:
    """The venv behind `<managed>/<name>/bin/<engine>`. Raises Refused for everything else."""
    path = Path(executable)
    folder = path.parent.parent
    inside = (
        path.is_absolute()
        and ".." not in path.parts
        and "\0" not in executable
        and path.parent.name == "bin"
        and folder.parent == managed
        and not folder.name.startswith(".")
    )
    if not inside:
        raise Refused("remove.not_managed", path=executable[:500])
    if not os.path.lexists(folder):
        raise Refused("remove.missing", path=executable[:500])
    # A link would lead the deletion elsewhere; without our marker it is somebody else's.
    marker = None if folder.is_symlink() else read_marker(folder)
    if marker is None or not str(marker.get("engine", "")).startswith("vllm-"):
        raise Refused("remove.not_managed", path=executable[:500])
    return folder


def check(managed: Path, executable: str, used: Iterable[str], *, allowed: bool) -> Path:
    """The folder to delete. `used` are the programs of this host's living jobs."""
    if not allowed:
        raise Refused("install.forbidden")
    folder = folder_of(managed, executable)
    if any(Path(program).is_relative_to(folder) for program in used):
        raise Refused("remove.in_use", path=executable[:500])
    pid = process_using(folder)
    if pid is not None:
        raise Refused("remove.in_use", path=executable[:500], pid=pid)
    return folder


def remove(managed: Path, executable: str) -> Path:
    """Delete it; returns the folder that was. Raises Refused."""
    try:
        folder = folder_of(managed, executable)
        with locked(managed, folder.name, wait_s=5.0):
            check(managed, executable, (), allowed=True)
            gone = managed / f"{GONE}{folder.name}"
            _delete(gone)
            folder.rename(gone)
        _delete(gone)
        with contextlib.suppress(FileNotFoundError):
            (managed / f"{folder.name}.log").unlink()
    except SetupProblem as exc:
        raise Refused(f"remove.{exc.code}", **exc.params) from exc
    except OSError as exc:
        raise Refused("remove.failed", path=str(exc.filename or executable)[:500], error=exc.strerror or "") from exc
    return folder


def _delete(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
