"""Has the running panel look for engines and models on this machine, as after `make engine`."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from panel.children import OwnerLock


class Command(BaseCommand):
    help = "Look for engines and models on this machine, if its panel runs."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        from panel.fleet.services import look_here

        runs = settings.BERTH_DATA.exists() and OwnerLock(settings.BERTH_DATA / "up.lock").owner() is not None
        if not runs:
            self.stdout.write(_("Start the panel with `make up`; it finds the engine and the models by itself."))
        elif look_here():
            self.stdout.write(
                _("The panel is looking for engines and models now; in a minute %(url)s shows what it found.")
                % {"url": settings.BERTH_PUBLIC_URL}
            )
        else:
            self.stdout.write(_("This panel runs no engines on its own machine (BERTH_LOCAL_AGENT is 0)."))
