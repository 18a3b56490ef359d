"""Fetching the damaged files of a copy once more. Whoever downloads models registers here; else nothing is offered."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.utils.translation import gettext_lazy as _

from models_catalog.models import Copy
from panel.core.errors import Conflict

# Problems that other bytes of the same files would end.
CURABLE = frozenset(
    {
        "bad_header",
        "bad_index",
        "bad_tokenizer",
        "broken_link",
        "incomplete_download",
        "lfs_pointer",
        "missing_parts",
        "missing_tokenizer",
        "missing_weights",
        "not_gguf",
        "trailing_bytes",
        "truncated",
        "wrong_shard",
        "zero_bytes",
    }
)


@dataclass(frozen=True)
class Offer:
    """What a repair would fetch: so many of the model's weight files. 0 of 0: it is not known before.

    `page`: of the download that is at work on these files already; then there is nothing to order.
    """

    bad: int
    whole: int
    page: str = ""


Known = Callable[[list[Copy]], set[int]]
Repair = Callable[..., Any]
Running = Callable[[list[Copy]], dict[int, str]]
_fetcher: list[tuple[Known, Repair, Running]] = []


def register(known: Known, repair: Repair, running: Running = lambda copies: {}) -> None:
    """`known` gets copies and returns ids of those whose source it knows; `repair(copy, actor=…)` orders the fetch.

    `running` returns by copy the page of the download that is at work on it.
    """
    _fetcher[:] = [(known, repair, running)]


def offers(copies: Iterable[Copy]) -> dict[int, Offer]:
    """By copy: what could be fetched again. Only copies that are there and have a problem that this would end."""
    sick = [copy for copy in copies if copy.present and copy.delete_job_id is None and _curable(copy)]
    if not (_fetcher and sick):
        return {}
    known, _repair, running = _fetcher[0]
    found, moving = known(sick), running(sick)
    return {copy.pk: replace(_offer(copy), page=moving.get(copy.pk, "")) for copy in sick if copy.pk in found}


def _curable(copy: Copy) -> bool:
    return any(problem.get("code") in CURABLE for problem in copy.problems)


def _offer(copy: Copy) -> Offer:
    facts = copy.facts
    named: set[str] = set(facts.missing)
    for problem in copy.problems:
        params = problem.get("params") or {}
        if problem.get("code") in CURABLE:
            found = params.get("files")
            named |= {str(name) for name in found} if isinstance(found, list) else set()
            named |= {str(params["file"])} if params.get("file") else set()
    weights = {file.name for file in facts.files if file.kind == "weights"} | set(facts.missing)
    return Offer(len(named & weights), len(weights)) if named & weights else Offer(0, 0)


def possible(copy: Copy) -> bool:
    """Whether its files could be fetched again, damaged or not: an engine may find what no look at the folder did."""
    return bool(_fetcher) and copy.present and copy.delete_job_id is None and copy.pk in _fetcher[0][0]([copy])


def repair(copy: Copy, *, actor: Any, suspected: bool = False) -> Any:
    """Order it and return what the fetcher made of it. Raises Conflict when nobody knows the files' source.

    `suspected`: also where nothing damaged was seen; the host compares all files, and fetches those that differ.
    """
    if not (suspected and possible(copy)) and copy.pk not in offers([copy]):
        raise Conflict(
            "repair.unknown_source",
            _("Berth does not know where the files of this copy came from, or nothing of it is damaged."),
            _("Copy or download this model again, then look for models again."),
        )
    return _fetcher[0][1](copy, actor=actor)
