"""Stops deployments."""

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from deployments import services
from deployments.models import Deployment
from panel.core.errors import Invalid
from panel.management.shell import ShellCommand, add_waiting, named, stopped, wait_for


class Command(ShellCommand):
    help = "Stop deployments. With --wait it ends when every process of them is gone."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_waiting(parser)
        parser.add_argument("names", nargs="*", metavar="name")
        parser.add_argument("--all", action="store_true", help="every deployment that should run")

    def run(self, options: dict[str, Any]) -> None:
        names: list[str] = options["names"]
        if bool(names) == options["all"]:
            raise Invalid({"name": _("Name deployments, or say --all.")})
        if options["all"]:
            running = Deployment.objects.filter(desired="running", deleted_at=None).order_by("name")
            names = list(running.values_list("name", flat=True))
        rows = [named(name) for name in names]  # an unknown name stops nothing
        for row in rows:
            services.stop(row, actor=self.actor)
        if options["wait"]:
            rows = [wait_for(self, name, stopped, options["timeout"]) for name in names]
        else:
            rows = [named(name) for name in names]
        if self.as_json or not options["wait"]:
            self.show(rows)
