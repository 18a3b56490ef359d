"""The team's secrets from the shell: kept, listed by name, removed. A secret comes by standard input or a file."""

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from panel.accounts import secret_store
from panel.accounts.actor import Actor
from panel.accounts.api_secrets import secret_out
from panel.accounts.models import Secret
from panel.core.errors import Invalid, PanelError


class Command(BaseCommand):
    help = "Keep, list or remove secrets of the team, which settings name (env_secrets). None is ever printed."

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        keep = acts.add_parser("keep", help="keep a secret, in the place of the former one of that name")
        keep.add_argument("name")
        # Not as a word of the command line: everybody on this machine could read it there.
        keep.add_argument("file", nargs="?", default="-", help="a file with the secret; without it standard input")
        listing = acts.add_parser("list", help="names of the team's secrets, and what uses them")
        listing.add_argument("--json", action="store_true", help="print JSON")
        remove = acts.add_parser("remove", help="delete a secret")
        remove.add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['act']}")(options)
        except Invalid as error:
            raise CommandError(" ".join(error.fields.values())) from error
        except PanelError as error:
            raise CommandError(error.text) from error

    def _keep(self, options: dict[str, Any]) -> None:
        secret_store.keep(options["name"], self._read(options["file"]), team=True, actor=Actor.shell())
        self.stdout.write(_("The secret “%(name)s” is kept.") % {"name": options["name"]})

    def _read(self, name: str) -> str:
        """A little more than may be kept, so that an endless input ends."""
        most = secret_store.LONGEST * 4 + 2
        try:
            if name == "-":
                return sys.stdin.buffer.read(most).decode("utf-8", "replace")
            with Path(name).open("rb") as file:
                return file.read(most).decode("utf-8", "replace")
        except OSError as exc:
            raise CommandError(f"{name}: {exc.strerror}") from exc

    def _list(self, options: dict[str, Any]) -> None:
        rows = secret_store.listed(Actor.shell())["team"]
        if options["json"]:
            told = [{**secret_out(row), "used_by": row.used_by} for row in rows]
            self.stdout.write(json.dumps(told, default=lambda when: when.isoformat()))
            return
        for row in rows:
            self.stdout.write("  ".join([row.name, row.given_by, ", ".join(row.used_by)]).rstrip())

    def _remove(self, options: dict[str, Any]) -> None:
        row = Secret.objects.filter(owner=None, name=options["name"]).first()
        if row is None:
            raise CommandError(_("There is no secret with the name %(name)s.") % {"name": options["name"]})
        secret_store.remove(row, actor=Actor.shell())
        self.stdout.write(_("The secret “%(name)s” is deleted.") % {"name": row.name})
