"""`manage.py restore FILE`: put a backup into an empty panel."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection, transaction
from django.utils.translation import gettext as _

from deployments import services
from panel import audit, backup
from panel.accounts.actor import Actor
from panel.children import OwnerLock
from panel.core import checks


class Command(BaseCommand):
    help = "Restore a backup into an empty panel that does not run. Engines go on; hosts call again by themselves."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", type=Path, help="the file that `manage.py backup` made")
        parser.add_argument("--stopped", action="store_true", help="want nothing to run; for a look at a backup")
        parser.add_argument("--replace", action="store_true", help="throw away what this panel holds")

    def handle(self, *args: Any, **options: Any) -> None:
        checks.folder_writable(settings.BERTH_DATA)
        lock = OwnerLock(settings.BERTH_DATA / "up.lock")
        running = lock.owner()
        if running is not None:
            raise checks.NotReady(
                "restore_running",
                _("Berth runs in %(folder)s (process %(pid)s)."),
                _("Stop it first: `make down` ends the engines too, Ctrl-C leaves them running."),
                params={"folder": settings.BERTH_DATA, "pid": running},
            )
        manifest = backup.restore(options["source"], replace=options["replace"])
        with backup.database():
            call_command("migrate", verbosity=0, interactive=False)
            with transaction.atomic():
                backup.go_ahead()
                audit.record(
                    "backup.restored",
                    ("backup", "", options["source"].name),
                    actor=Actor.shell(),
                    made=manifest["made_at"],
                )
                if options["stopped"]:
                    services.stop_all(actor=Actor.shell())
            connection.close_pool()
        self.stdout.write(
            _("Restored: the panel of %(made)s (Berth %(version)s). Start it now.")
            % {"made": manifest["made_at"][:16], "version": manifest["berth"]}
        )
