"""The panel's side of other hosts' doors: the keys it made for them, and where they are by their own word.

A key is random, kept sealed, and travels only to the door itself, by TLS with the pinned certificate. The host gets its
hash with the work. While a key is replaced both are taken, until the host said that it takes the new one.
"""

import ipaddress
import json
import logging
import re
import secrets
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from panel.core import network, outbound
from panel.core.crypto import CannotUnseal, seal, unseal
from panel.fleet import wire
from panel.fleet.door import token_hash
from panel.fleet.models import Host

log = logging.getLogger(__name__)

_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@lru_cache(maxsize=1024)
def _opened(sealed: bytes) -> tuple[str, ...]:
    return tuple(json.loads(unseal(sealed)))


def keys_of(host: Host) -> tuple[str, ...]:
    """The keys for a host's door, the newest first; none where they cannot be read any more."""
    if not host.door_keys:
        return ()
    try:
        return _opened(bytes(host.door_keys))
    except CannotUnseal:
        log.error("the key for the door of host %s cannot be read; a new one is made", host.pk)
        return ()


def order_for(host: Host) -> wire.DoorOrder | None:
    """What the work says of the door; the first key is made here. None on the panel's own machine."""
    if host.is_local:
        return None
    keys = keys_of(host)
    if not keys:
        made = seal(json.dumps([secrets.token_urlsafe(32)]))
        # Two calls at once must not make two keys of which one is known to nobody: the first one counts.
        if not Host.objects.filter(pk=host.pk, door_keys=host.door_keys).update(door_keys=made):
            host.refresh_from_db(fields=["door_keys"])
        else:
            host.door_keys = made
        keys = keys_of(host)
    return wire.DoorOrder(accepts=[token_hash(key) for key in keys])


def taken(host: Host, door: wire.DoorFacts | None) -> dict[str, Any]:
    """The columns that a report's door changes. Call it with the host's row locked."""
    if host.is_local:
        return {}
    facts = _checked(door).model_dump(mode="json") if door is not None else {}
    changes: dict[str, Any] = {"door": facts} if facts != host.door else {}
    keys = keys_of(host)
    if len(keys) > 1 and token_hash(keys[0]) in facts.get("accepts", []):
        changes["door_keys"] = seal(json.dumps(keys[:1]))  # the old one has done its service
    return changes


def _checked(door: wire.DoorFacts) -> wire.DoorFacts:
    """A host's word about its door is an address to speak to: nothing but an address passes."""
    proper = bool(_NAME.fullmatch(door.address)) or _is_ip(door.address)
    if proper and not door.problem and outbound.looks_wrong(door.address, policy()):
        return wire.DoorFacts(port=max(0, min(door.port, 65535)), problem="address_not_allowed")
    ok = proper and 0 < door.port < 65536 and bool(_HASH.fullmatch(door.certificate))
    accepts = [text for text in door.accepts[:4] if _HASH.fullmatch(text)]
    if ok and not door.problem:
        return door.model_copy(update={"accepts": accepts})
    problem = door.problem if re.fullmatch(r"[a-z_]{1,40}", door.problem) else "no_address"
    port = door.port if 0 < door.port < 65536 else 0
    return wire.DoorFacts(port=port, accepts=accepts, problem=problem)


def policy() -> outbound.Policy:
    """Where a host's door may be. On this machine only when the panel is for this machine alone."""
    here = urlsplit(settings.BERTH_PUBLIC_URL).hostname or ""
    return outbound.Policy(private=settings.BERTH_PRIVATE_RANGES, loopback=_is_here(here))


async def where(host: str, port: int) -> list[str]:
    """The addresses to call for a host's door. Raises OSError where it is nowhere that the panel may call."""
    try:
        return await outbound.pinned(host, port, policy())
    except outbound.Forbidden as exc:
        log.warning("the door at %s is at an address that the panel does not call (%s)", host, exc.code)
        raise PermissionError(f"the panel does not call this address ({exc.code})") from exc


def _is_here(host: str) -> bool:
    return host == "localhost" or (_is_ip(host) and network.is_loopback(host))


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def key_for(host: Host) -> str:
    """The newest key that the host said it takes; "" when it has not called since it was made."""
    accepts = set(host.door.get("accepts", []))
    return next((key for key in keys_of(host) if token_hash(key) in accepts), "")
