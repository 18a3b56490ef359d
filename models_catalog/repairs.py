"""Fetching the damaged files of a copy once more. Whoever downloads models registers here; else nothing is offered."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
    """What a repair would fetch: so many of the model's weight files. 0 of 0: it is not known before."""

    bad: int
    whole: int


Known = Callable[[list[Copy]], set[int]]
Repair = Callable[..., Any]
_fetcher: list[tuple[Known, Repair]] = []


def register(known: Known, repair: Repair) -> None:
    """`known` gets copies and returns ids of those whose source it knows; `repair(copy, actor=…)` orders the fetch."""
    _fetcher[:] = [(known, repair)]


def offers(copies: Iterable[Copy]) -> dict[int, Offer]:
    """By copy: what could be fetched again. Only copies that are there and have a problem that this would end."""
    sick = [copy for copy in copies if copy.present and copy.delete_job_id is None and _curable(copy)]
    known = _fetcher[0][0](sick) if _fetcher and sick else set()
    return {copy.pk: _offer(copy) for copy in sick if copy.pk in known}


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


def repair(copy: Copy, *, actor: Any) -> Any:
    """Order it. Raises Conflict when nobody knows where the files come from."""
    if copy.pk not in offers([copy]):
        raise Conflict(
            "repair.unknown_source",
            _("Berth does not know where the files of this copy came from, or nothing of it is damaged."),
            _("Copy or download this model again, then look for models again."),
        )
    return _fetcher[0][1](copy, actor=actor)
