"""The same request sent twice makes one thing: the header Idempotency-Key, kept for a day.

The key's row, the act and its answer are one transaction. Of two requests at once the second waits at the unique
index until the first is done, and then gets the first one's answer. What was refused is not kept: it may be tried
again with the same key.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop
from ninja import Header, Schema

from panel.core.errors import Conflict, Invalid
from panel.core.models import IdempotencyKey

KEPT = timedelta(hours=24)
LONGEST = 100  # characters of a key
EVERY_S = 600.0
_swept = float("-inf")


class OtherBody(Conflict):
    code = "idempotency.other_request"
    message: Any = _("This Idempotency-Key was used for another request.")
    hint: Any = _("Send a new key with each new request; repeat one only with the same body.")


def key_header() -> Any:
    """The parameter of an operation that creates."""
    text = gettext_noop(
        "A text of your own, new for each thing to make. The same key with the same body within 24 hours gives the"
        " first answer again; with another body 409. Secrets are not repeated."
    )
    return Header("", alias="Idempotency-Key", max_length=LONGEST, description=text)


def once(
    request: HttpRequest,
    response: HttpResponse,
    key: str,
    make: Callable[[], Schema],
    *,
    secrets: Collection[str] = (),
) -> Any:
    """The answer of `make()`, or the kept one of the request that had this key. `secrets` names fields never kept."""
    if not key:
        return make()
    if not (key.isascii() and key.isprintable() and len(key) <= LONGEST):
        raise Invalid({"Idempotency-Key": _("Use up to 100 visible characters of ASCII.")})
    owner = request.auth.id or 0  # put there by the operation's lock
    rows = IdempotencyKey.objects.filter(owner_id=owner, key=key)
    rows.filter(created_at__lt=timezone.now() - KEPT).delete()
    digest = _digest(request)
    with transaction.atomic():
        try:
            with transaction.atomic():
                row = IdempotencyKey.objects.create(owner_id=owner, key=key, digest=digest)
        except IntegrityError:
            kept = rows.get()
            if kept.digest != digest:
                raise OtherBody from None
            response["Idempotency-Replayed"] = "true"
            return kept.answer
        made = make()
        row.answer = {**made.model_dump(mode="json"), **dict.fromkeys(secrets)}
        row.save(update_fields=["answer"])
    return made


def _digest(request: HttpRequest) -> str:
    """What makes two requests the same: where they go and what their body says, not how it is spaced."""
    body = json.dumps(json.loads(request.body or b"null"), sort_keys=True)
    return hashlib.sha256(f"{request.method} {request.path}\n{body}".encode("utf-8", "replace")).hexdigest()


def sweep() -> int:
    """Forget the keys of yesterday."""
    gone, _models = IdempotencyKey.objects.filter(created_at__lt=timezone.now() - KEPT).delete()
    return gone


def sweep_sometimes() -> None:
    """Called by every tick; works once in ten minutes of this process."""
    global _swept
    now = time.monotonic()
    if now - _swept >= EVERY_S:
        _swept = now
        sweep()
