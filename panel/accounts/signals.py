"""News for the rooms above: what they may keep about tokens and people has changed."""

from functools import partial

from django.db import transaction
from django.dispatch import Signal

# A token was made, revoked or changed, or its owner was; the door's snapshot of tokens is old. No arguments.
tokens_changed = Signal()


def tell_tokens_changed() -> None:
    """Send `tokens_changed` once the change is committed; a receiver that fails harms nobody."""
    transaction.on_commit(partial(tokens_changed.send_robust, sender=None), robust=True)
