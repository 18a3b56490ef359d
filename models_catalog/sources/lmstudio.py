"""LM Studio's folders: models/<publisher>/<repository>/<file>. Pure: paths in, names out."""

from __future__ import annotations

from models_catalog.inspect.reading import clean
from models_catalog.sources.local import LMSTUDIO_HOMES


def origin_of(path: str) -> str:
    """The repository that a file or folder below LM Studio's came from: "publisher/repository", "" elsewhere."""
    if not any(home in path for home in LMSTUDIO_HOMES):
        return ""
    parts = tuple(path.split("/"))
    for home in LMSTUDIO_HOMES:
        names = (*home.split("/"), "models")
        for at in range(len(parts) - len(names) - 1):
            if parts[at : at + len(names)] == names:
                return clean("/".join(parts[at + len(names) : at + len(names) + 2]))
    return ""
