"""Makes an admin from the shell: for scripts, tests, and for whoever lost the one-time link."""

import getpass
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from panel.accounts import services
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.core import env
from panel.core.errors import Invalid


class Command(BaseCommand):
    help = "Make an admin. The password comes from standard input, or from BERTH_ADMIN_PASSWORD (or its _FILE)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--if-absent", action="store_true", help="do nothing when this name exists")

    def handle(self, *args: Any, **options: Any) -> None:
        name: str = options["name"]
        if options["if_absent"] and User.objects.filter(username=User.normalize_username(name)).exists():
            self.stdout.write(_("%(name)s exists already; nothing was changed.") % {"name": name})
            return
        try:
            user = services.create_admin(name, self._password(), actor=Actor.shell())
        except Invalid as error:
            raise CommandError(" ".join(error.fields.values())) from error
        self.stdout.write(_("The admin %(name)s is made.") % {"name": user.username})

    def _password(self) -> str:
        """Never from an argument: those are visible to everyone on the machine."""
        given = env.raw("BERTH_ADMIN_PASSWORD")
        if given is None:
            given = getpass.getpass(_("Password: ")) if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
        if not given:
            raise CommandError(_("No password was given."))
        return given
