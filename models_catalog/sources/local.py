"""The folders in which programs keep models on this machine. Pure: names are looked at, nothing is read but a setting.

Each program may have been told another folder; then its own variable or setting counts, as it does for the program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Source = Literal["", "hf-cache", "ollama", "lmstudio"]

OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the user that its installer on Linux makes
LMSTUDIO_HOMES = (".lmstudio", ".cache/lm-studio")
MAX_SETTING = 1 << 20


def home_of(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or Path.home())


def huggingface_cache(env: Mapping[str, str]) -> Path:
    """As huggingface_hub finds it: HF_HUB_CACHE, its older name, `hub` below HF_HOME, below XDG_CACHE_HOME or ~."""
    if told := env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE"):
        return Path(told).expanduser()
    if told := env.get("HF_HOME"):
        return Path(told).expanduser() / "hub"
    caches = Path(env["XDG_CACHE_HOME"]) if env.get("XDG_CACHE_HOME") else home_of(env) / ".cache"
    return caches / "huggingface" / "hub"


def ollama_stores(env: Mapping[str, str]) -> list[Path]:
    """Ollama's folders that are there and may be read: OLLAMA_MODELS, else the user's and the service's."""
    if told := env.get("OLLAMA_MODELS"):
        return _there([Path(told).expanduser()])
    return _there([home_of(env) / ".ollama" / "models", OLLAMA_SERVICE])


def lmstudio_folders(env: Mapping[str, str]) -> list[Path]:
    """LM Studio's folders of models that are there: the one that its settings name, and the usual ones."""
    home = home_of(env)
    homes = [home / name for name in LMSTUDIO_HOMES]
    moved = _text(home / ".lmstudio-home-pointer")
    if moved:
        homes.insert(0, Path(moved))
    folders = []
    for place in homes:
        told = _setting(place / "settings.json", "downloadsFolder")
        folders += [Path(told)] if told else []
        folders.append(place / "models")
    return _there(folders)


def usual_folders(env: Mapping[str, str]) -> list[Path]:
    """Where models lie when nothing was said. The first two are named whether they exist or not."""
    found = [huggingface_cache(env), home_of(env) / "models", *ollama_stores(env), *lmstudio_folders(env)]
    return list(dict.fromkeys(found))


def source_of(path: str) -> Source:
    """The program whose folder a path lies in, by its shape. Ollama's store is known by its own files instead."""
    inside = f"{path}/"
    if any(f"/{home}/models/" in inside for home in LMSTUDIO_HOMES):
        return "lmstudio"
    return "hf-cache" if "/models--" in inside else ""


def _there(folders: list[Path]) -> list[Path]:
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)]


def _text(path: Path) -> str:
    """A short file's text, "" when it is not there."""
    try:
        with path.open("rb") as file:
            return file.read(4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _setting(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(MAX_SETTING)).get(name)
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""  # a program's settings that cannot be read say nothing
    return value if isinstance(value, str) else ""
