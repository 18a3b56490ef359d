"""Who did what: `panel.audit.record(verb, target, actor=…, **facts)`, in the transaction of the change itself."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from panel.audit.services import record as record

__all__ = ["record"]


def __getattr__(name: str) -> Any:
    """Loads `record` when it is first used: an app package must not import models."""
    if name == "record":
        from panel.audit.services import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
