"""What uses an engine. The rooms above register how they find that out; this room only asks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["running", "chosen", "last"]


@dataclass(frozen=True)
class Use:
    """One user of an engine, by name, and the page that shows it.

    `running`: processes of it run from the engine now. `chosen`: its settings name this engine. `last`: it ran on it
    the last time, and takes what fits the next time.
    """

    text: str
    kind: Kind
    url: str = ""


Source = Callable[[list[int]], dict[int, list[Use]]]
_sources: list[Source] = []


def register(source: Source) -> None:
    """`source` gets ids of runtimes and returns their uses, in a fixed number of queries. Call it from ready()."""
    if source not in _sources:
        _sources.append(source)


def of(runtime_ids: Iterable[int]) -> dict[int, list[Use]]:
    ids = list(runtime_ids)
    found: dict[int, list[Use]] = {}
    for source in _sources if ids else []:
        for runtime_id, uses in source(ids).items():
            found.setdefault(runtime_id, []).extend(uses)
    return found
