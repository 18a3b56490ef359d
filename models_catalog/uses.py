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
Few = Callable[[list[int], int], dict[int, tuple[list[Use], int]]]
Ever = Callable[[], set[int]]
_sources: list[tuple[Source, Few, Ever]] = []


def register(source: Source, few: Few, ever: Ever) -> None:
    """`source` gets ids of artifacts and returns their uses, what runs first; `ever` ids of all ever used.

    Its second argument says of how many uses of each artifact the page shows more than the name. `few` gets how many
    of each artifact a list shows, and returns these and how many there are.

    Both in a fixed number of queries. Call it from ready().
    """
    if (source, few, ever) not in _sources:
        _sources.append((source, few, ever))


def of(artifact_ids: Iterable[int], *, detailed: int = 0) -> dict[int, list[Use]]:
    """Uses by artifact, by name. A thousand may use one: only the first `detailed` of each say more than their name."""
    ids = list(artifact_ids)
    found: dict[int, list[Use]] = {}
    for source, _few, _ever in _sources if ids else []:
        for artifact_id, uses in source(ids, detailed).items():
            found.setdefault(artifact_id, []).extend(uses)
    return found


def few(artifact_ids: Iterable[int], most: int) -> dict[int, tuple[list[Use], int]]:
    """The first `most` uses of each artifact, and how many there are."""
    ids = list(artifact_ids)
    found: dict[int, tuple[list[Use], int]] = {}
    for _source, first, _ever in _sources if ids else []:
        for artifact_id, (some, count) in first(ids, most).items():
            before, counted = found.get(artifact_id, ([], 0))
            found[artifact_id] = ([*before, *some][:most], counted + count)
    return found


def ever_used() -> set[int]:
    """Ids of artifacts that something names or named."""
    return set().union(*(ever() for _source, _few, ever in _sources))
