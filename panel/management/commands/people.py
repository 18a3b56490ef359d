"""People from the shell, for whoever is locked out: list, a link for a new password, enable, and try again at once."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from panel.accounts import links, people
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.core.errors import PanelError


class Command(BaseCommand):
    help = "People of the panel: list them, make a link for a new password, enable an account, end the waiting."

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        listing = acts.add_parser("list", help="everyone, by name")
        listing.add_argument("--json", action="store_true", help="print JSON")
        reset = acts.add_parser("reset", help="print a link by which this person sets a new password")
        enable = acts.add_parser("enable", help="open a disabled account again")
        for act in (reset, enable):
            act.add_argument("name")
        acts.add_parser("unlock", help="after too many wrong passwords: everyone may try again at once")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['act']}")(options)
        except PanelError as error:
            raise CommandError(f"{error.text} {error.hint_text}".strip()) from error

    def _list(self, options: dict[str, Any]) -> None:
        rows = [
            {
                "name": user.username,
                "role": user.role,
                "active": user.is_active,
                "last_seen_at": user.last_seen_at.isoformat() if user.last_seen_at else None,
            }
            for user in people.found()
        ]
        if options["json"]:
            self.stdout.write(json.dumps(rows, indent=2))
            return
        for row in rows:
            state = "" if row["active"] else "  " + _("disabled")
            self.stdout.write(f"{row['role']:<9} {row['last_seen_at'] or '-':<33} {row['name']}{state}")

    def _reset(self, options: dict[str, Any]) -> None:
        _link, url = links.make_reset(self._user(options["name"]), actor=Actor.shell())
        self.stdout.write(url)

    def _enable(self, options: dict[str, Any]) -> None:
        user = self._user(options["name"])
        done = people.enable(user, actor=Actor.shell())
        self.stdout.write(
            (_("%(name)s can sign in again.") if done else _("%(name)s was not disabled.")) % {"name": user}
        )

    def _unlock(self, options: dict[str, Any]) -> None:
        people.unlock(actor=Actor.shell())
        self.stdout.write(_("Everyone may try to sign in again."))

    def _user(self, name: str) -> User:
        user = User.objects.filter(username__iexact=name).first()
        if user is None:
            raise CommandError(_("There is nobody with the name %(name)s.") % {"name": name})
        return user
