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
    `state` and what follows is told where it was asked for: the badge, and what is known of its newest run.
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


Source = Callable[[list[int], int], dict[int, list[Use]]]
Ever = Callable[[], set[int]]
_sources: list[tuple[Source, Ever]] = []


def register(source: Source, ever: Ever) -> None:
    """`source` gets ids of artifacts and returns their uses, what runs first; `ever` ids of all ever used.

    Its second argument says of how many uses of each artifact the page shows more than the name.

    Both in a fixed number of queries. Call it from ready().
    """
    if (source, ever) not in _sources:
        _sources.append((source, ever))


def of(artifact_ids: Iterable[int], *, detailed: int = 0) -> dict[int, list[Use]]:
    """Uses by artifact, by name. A thousand may use one: only the first `detailed` of each say more than their name."""
    ids = list(artifact_ids)
    found: dict[int, list[Use]] = {}
    for source, _ever in _sources if ids else []:
        for artifact_id, uses in source(ids, detailed).items():
            found.setdefault(artifact_id, []).extend(uses)
    return found


def ever_used() -> set[int]:
    """Ids of artifacts that something names or named."""
    return set().union(*(ever() for _source, ever in _sources))
