"""Makes deployments as a file says."""

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _

from deployments import portable
from panel.management.shell import REFUSED, ShellCommand


class Command(ShellCommand):
    help = "Make and change deployments as a YAML file says. The same file twice changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("file", help="a file, or - for standard input")
        parser.add_argument("--dry-run", action="store_true", help="only say what would be changed")

    def run(self, options: dict[str, Any]) -> None:
        done = portable.apply(self._data(options["file"]), actor=self.actor, dry_run=options["dry_run"])
        if self.as_json:
            changed = sum(1 for item in done if item.differs)
            items = [item.as_dict() for item in done]
            self.write_json({"dry_run": options["dry_run"], "changed": changed, "items": items})
            return
        for item in done:
            self.stdout.write(f"{item.name}: {_said(item)}")
            for name, (before, after) in item.changes.items():
                self.stdout.write(f"  {name}: {before} → {after}")
        if options["dry_run"]:
            self.stdout.write(_("Nothing was changed; this was a look only."))

    def _data(self, name: str) -> bytes:
        """At most a byte more than a file may have, so that an endless input ends."""
        most = portable.MOST_BYTES + 1
        try:
            if name == "-":
                return sys.stdin.buffer.read(most)
            with Path(name).open("rb") as file:
                return file.read(most)
        except OSError as exc:
            raise CommandError(f"{name}: {exc.strerror}", returncode=REFUSED) from exc


def _said(item: portable.Applied) -> str:
    words = {"created": _("made"), "changed": _("changed"), "unchanged": _("as it should be")}
    runs = {"": "", "started": _("started"), "stopped": _("stopped")}
    if item.action == "unchanged" and item.run:
        return runs[item.run]
    return ", ".join(part for part in (words[item.action], runs[item.run]) if part)
