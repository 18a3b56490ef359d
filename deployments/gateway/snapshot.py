"""The door's snapshot, built from the database in three queries; and the panel's own short-lived tokens for it."""

import hmac
import json
import logging
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from statistics import median
from typing import Any

from django.conf import settings
from django.utils import timezone

from deployments.models import Deployment, Run
from deployments.states import State
from panel.accounts.models import ApiToken
from panel.core.crypto import CannotUnseal, unseal
from panel.fleet import doors, samples
from panel.fleet.door import Route, Snapshot, Token, Via
from panel.fleet.door.access import sign_internal
from panel.fleet.models import Host

log = logging.getLogger(__name__)

INTERNAL_TOKEN_S = 300
ENDED_KEPT = timedelta(days=30)  # a token that ended this long ago is simply unknown
EARLIER_STARTS = 400  # successful starts, over all that start now, on which "seconds left" rests
HOPEFUL = {State.PREPARING.value, State.STARTING.value}


def build() -> Snapshot:
    """The newest truth. Raises django.db.Error when the database is away."""
    now = timezone.now()
    rows = list(_deployments())
    _heard(rows)
    usual = _usual_starts(rows)
    routes = {row.name: _route(row, usual) for row in rows}
    return Snapshot(tokens=_tokens(now), routes=routes, internal_key=_internal_key(settings.SECRET_KEY))


# --- tokens ---------------------------------------------------------------------------------------------------------


def _tokens(now: datetime) -> dict[str, Token]:
    whose = ("user_id", "user__username", "user__is_active")
    fields = ("id", "token_hash", "scope", "deployment_ids", "expires_at", "revoked_at", *whose)
    rows = ApiToken.objects.exclude(revoked_at__lt=now - ENDED_KEPT).exclude(expires_at__lt=now - ENDED_KEPT).order_by()
    return {
        digest: Token(
            id=pk,
            user_id=user_id,
            user=user,
            scope=scope,
            expires_at=expires_at.timestamp() if expires_at else None,
            ended="revoked" if revoked_at else "" if active else "user_inactive",
            deployments=None if only is None else frozenset(only),
        )
        for pk, digest, scope, only, expires_at, revoked_at, user_id, user, active in rows.values_list(*fields)
    }


def note_use(used: dict[int, float]) -> None:
    """Write down when tokens were last used: token id → Unix seconds. One statement however many."""
    tokens = [
        ApiToken(id=pk, last_used_at=datetime.fromtimestamp(at, tz=timezone.get_current_timezone()))
        for pk, at in sorted(used.items())
    ]
    ApiToken.objects.bulk_update(tokens, ["last_used_at"], batch_size=1000)


def probe_token(deployment_id: int, run_id: str) -> str:
    """Five minutes of access to one deployment, also while that run of it is still starting. Nothing is stored."""
    return sign_internal(
        _internal_key(settings.SECRET_KEY),
        deployment_id=deployment_id,
        run_id=run_id,
        expires_at=time.time() + INTERNAL_TOKEN_S,
    )


@lru_cache(maxsize=4)
def _internal_key(secret: str) -> bytes:
    return hmac.digest(secret.encode(), b"berth/internal door tokens/1", "sha256")


# --- routes ---------------------------------------------------------------------------------------------------------


def _deployments() -> Iterable[Deployment]:
    return (
        Deployment.objects.filter(deleted_at=None)
        .select_related("run__job", "run__host", "revision")
        .only(
            *("name", "state", "reason", "created_at", "revision__spec"),
            *("run__created_at", "run__ready_at", "run__ended_at", "run__secrets", "run__phases", "run__probe"),
            *("run__host_id", "run__runtime_id", "run__copy_id", "run__host__is_local"),
            *("run__host__name", "run__host__door", "run__host__door_keys"),
            *("run__host__last_seen_at", "run__host__lost_at"),
            *("run__job__state", "run__job__status"),
        )
        .order_by()
    )


def _heard(rows: list[Deployment]) -> None:
    """Of hosts that are reached by their own door: whether they are silent, and when they called last."""
    far = {row.run.host_id: row.run.host for row in rows if row.run is not None and row.run.host is not None}
    hosts = [host for host in far.values() if not host.is_local]
    if not hosts:
        return
    late, heard = samples.overdue(hosts, settings.BERTH_HOST_LOST_S), samples.called(hosts)
    for row in rows:
        if row.run is not None and row.run.host is not None and row.run.host_id in heard:
            host = row.run.host
            host.last_seen_at, host.late = heard[host.pk], host.pk in late


def _route(row: Deployment, usual: dict[tuple[Any, ...], float]) -> Route:
    run = row.run
    facts: dict[str, Any] = {
        "reason": row.reason.get("code", ""),
        "params": row.reason.get("params", {}),
        "task": row.revision.spec.get("task", "generate") if row.revision else "generate",
        "created": int(row.created_at.timestamp()),
    }
    if run is not None and run.ended_at is None:
        facts["run_id"] = str(run.pk)
        address = _address(run)
        if "port" in address:
            # A lost host may just be silent: what was ready there is asked, and the answer decides.
            was_ready = row.state == State.LOST and run.ready_at is not None
            address["open"] = row.state == State.READY or was_ready
        facts |= address
        if row.state in HOPEFUL:
            facts |= _progress(run)
            seconds = usual.get(_kind(run))
            facts["eta_at"] = run.created_at.timestamp() + seconds if seconds is not None else None
    return Route(name=row.name, deployment_id=row.pk, state=row.state, **facts)


def _address(run: Run) -> dict[str, Any]:
    """Port, the engine's key and the way to its host, or the reason why there is none; nothing where nothing runs.

    The end of the process wins over every state.
    """
    job, host = run.job, run.host
    if job is None or host is None or job.state != "running" or not job.status.get("port"):
        return {}
    try:
        key = _key(bytes(run.secrets)) if run.secrets else ""
    except CannotUnseal:
        log.error("the key of run %s cannot be read; restart its deployment", run.pk)
        return {"reason": "door.key_unreadable", "params": {}}
    where: dict[str, Any] = {"port": int(job.status["port"]), "key": key}
    return where if host.is_local else _through(host, where, str(job.pk))


def _through(host: Host, where: dict[str, Any], job_id: str) -> dict[str, Any]:
    """The way by another host's door, added to `where`; the reason why there is none yet."""
    door, key = host.door, doors.key_for(host)
    if not door.get("certificate") or door.get("problem"):
        return {"reason": "door.none", "params": {"host": host.name, "problem": door.get("problem", "")}}
    if not key:
        return {"reason": "door.key_pending", "params": {"host": host.name}}
    heard = host.last_seen_at
    via = Via(
        host=host.name,
        address=door["address"],
        port=door["port"],
        certificate=door["certificate"],
        key=key,
        job_id=job_id,
        heard_at=heard.timestamp() if heard else None,
        silent=heard is None or getattr(host, "late", False) or host.lost_at is not None,
    )
    return {**where, "via": via}


@lru_cache(maxsize=4096)
def _key(sealed: bytes) -> str:
    return str(json.loads(unseal(sealed)).get("api_key", ""))


def _progress(run: Run) -> dict[str, Any]:
    if run.probe.get("asked_at"):
        return {"phase": "answered"}
    if not run.phases:
        return {}
    running = [phase for phase in run.phases if phase.get("end") is None]
    newest = (running or run.phases)[-1]
    return {"phase": newest["code"], "done": newest.get("done"), "total": newest.get("total")}


def _kind(run: Run) -> tuple[Any, ...]:
    """Starts that take about the same time: the same copy by the same engine on the same host."""
    return run.host_id, run.runtime_id, run.copy_id


def _usual_starts(rows: list[Deployment]) -> dict[tuple[Any, ...], float]:
    """Median seconds from order to answer of earlier starts, for what starts now. No query when nothing does."""
    starting = {_kind(row.run) for row in rows if row.run is not None and row.run.copy_id and row.state in HOPEFUL}
    if not starting:
        return {}
    earlier = (
        Run.objects.filter(copy_id__in={copy for _, _, copy in starting})
        .exclude(ready_at=None)
        .order_by("-created_at")
        .values_list("host_id", "runtime_id", "copy_id", "created_at", "ready_at")[:EARLIER_STARTS]
    )
    times: dict[tuple[Any, ...], list[float]] = {}
    for *kind, created_at, ready_at in earlier:
        times.setdefault(tuple(kind), []).append((ready_at - created_at).total_seconds())
    return {kind: median(seconds[:20]) for kind, seconds in times.items() if kind in starting}
