"""The record from the shell: which months there are, and dropping old ones."""

import json
from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from panel.accounts.actor import Actor
from panel.audit import months
from panel.core.errors import PanelError


class Command(BaseCommand):
    help = "The months of the record of who did what: list them, or drop old ones for good."

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        listing = acts.add_parser("months", help="the months that the record holds")
        drop = acts.add_parser("drop-before", help="drop all that happened before a month; this is recorded")
        drop.add_argument("month", help="the first month that stays, such as 2026-01")
        for act in (listing, drop):
            act.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, "_" + options["act"].replace("-", "_"))(options)
        except PanelError as error:
            raise CommandError(f"{error.text} {error.hint_text}".strip()) from error

    def _months(self, options: dict[str, Any]) -> None:
        names = [f"{month:%Y-%m}" for month in months.existing()]
        self.stdout.write(json.dumps(names) if options["json"] else "\n".join(names))

    def _drop_before(self, options: dict[str, Any]) -> None:
        gone = months.drop_before(_month(options["month"]), actor=Actor.shell())
        names = [f"{month:%Y-%m}" for month in gone.months]
        if options["json"]:
            self.stdout.write(json.dumps({"months": names, "entries": gone.rows}))
        elif not names:
            self.stdout.write(_("Nothing is that old."))
        else:
            said = ngettext("%(n)s entry is gone: %(months)s", "%(n)s entries are gone: %(months)s", gone.rows)
            self.stdout.write(said % {"n": gone.rows, "months": ", ".join(names)})


def _month(text: str) -> date:
    try:
        return date.fromisoformat(f"{text}-01")
    except ValueError:
        raise CommandError(_("%(text)s is no month. Write it like 2026-01.") % {"text": text}) from None
