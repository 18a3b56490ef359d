"""What people call the jobs of a host. The rooms above register how they name theirs; this room only asks."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Label:
    """A job's name for people, and the page that shows it."""

    text: str
    url: str = ""


Source = Callable[[list[uuid.UUID]], dict[uuid.UUID, Label]]
_sources: list[Source] = []


def register(source: Source) -> None:
    """`source` gets job ids and returns labels for those it knows, in one query. Call it from AppConfig.ready()."""
    if source not in _sources:
        _sources.append(source)


def of(job_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Label]:
    ids = list(job_ids)
    found: dict[uuid.UUID, Label] = {}
    for source in _sources if ids else []:
        found.update(source(ids))
    return found
