"""What an order about GGUF files and engines' packages may be on this host. Raises guard.Refused.

Apart from the work itself: the agent checks orders all day, and the work runs in processes of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from panel.fleet.agent import guard, remove
from panel.fleet.agent.config import Config
from panel.fleet.agent.download_order import is_plain_path, within
from panel.fleet.agent.guard import Refused
from panel.fleet.wire import ConvertTask, InstallTask, PackageTask, SidecarTask

FOLDER = "sidecars"
SOURCES = ("index_url", "extra_index_urls", "find_links", "proxy", "wheel_folder")


def folder_of(settings: Config) -> Path:
    """Where descriptions lie."""
    return settings.folder.absolute() / FOLDER


def check(task: SidecarTask | ConvertTask, *, known: Callable[[str], bool], roots: list[Path]) -> None:
    """Raises Refused for an engine that this host does not know and for a file outside its model folders."""
    if not known(task.executable) or Path(task.executable).name != "vllm":
        raise Refused("runtime_unknown", executable=task.executable[:500])
    check_file(task.path, roots)


def check_file(text: str, roots: list[Path]) -> Path:
    path = Path(text)
    if not path.is_absolute() or "\0" in text or not guard.inside(path, roots):
        raise Refused("path_not_allowed", path=text[:500])
    if not path.is_file():
        raise Refused("path_missing", path=text[:500])
    if path.suffix.lower() != ".gguf":
        raise Refused("sidecar.not_gguf", path=text[:500])
    return path


def check_convert(task: ConvertTask, *, allowed: bool, roots: list[Path]) -> Path:
    """Where it will lie. Raises Refused for what this host's owner forbids, or what would lie elsewhere."""
    if not allowed:
        raise Refused("convert.forbidden")
    folder = Path(task.folder)
    if not folder.is_absolute() or "\0" in task.folder or not within(folder, roots):
        raise Refused("convert.path_not_allowed", path=task.folder[:500])
    hidden = any(part.startswith(".") for part in task.name.split("/"))  # no look for models goes there
    target = folder / task.name
    if not is_plain_path(task.name, most=3) or hidden or not within(target, roots):
        raise Refused("convert.path_not_allowed", path=task.name[:500])
    if os.path.lexists(target):
        raise Refused("convert.folder_taken", path=str(target)[:500])
    return target


def check_package(settings: Config, task: PackageTask, secrets: Mapping[str, str] | None = None) -> Path:
    """The engine's folder. Raises Refused for an engine that is not Berth's own, and as an install would be."""
    order = InstallTask.model_validate(
        {
            "variant": "cuda",
            **{name: getattr(task, name) for name in SOURCES},
            "secret_env": task.secret_env if secrets is None else dict(secrets),
        }
    )
    guard.check_install(order, settings.allow_install, settings.install_sources)
    try:
        return remove.folder_of(settings.managed_folder, task.executable)
    except Refused as exc:
        raise Refused("package.not_managed", path=task.executable[:500]) from exc
