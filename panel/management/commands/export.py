"""Prints deployments as YAML."""

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _

from deployments import exported, portable, queries
from deployments.exporting.forms import FORMS
from deployments.yaml_lines import read
from panel.core.errors import Invalid
from panel.management.shell import REFUSED, ShellCommand, named


class Command(ShellCommand):
    help = "Print deployments as YAML, with names instead of numbers and without secrets; `apply` reads it."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("names", nargs="*", metavar="name", help="without names: all")
        parser.add_argument("--as", choices=FORMS, dest="form", help="one deployment as it runs without Berth")
        parser.add_argument("--output", "-o", type=Path, help="write to this file")

    def run(self, options: dict[str, Any]) -> None:
        rows = [named(name) for name in options["names"]] or list(queries.listed())
        if options["form"] and len(rows) != 1:
            raise Invalid({"--as": _("Name one deployment for this.")})
        text = exported.export(rows[0], options["form"]) if options["form"] else portable.dump(rows)
        if options["output"] is not None:
            try:
                options["output"].write_text(text, encoding="utf-8")
            except OSError as exc:
                raise CommandError(f"{options['output']}: {exc.strerror}", returncode=REFUSED) from exc
        elif self.as_json:
            self.write_json(text if options["form"] else read(text).value)
        else:
            self.stdout.write(text, ending="")
