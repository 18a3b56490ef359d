"""`manage.py backup FILE`: one file with the database, the logs of all runs and the secret key."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils.translation import gettext as _

from panel import audit, backup
from panel.accounts.actor import Actor


class Command(BaseCommand):
    help = "Write a backup to a file or into a folder. The panel may run meanwhile. Whoever has the file has the panel."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("target", type=Path, help="a file that does not exist yet, or a folder")

    def handle(self, *args: Any, **options: Any) -> None:
        with backup.database():
            path = backup.write(options["target"])
            size = path.stat().st_size
            audit.record("backup.made", ("backup", "", path.name), actor=Actor.shell(), bytes=size)
        self.stdout.write(
            _("%(path)s: %(mib).1f MiB. Keep it where nobody else can read it.") % {"path": path, "mib": size / 2**20}
        )
