"""What hubs tell of models, in one shape: a search, and one repository with its files. Both hubs' APIs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from models_catalog.downloads.asking import Asker, HubTrouble
from models_catalog.downloads.models import Source
from panel.fleet.wire_models import MAX_SIZE

FOUND = 20  # of a search
PAGES = 20  # of a tree
MOST_FILES = 5000
EXPAND = [
    "downloads",
    "likes",
    "gated",
    "tags",
    "pipeline_tag",
    "lastModified",
    "cardData",
    "safetensors",
    "usedStorage",
]
BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2}  # others: one
MOST = 1 << 60  # of any number that a hub tells
SHA1, SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository; `sha256` of what lies in LFS, `etag` the git blob's SHA-1 of small files."""

    path: str
    size: int
    sha256: str = ""
    etag: str = ""

    def as_order(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256, "etag": self.etag}


@dataclass(frozen=True)
class Found:
    """One repository as a search tells of it; None: the hub does not say."""

    repo: str
    licence: str = ""
    downloads: int | None = None
    likes: int | None = None
    size: int | None = None
    weights: int | None = None  # bytes of these alone; the size may count every form and every commit
    gated: bool = False
    task: str = ""
    updated: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repo:
    """One repository at one commit. `config` is its config.json, {} without one."""

    found: Found
    commit: str
    ref: str
    refs: tuple[str, ...]
    files: tuple[HubFile, ...]
    config: dict[str, Any] = field(default_factory=dict)


def search(asker: Asker, text: str, *, page: int = 1) -> list[Found]:
    """The most downloaded models that fit. Raises HubTrouble."""
    if asker.hub.source == Source.MODELSCOPE:
        body = {"Name": text, "PageSize": FOUND, "PageNumber": page, "SortBy": "Default", "Target": ""}
        body |= {"Criterion": [], "SingleCriterion": []}
        data = _scoped(asker.json("/api/v1/dolphin/models", method="PUT", body=body).value)
        return [_from_scope(item) for item in _list(_dict(data.get("Model")).get("Models"))]
    query = {"search": text, "limit": FOUND, "sort": "downloads", "direction": -1, "expand": EXPAND}
    return [_from_hub(item) for item in _list(asker.json("/api/models", query).value)]


def repository(asker: Asker, repo: str, ref: str = "") -> Repo:
    """A repository with its files at a branch, tag or commit ("" the main branch). Raises HubTrouble."""
    read = _scope_repository if asker.hub.source == Source.MODELSCOPE else _hub_repository
    return read(asker, repo, ref or asker.hub.main)


# --- the Hugging Face Hub ---------------------------------------------------------------------------------------------


def _hub_repository(asker: Asker, repo: str, ref: str) -> Repo:
    base = f"/api/models/{quote(repo)}"
    info = _dict(asker.json(f"{base}/revision/{quote(ref, safe='')}").value)
    commit = str(info.get("sha") or "")
    if not SHA1.fullmatch(commit):
        raise HubTrouble("server_error", host=asker.host, what="commit")
    answer = asker.json(f"{base}/tree/{commit}", {"recursive": "true"})
    entries = _list(answer.value)
    for _page in range(PAGES):
        if not answer.next:
            break
        answer = asker.json(answer.next)
        entries += _list(answer.value)
    files = _files(entries, asker.host)
    return Repo(
        _from_hub(info), commit, ref, _hub_refs(asker, base, ref), files, _hub_config(asker, repo, commit, files)
    )


def _hub_refs(asker: Asker, base: str, ref: str) -> tuple[str, ...]:
    try:
        told = _dict(asker.json(f"{base}/refs").value)
    except HubTrouble:
        return (ref,)  # a mirror that has no such question
    names = [_text(entry.get("name"), 200) for kind in ("branches", "tags") for entry in _list(told.get(kind))]
    return tuple(dict.fromkeys([ref, *filter(None, names)]))[:100]


def _hub_config(asker: Asker, repo: str, commit: str, files: Iterable[HubFile]) -> dict[str, Any]:
    """config.json, from which the memory is estimated; {} where it cannot be had, of gated ones for example."""
    if not any(file.path == "config.json" and file.size < 1 << 20 for file in files):
        return {}
    try:
        return _dict(json.loads(asker.text(f"/{quote(repo)}/resolve/{commit}/config.json")))
    except (HubTrouble, ValueError, RecursionError):
        return {}


def _files(entries: Iterable[dict[str, Any]], host: str) -> tuple[HubFile, ...]:
    found = []
    for entry in entries:
        if entry.get("type") != "file":
            continue
        lfs = _dict(entry.get("lfs"))
        sha, oid = str(lfs.get("oid") or ""), str(entry.get("oid") or "")
        size = lfs.get("size") or entry.get("size") or 0
        found.append(_file(entry.get("path"), size, sha, oid))
    if len(found) > MOST_FILES:
        raise HubTrouble("server_error", host=host, what="files")
    return tuple(found)


def _file(path: Any, size: Any, sha256: str, etag: str) -> HubFile:
    """What no host would take (a name with signs that are none, an endless size) has no sum, so it cannot be chosen."""
    sha256 = sha256.removeprefix("sha256:").lower()
    name, number = _text(path, 1000), _whole(size) or 0
    if name != path or not name.isprintable() or number > MAX_SIZE:
        return HubFile(name, min(number, MAX_SIZE))
    return HubFile(name, number, sha256 if SHA256.fullmatch(sha256) else "", etag if SHA1.fullmatch(etag) else "")


def _from_hub(item: dict[str, Any]) -> Found:
    told = item.get("tags")
    tags = [_text(tag, 80) for tag in (told if isinstance(told, list) else [])[:60] if isinstance(tag, str)]
    licence = next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), "")
    card = _dict(item.get("cardData"))
    weights = _weights(_dict(_dict(item.get("safetensors")).get("parameters")))
    return Found(
        repo=_text(item.get("id") or item.get("modelId"), 200),
        licence=_text(card.get("license_name") or licence or card.get("license"), 120),
        downloads=_whole(item.get("downloads")),
        likes=_whole(item.get("likes")),
        size=weights or _whole(item.get("usedStorage")),
        weights=weights or None,
        gated=bool(item.get("gated")),
        task=_text(item.get("pipeline_tag"), 60),
        updated=_text(item.get("lastModified"), 10),
        tags=tuple(tags),
    )


def _weights(parameters: dict[str, Any]) -> int:
    """Bytes of the weights, by how many numbers there are of each format."""
    return min(MOST, sum(BYTES.get(kind, 1) * (_whole(count) or 0) for kind, count in parameters.items()))


# --- ModelScope -------------------------------------------------------------------------------------------------------


def _scope_repository(asker: Asker, repo: str, ref: str) -> Repo:
    base = f"/api/v1/models/{quote(repo)}"
    info = _scoped(asker.json(base).value)
    told = _scoped(asker.json(f"{base}/repo/files", {"Revision": ref, "Recursive": "True"}).value)
    files = tuple(
        _file(entry.get("Path"), entry.get("Size"), str(entry.get("Sha256") or ""), "")
        for entry in _list(told.get("Files"))
        if entry.get("Type") != "tree"
    )
    revisions = _dict(_scoped(asker.json(f"{base}/revisions").value).get("RevisionMap"))
    names = [_text(entry.get("Revision"), 200) for kind in revisions.values() for entry in _list(kind)]
    config = {}
    if any(file.path == "config.json" and file.size < 1 << 20 for file in files):
        try:
            where = f"{base}/repo?Revision={quote(ref, safe='')}&FilePath=config.json"
            config = _dict(json.loads(asker.text(where)))
        except (HubTrouble, ValueError, RecursionError):
            config = {}
    refs = tuple(dict.fromkeys([ref, *filter(None, names)]))[:100]
    return Repo(
        _from_scope({**info, "Path": repo.split("/")[0], "Name": repo.split("/")[1]}), ref, ref, refs, files, config
    )


def _scoped(value: Any) -> dict[str, Any]:
    """What ModelScope's envelope holds. Raises HubTrouble."""
    told = _dict(value)
    if told.get("Success") is False or told.get("Data") is None:
        raise HubTrouble("not_found", what="repo", token=False)
    return _dict(told["Data"])


def _from_scope(item: dict[str, Any]) -> Found:
    told = item.get("Tasks")
    tasks = [_dict(task).get("Name") or task for task in (told if isinstance(told, list) else [])]
    return Found(
        repo=_text(f"{item.get('Path') or ''}/{item.get('Name') or ''}", 200),
        licence=_text(item.get("License"), 120),
        downloads=_whole(item.get("Downloads")),
        likes=_whole(item.get("Stars")),
        size=_whole(item.get("StorageSize")),
        gated=bool(item.get("ProtectedMode") == 1 or item.get("Gated")),
        task=_text(tasks[0], 60) if tasks else "",
    )


# --- answers of strangers ---------------------------------------------------------------------------------------------


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    sound = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return min(value, MOST) if sound else None


def _text(value: Any, most: int) -> str:
    """A text that a page can show and the database can keep: without NUL and without halves of signs."""
    return str(value or "").replace("\0", "").encode("utf-8", "replace").decode()[:most]
