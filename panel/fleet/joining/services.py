"""How a machine becomes a host: codes that work once, for 15 minutes, and what comes of them."""

import logging
import re
import secrets
from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Sum
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from panel import audit
from panel.accounts.access import require
from panel.accounts.actor import Actor
from panel.accounts.models import LoginAttempt
from panel.audit.models import Outcome
from panel.audit.services import network
from panel.core.errors import Invalid, NotFound, PanelError
from panel.fleet import live, reports, services, signals, wire
from panel.fleet.agent.version import VERSION
from panel.fleet.models import Host, JoinCode
from panel.fleet.runtimes import sources
from panel.fleet.services import digest

log = logging.getLogger(__name__)

LASTS = timedelta(minutes=15)
LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # none of them is read as another one
GROUPS, GROUP = 3, 4  # 60 bits
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
WINDOW = timedelta(minutes=15)
WRONG_TRIES = 20  # per address and window; an office may share one


class WrongCode(PanelError):
    """Used, unknown, expired and revoked codes are refused alike: who guesses learns nothing."""

    code = "join.code"
    message = _("This code is not valid.")
    hint = _("Each code works once, for 15 minutes. Ask an admin of the panel for a new one.")
    status = 403


class TooManyTries(PanelError):
    code = "join.slow"
    message = _("Too many wrong codes came from this address.")
    hint = _("Wait 15 minutes, then try again with a new code.")
    status = 429


class TakenName(Invalid):
    """The name is that of a host; `host` is that one."""

    def __init__(self, host: Host) -> None:
        text = _(
            "There is a host of this name. Is it the same machine, or one that takes its place? Then say so below."
        )
        super().__init__({"host_name": text})
        self.host = host


def plain(code: str) -> str:
    """A code as it is compared: people type small letters, blanks, and O for 0."""
    return code.upper().translate({ord("O"): "0", ord("I"): "1", ord("L"): "1", ord("-"): None, ord(" "): None})


def host_named(name: str) -> Host | None:
    return Host.objects.filter(name=name, forgotten_at=None).first()


@transaction.atomic
def make_code(actor: Any, host_name: str, *, again: bool = False) -> tuple[JoinCode, str]:
    """A code for a machine that will be called so ("" takes the machine's own name), and the code itself, once.

    `again`: for a host that is there already; whoever redeems it takes its place with a new key. Raises Invalid, and
    TakenName when the name is a host's and that was not said.
    """
    actor = require(actor, "hosts.manage")
    name = host_name.strip()
    if name and not NAME.fullmatch(name):
        raise Invalid({"host_name": _("Use letters, digits, dots, hyphens and underscores, at most 64.")})
    host = host_named(name) if name else None
    if host is not None and not again:
        raise TakenName(host)
    if host is not None and host.is_local:
        raise Invalid({"host_name": _("This is the panel's own machine; its agent needs no code.")})
    if again and host is None:
        raise Invalid({"host_name": _("There is no host of this name.")})
    letters = "".join(secrets.choice(LETTERS) for _n in range(GROUPS * GROUP))
    code = "-".join(letters[at : at + GROUP] for at in range(0, len(letters), GROUP))
    row = JoinCode.objects.create(
        code_hash=digest(plain(code)),
        host_name=name,
        host=host,
        again=again,
        made_by=actor.name[:150],
        expires_at=timezone.now() + LASTS,
    )
    audit.record("host.code_made", host or ("host", "", name or str(_("a new host"))), actor=actor, again=again)
    return row, code


@transaction.atomic
def revoke(code: JoinCode, *, actor: Any) -> bool:
    """Take a code back; False when it was used, expired or taken back before."""
    actor = require(actor, "hosts.manage")
    now = timezone.now()
    open_ones = JoinCode.objects.filter(pk=code.pk, used_at=None, revoked_at=None, expires_at__gt=now)
    if not open_ones.update(revoked_at=now):
        return False
    audit.record("host.code_revoked", code.host or ("host", "", code.host_name), actor=actor)
    return True


def codes(limit: int = 20) -> list[JoinCode]:
    """The newest ones of the last day."""
    since = timezone.now() - timedelta(days=1)
    return list(JoinCode.objects.select_related("host").filter(created_at__gt=since)[:limit])


def code(pk: int) -> JoinCode:
    """Raises NotFound."""
    row = JoinCode.objects.select_related("host").filter(pk=pk).first()
    if row is None:
        raise NotFound
    return row


# --- redeeming --------------------------------------------------------------------------------------------------------


def join(request: wire.JoinRequest, address: str = "") -> wire.JoinReply:
    """Redeem a code for a host token. Raises WrongCode or TooManyTries; both are recorded."""
    key = f"join:{network(address)}"
    recent = LoginAttempt.objects.filter(key=key, minute__gt=timezone.now() - WINDOW)
    if (recent.aggregate(n=Sum("count"))["n"] or 0) >= WRONG_TRIES:
        audit.record("host.join_refused", None, actor=Actor(address=address), outcome=Outcome.DENIED)
        raise TooManyTries
    try:
        return _redeem(request, address)
    except WrongCode:
        minute = timezone.now().replace(second=0, microsecond=0)
        LoginAttempt.objects.get_or_create(key=key, minute=minute)
        LoginAttempt.objects.filter(key=key, minute=minute).update(count=F("count") + 1)
        known = JoinCode.objects.filter(code_hash=digest(plain(request.code))).first()
        facts = {"host_name": known.host_name, "reason": _why(known)} if known else {}
        audit.record("host.join_refused", None, actor=Actor(address=address), outcome=Outcome.DENIED, **facts)
        raise


def _why(code: JoinCode) -> str:
    return "used" if code.used_at else "revoked" if code.revoked_at else "expired"


def one_name_at_a_time() -> None:
    """Two machines that come at once must not both find the same name free. Held until the commit."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('berth.host.name'))")


@transaction.atomic
def _redeem(request: wire.JoinRequest, address: str) -> wire.JoinReply:
    now = timezone.now()
    row = JoinCode.objects.select_for_update().filter(code_hash=digest(plain(request.code))).first()
    if row is None or row.used_at or row.revoked_at or row.expires_at < now:
        raise WrongCode
    token = secrets.token_urlsafe(32)
    actor = Actor(address=address)
    if row.again:
        host = Host.objects.filter(pk=row.host_id, forgotten_at=None).first()
        if host is None:  # it was forgotten after the code was made
            raise WrongCode
        # The old key ends with this, and whoever used it; a new machine need not wait for the old one's silence.
        Host.objects.filter(pk=host.pk).update(token_hash=digest(token), agent_instance="", link_trouble={}, boot_id="")
        audit.record("host.rejoined", host, actor=actor, hostname=request.hostname[:200])
    else:
        one_name_at_a_time()
        name = services.free_name(row.host_name or request.hostname)
        host = Host.objects.create(name=name, token_hash=digest(token))
        audit.record("host.joined", host, actor=actor, hostname=request.hostname[:200])
    JoinCode.objects.filter(pk=row.pk).update(used_at=now, host=host)
    services.first_look(host)
    live.publish_on_commit(live.HOSTS)
    return wire.JoinReply(
        host_id=host.pk, token=token, host_name=host.name, again=row.again, panel_version=VERSION,
        install_sources=sources.named(),
    )  # fmt: skip


# --- leaving ----------------------------------------------------------------------------------------------------------


def leave(host: Host, report: wire.Report) -> None:
    """A host was taken away on its machine: what became of its jobs, then no contact, and its key has ended.

    Its row stays with its history until an admin forgets it.
    """
    now = timezone.now()
    trouble = {"code": "link.left", "since": now.isoformat(), "at": now.isoformat(), "params": {}}
    with transaction.atomic():
        reports.take_report(host, report)
        ended = digest(secrets.token_urlsafe(32))
        Host.objects.filter(pk=host.pk).update(lost_at=now, agent_instance="", token_hash=ended, link_trouble=trouble)
        audit.record("host.left", host, actor=None)
        live.publish_on_commit(live.HOSTS)
    signals.host_lost.send_robust(sender=Host, host_id=host.pk)
