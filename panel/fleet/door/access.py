"""Who asks: bearer tokens looked up by hash, and the panel's own short-lived signed tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass

from panel.fleet.door.errors import DoorError
from panel.fleet.door.snapshot import Snapshot, Token, token_hash

INTERNAL = "berth-internal."
MAX_TOKEN = 2048
_CHALLENGE = ((b"www-authenticate", b'Bearer realm="berth"'),)


@dataclass(slots=True)
class Caller:
    """A request's asker. `deployment_id` is set for the panel's own tokens: they open that one deployment only.

    `probe_run` names the run that the answer probe may reach before it is ready.
    """

    token: Token | None = None
    deployment_id: int | None = None
    probe_run: str = ""

    def reaches(self, deployment_id: int) -> bool:
        """Whether this caller may know of the deployment and ask it."""
        if self.deployment_id is not None:
            return self.deployment_id == deployment_id
        limit = self.token.deployments if self.token is not None else None
        return limit is None or deployment_id in limit


def bearer(values: list[bytes]) -> str:
    """The token of the one Authorization header. Raises DoorError 401."""
    if not values:
        raise _unknown("token.missing", "This needs a token.", "Send the header `Authorization: Bearer <token>`.")
    scheme, _, token = values[0].strip().partition(b" ")
    token = token.strip()
    if len(values) > 1 or scheme.lower() != b"bearer" or not token or len(token) > MAX_TOKEN:
        raise _unknown(
            "token.malformed",
            "The Authorization header holds no bearer token.",
            "Send `Authorization: Bearer <token>`.",
        )
    return token.decode("latin-1")


def identify(authorization: list[bytes], snapshot: Snapshot, now: float) -> Caller:
    """The caller, allowed to use the door. Raises DoorError 401 or 403. `now` is Unix seconds."""
    token = bearer(authorization)
    if token.startswith(INTERNAL):
        return _internal(token, snapshot.internal_key, now)
    digest = token_hash(token)
    # The dictionary is keyed by the hash: how long the lookup takes says nothing about the token itself.
    known = snapshot.tokens.get(digest)
    if known is None:
        raise _unknown(
            "token.unknown", "This token is not known here.", "Create a token on the panel's page and use it."
        )
    if known.ended == "revoked":
        raise _unknown("token.revoked", "This token was revoked.", "Create a new token on the panel's page.")
    if known.ended:
        raise _unknown("token.user_inactive", "The owner of this token may no longer log in.", "Ask an admin.")
    if known.expires_at is not None and known.expires_at <= now:
        raise _unknown("token.expired", "This token has expired.", "Create a new token on the panel's page.")
    if known.scope != "door":
        raise DoorError(
            403, "token.scope", "This token is not for asking models.", "Create a token whose scope is the door."
        )
    return Caller(token=known)


def sign_internal(
    key: bytes, *, deployment_id: int, expires_at: float, run_id: str = "", user_id: int | None = None
) -> str:
    """A token for one deployment. With `run_id` it reaches that run while it is still starting."""
    claims = {"d": deployment_id, "r": run_id, "u": user_id, "e": int(expires_at)}
    payload = base64.urlsafe_b64encode(json.dumps(claims, separators=(",", ":")).encode()).rstrip(b"=")
    return f"{INTERNAL}{payload.decode()}.{_mac(key, payload)}"


def _internal(token: str, key: bytes, now: float) -> Caller:
    payload, _, mac = token[len(INTERNAL) :].partition(".")
    if not key or not hmac.compare_digest(_mac(key, payload.encode("latin-1")).encode(), mac.encode("latin-1")):
        raise _unknown("token.unknown", "This token is not known here.", "")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    if claims["e"] <= now:
        raise _unknown("token.expired", "This token has expired.", "")
    return Caller(deployment_id=claims["d"], probe_run=claims["r"])


def _mac(key: bytes, payload: bytes) -> str:
    return base64.urlsafe_b64encode(hmac.new(key, payload, hashlib.sha256).digest()).rstrip(b"=").decode()


def _unknown(code: str, message: str, hint: str) -> DoorError:
    return DoorError(401, code, message, hint, headers=_CHALLENGE)
