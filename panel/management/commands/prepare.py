"""What has to be done once before web and workers start as processes of their own (docker/compose.yml)."""

from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from panel.core import checks


class Command(BaseCommand):
    help = "Bring the database to this version and, while there is no admin, print a link that makes the first one."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        from panel.accounts.services import first_admin_link

        checks.folder_writable(settings.BERTH_DATA)
        checks.database_answers()
        checks.broker_answers()
        if waiting := checks.pending_migrations():
            self.stdout.write(_("Preparing the database (%(count)s steps) …") % {"count": waiting})
            call_command("migrate", verbosity=0, interactive=False)
        if link := first_admin_link():
            self.stdout.write(_("Create the first admin (this link works once):  %(link)s") % {"link": link})
