"""Where on a host a download may go: its model folders, how files lie in each, and the room there. Reads rows only."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from models_catalog.downloads import fits
from models_catalog.downloads.models import Source
from models_catalog.estimate.kernels import capability_of
from models_catalog.services import roots_of
from panel.fleet.models import Host

STORES = ("/.ollama/", "/ollama/.ollama/")  # programs that keep an account of their files


@dataclass(frozen=True)
class Place:
    """A model folder of a host. `cache`: laid out as the Hugging Face cache. `free_mib` None: not told."""

    path: str
    cache: bool
    free_mib: int | None


def of(host: Host) -> list[Place]:
    """The folders that may be downloaded to; plain ones first, then the cache."""
    paths = [path for path in roots_of(host) if not any(store in f"{path}/" for store in STORES)]
    found = [Place(path, is_cache(path), free_mib(host, path)) for path in paths]
    return sorted(found, key=lambda place: place.cache)


def suits(host: Host, source: str, format_: str) -> list[Place]:
    """The same, those that suit first: the cache for what Hugging Face tools would put there, else a plain folder."""
    places = of(host)
    if source != Source.HUGGINGFACE:
        return [place for place in places if not place.cache]
    return sorted(places, key=lambda place: place.cache != (format_ == "hf"))


def is_cache(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return parts[-1:] == ("hub",) or parts[-2:] == ("huggingface", "cache")


def free_mib(host: Host, path: str) -> int | None:
    """The room on the disk of a folder: of the nearest folder whose disk the host told of."""
    disks: list[dict[str, Any]] = host.facts.get("disks") or []
    above = [disk for disk in disks if f"{path.rstrip('/')}/".startswith(f"{str(disk.get('path', '')).rstrip('/')}/")]
    best = max(above, key=lambda disk: len(str(disk["path"])), default=None)
    if best is None:
        shares = [
            disk for disk in disks if PurePosixPath(str(disk.get("path"))).parts[:2] == PurePosixPath(path).parts[:2]
        ]
        best = shares[0] if shares else None
    return int(best["free_mib"]) if best is not None else None


def layout(path: str, repo: str) -> tuple[str, str]:
    """(layout, name) of a wire.DownloadTask for this folder."""
    return ("hf_cache", "") if is_cache(path) else ("folder", repo)


def machine(host: Host, path: str) -> fits.Host:
    """The host as the question where something fits sees it; GPUs have to be prefetched."""
    there = [gpu for gpu in host.gpus.all() if gpu.present]
    gpus = tuple((gpu.name, gpu.total_mib) for gpu in there)
    able = {gpu.name: capability_of(gpu.measured.get("compute_capability")) for gpu in there}
    return fits.Host(host.name, gpus, host.ram_total_mib, free_mib(host, path), able)
