"""Lists deployments."""

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from deployments import queries
from deployments.api.schemas import DeploymentOut, deployments_out
from deployments.states import State
from deployments.wording import BADGES
from panel.management.shell import ShellCommand


class Command(ShellCommand):
    help = "List deployments with their state, model and place."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--state", action="append", choices=[state.value for state in State], default=[])
        parser.add_argument("--search", default="", help="words of the name, model, host or person")

    def run(self, options: dict[str, Any]) -> None:
        rows = queries.listed(text=options["search"])
        if options["state"]:
            rows = rows.filter(state__in=options["state"])
        found = [DeploymentOut(**values) for values in deployments_out(rows)]
        if self.as_json:
            self.write_json([row.model_dump(mode="json") for row in found])
            return
        if not found:
            self.stdout.write(_("There is no deployment."))
            return
        table = [[_("NAME"), _("STATE"), _("MODEL"), _("HOST"), _("ENGINE")]]
        for row in found:
            engine = f"{row.engine} {row.engine_version}".strip()
            table.append([row.name, str(BADGES[State(row.state)][1]), row.model, row.host or "–", engine or "–"])
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        for line in table:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
