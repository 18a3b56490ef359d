"""What the pages of joining show, made ready for the templates."""

import shlex
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from panel.core.errors import PanelError
from panel.fleet.joining import agent_bundle, panel_tls, services
from panel.fleet.joining.panel_tls import Trust
from panel.fleet.models import Gpu, JoinCode

SCRIPT = "berth-join.sh"


@dataclass(frozen=True)
class Standing:
    """Where a code is: waiting, joined (the agent has not reported yet), there, expired or revoked."""

    kind: str
    text: str
    gpus: tuple[str, ...] = ()

    @property
    def moving(self) -> bool:
        return self.kind in ("waiting", "joined")


class NoTls(PanelError):
    code = "join.plain_http"
    message = gettext_lazy("Other machines join over https only, and this panel's address is %(url)s.")
    hint = gettext_lazy("Put a proxy with TLS in front and name its address in BERTH_URL. See docs/settings.md.")
    status = 409


class BadCertificate(PanelError):
    code = "join.certificate"
    message = gettext_lazy("The certificate file that BERTH_TLS_CERT names cannot be read: %(why)s")
    hint = gettext_lazy("It must be a PEM file that this panel may read.")
    status = 409


def reach() -> dict[str, Any]:
    """What is known of the panel's address without looking at it."""
    address = settings.BERTH_PUBLIC_URL
    plain = address.startswith("http:")
    own = plain and panel_tls.trust().kind == "loopback"
    return {
        "address": address,
        "only_here": own,
        "no_tls": plain and not own and not settings.BERTH_JOIN_PLAIN_HTTP,
        "plain_http": plain and not own and settings.BERTH_JOIN_PLAIN_HTTP,
    }


def trust() -> Trust:
    """How a machine can check this panel. Raises NoTls or BadCertificate; looks at the panel's address."""
    try:
        found = panel_tls.trust()
    except (OSError, ValueError) as exc:
        raise BadCertificate(params={"why": str(exc)[:200]}) from exc
    if found.kind == "plain" and not settings.BERTH_JOIN_PLAIN_HTTP:
        raise NoTls(params={"url": settings.BERTH_PUBLIC_URL})
    return found


def command(code: str, trust: Trust) -> str:
    """The one line to paste: fetch the script, compare it, run it."""
    address = f"{settings.BERTH_PUBLIC_URL.rstrip('/')}/join/{SCRIPT}"
    # The script is compared by its hash, so the certificate need not be checked for it.
    flags = "-fsSLk" if trust.kind in ("pinned", "authority", "unknown") else "-fsSL"
    pin = f" --pin {trust.pin}" if trust.pin else ""
    return (
        f"curl {flags} {shlex.quote(address)} -o {SCRIPT}"
        f" && echo '{agent_bundle.script_sha256()}  {SCRIPT}' | sha256sum -c -"
        f" && sh {SCRIPT} {code}{pin}"
    )


def standing(row: JoinCode) -> Standing:
    """What came of a code, in words."""
    host = row.host
    if row.used_at and host is None:
        return Standing("there", _("It was used; the host has been removed since."))
    if row.used_at and host is not None:
        # Of a machine that takes a host's place the older one's report says nothing.
        if host.facts_at is None or host.facts_at < row.used_at:
            return Standing("joined", _("%(host)s has joined. Waiting for its first report.") % {"host": host.name})
        gpus = tuple(Gpu.objects.filter(host=host, present=True).order_by("index").values_list("name", flat=True))
        count = ngettext("%(n)s GPU", "%(n)s GPUs", len(gpus)) % {"n": len(gpus)} if gpus else _("no GPU")
        return Standing("there", _("%(host)s has joined: %(gpus)s.") % {"host": host.name, "gpus": count}, gpus)
    if row.revoked_at:
        return Standing("revoked", _("This code was taken back."))
    if row.expires_at <= timezone.now():
        return Standing("expired", _("This code has expired. Make a new one."))
    return Standing("waiting", _("Waiting for the machine."))


def codes() -> list[dict[str, Any]]:
    return [{"row": row, "standing": standing(row)} for row in services.codes()]


def page(form: Any) -> dict[str, Any]:
    return {"section": "hosts", "form": form, "reach": reach(), "codes": codes()}
