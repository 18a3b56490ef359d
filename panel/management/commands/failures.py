"""Exports what failed."""

import json
from typing import Any

from django.core.management.base import CommandParser

from deployments import failures_export, failures_read
from deployments.failures_read import DAYS, Filters
from panel.core.logbounds import for_terminal
from panel.management.shell import ShellCommand


class Command(ShellCommand):
    help = "Print what failed as CSV, or as JSON: class, phase, versions, first error, and what people say of it."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--class", dest="class", default="", help="only this class, such as mem.kv_too_small")
        parser.add_argument("--days", default="", choices=["", *DAYS], help="only the last so many days")
        parser.add_argument("--search", dest="q", default="", help="words of the deployment's or the model's name")

    def run(self, options: dict[str, Any]) -> None:
        rows = failures_read.matching(Filters.of(options))
        first, before, more = True, None, True
        everything: list[dict[str, Any]] = []
        while more:
            found, before = failures_export.part_of(rows, before)
            more = before is not None
            if self.as_json:
                everything += found
            elif found or first:
                self.stdout.write(for_terminal(failures_export.as_csv(found, first)), ending="")
            first = False
        if self.as_json:
            self.stdout.write(json.dumps(everything, indent=2, ensure_ascii=False))
