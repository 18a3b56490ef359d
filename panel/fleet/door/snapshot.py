"""What the door knows: tokens by hash and routes by model name, immutable, replaced as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class NoSnapshot(Exception):
    """There is none, or the newest is too old to be trusted (the database has been away too long)."""


@dataclass(frozen=True, slots=True)
class Token:
    """Whose a bearer token is. `ended` says why it no longer works ("revoked", "user_inactive"), else ""."""

    id: int | None
    user_id: int | None
    user: str
    scope: str = "door"
    expires_at: float | None = None  # Unix seconds
    ended: str = ""
    deployments: frozenset[int] | None = None  # the only ones that it opens; None: all


@dataclass(frozen=True, slots=True)
class Via:
    """Another host's door, through which a route leads to job `job_id` there.

    `key` is the panel's own for that door; `certificate` is the SHA-256 (hex) of the only certificate it is told to.
    `heard_at` is the Unix time of that host's newest report; `silent` when that is too long ago.
    """

    host: str
    address: str
    port: int
    certificate: str
    key: str
    job_id: str
    heard_at: float | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """Where a model name leads. `open` means that everyone with a token gets through.

    `port` is the engine's own, on loopback of its host. It may be set while `open` is false: then only the answer
    probe of run `run_id` gets through.
    `eta_at` is the Unix time at which it is usually ready; None when nothing is known.
    """

    name: str
    deployment_id: int
    state: str
    open: bool = False
    host: str = "127.0.0.1"
    port: int | None = None
    key: str = ""  # the engine's own API key
    run_id: str = ""
    task: str = "generate"
    created: int = 0  # Unix seconds
    phase: str = ""
    done: float | None = None
    total: float | None = None
    eta_at: float | None = None
    reason: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    via: Via | None = None  # None: the engine is on this machine's loopback


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`tokens` by the SHA-256 (hex) of the token. `internal_key` signs the panel's own short-lived tokens."""

    tokens: Mapping[str, Token] = field(default_factory=dict)
    routes: Mapping[str, Route] = field(default_factory=dict)
    internal_key: bytes = b""


def token_hash(token: str) -> str:
    """The form in which a token is stored: SHA-256, hex. Tokens are random, so no salt is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
