"""What uses a model. The room above registers how that is found out; this room only asks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Kind = Literal["running", "chosen", "last"]


@dataclass(frozen=True)
class Use:
    """One user of an artifact, by name, with the page that shows it.

    `running`: processes of it read the files of `copy_ids` now. `chosen`: its settings name this form of the model.
    `state` and `state_word` are those of its badge; `where` and `context` say what is known of its newest run.
    """

    text: str
    kind: Kind
    url: str = ""
    copy_ids: frozenset[int] = frozenset()
    state: str = ""
    state_word: str = ""
    where: str = ""
    engine: str = ""
    by: str = ""
    at: datetime | None = None


Source = Callable[[list[int]], dict[int, list[Use]]]
Ever = Callable[[], set[int]]
_sources: list[tuple[Source, Ever]] = []


def register(source: Source, ever: Ever) -> None:
    """`source` gets ids of artifacts and returns their uses; `ever` ids of all that were used at any time.

    Both in a fixed number of queries. Call it from ready().
    """
    if (source, ever) not in _sources:
        _sources.append((source, ever))


def of(artifact_ids: Iterable[int]) -> dict[int, list[Use]]:
    ids = list(artifact_ids)
    found: dict[int, list[Use]] = {}
    for source, _ever in _sources if ids else []:
        for artifact_id, uses in source(ids).items():
            found.setdefault(artifact_id, []).extend(uses)
    return found


def ever_used() -> set[int]:
    """Ids of artifacts that something names or named."""
    return set().union(*(ever() for _source, ever in _sources))
