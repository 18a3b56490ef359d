"""Adding a host: the form with its codes, and what came of a code."""

from datetime import timedelta

from django.utils import timezone

from panel.fleet import services
from panel.fleet.joining import services as joining
from panel.fleet.models import Gpu, Host, JoinCode
from tests.browser.cases import case
from tests.browser.cases_fleet import FACTS


def code(name: str, **changes: object) -> JoinCode:
    """A code as if an admin had made it."""
    row = JoinCode.objects.create(
        code_hash=services.digest(name), host_name=name, made_by="ada", expires_at=timezone.now() + joining.LASTS
    )
    JoinCode.objects.filter(pk=row.pk).update(**changes)
    return row


def joined(name: str, *, reported: bool) -> JoinCode:
    now = timezone.now()
    host = Host.objects.create(name=name, token_hash=name, last_seen_at=now)
    if reported:
        Host.objects.filter(pk=host.pk).update(facts=FACTS, facts_at=now, ram_total_mib=515_000)
        for n in range(2):
            Gpu.objects.create(host=host, uuid=f"GPU-{n}", index=n, name="NVIDIA H100 80GB HBM3", total_mib=81_559)
    return code(name, host=host, used_at=now - timedelta(minutes=1))


@case("join-form")
def form() -> str:
    code("")
    code("a-host-with-a-rather-long-name-as-some-sites-like-to-have-them")
    joined("atlas", reported=True)
    joined("boreas", reported=False)
    code("cetus", expires_at=timezone.now() - timedelta(hours=1))
    code("draco", revoked_at=timezone.now())
    return "/hosts/new"


@case("join-waiting")
def waiting() -> str:
    return f"/hosts/codes/{code('atlas').pk}/"


@case("join-there")
def there() -> str:
    return f"/hosts/codes/{joined('atlas', reported=True).pk}/"


@case("join-expired")
def expired() -> str:
    return f"/hosts/codes/{code('atlas', expires_at=timezone.now()).pk}/"
