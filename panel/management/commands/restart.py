"""Starts a deployment anew."""

from typing import Any

from django.core.management.base import CommandParser

from deployments import services
from panel.management.shell import ShellCommand, add_waiting, named, started, wait_for


class Command(ShellCommand):
    help = "End a deployment's engine and start it again with the same settings."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_waiting(parser)
        parser.add_argument("name")

    def run(self, options: dict[str, Any]) -> None:
        name = options["name"]
        row = services.restart(named(name), actor=self.actor)
        row = wait_for(self, name, started, options["timeout"]) if options["wait"] else named(row.name)
        if self.as_json or not options["wait"]:
            self.show([row])
