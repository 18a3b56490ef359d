"""`manage.py units`: print the systemd units of the panel and of an agent, filled for this machine."""

import getpass
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from panel.fleet.joining import agent_bundle


class Command(BaseCommand):
    """Prints only; the person puts the text where it belongs."""

    help = "Print the systemd unit of the panel (or, with --agent, of a host's agent)."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--agent", action="store_true", help="the unit of an agent, as the join script writes it")
        parser.add_argument("--user", default=getpass.getuser(), help="the user it runs as (now: %(default)s)")
        parser.add_argument("--dir", default="/var/lib/berth-agent", help="with --agent: the agent's folder")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["agent"]:
            values = {"PANEL": settings.BERTH_PUBLIC_URL, "USER": options["user"], "DIR": options["dir"]}
            self.stdout.write(agent_bundle.unit("berth-agent.service", **values))
            return
        values = {"USER": options["user"], "ROOT": str(settings.BASE_DIR), "PYTHON": sys.executable}
        self.stdout.write("# sudo tee /etc/systemd/system/berth-panel.service, then:")
        self.stdout.write("# sudo systemctl daemon-reload && sudo systemctl enable --now berth-panel")
        self.stdout.write(agent_bundle.unit("berth-panel.service", **values))
