"""Stops what `up` started, and the engines too."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from panel.children import OwnerLock

LOOK_S = 0.2
UP_STOPS_S = 60.0


class Command(BaseCommand):
    help = "Stop the panel and all engines that it started."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--keep-engines", action="store_true", help="leave running engines alone")
        parser.add_argument("--timeout", type=float, default=90.0, help="seconds that engines have to stop (90)")

    def handle(self, *args: Any, **options: Any) -> None:
        data: Path = settings.BERTH_DATA
        lock = OwnerLock(data / "up.lock")
        owner = lock.owner() if data.exists() else None
        engines = not options["keep_engines"]
        if owner is None:
            self.stdout.write(_("Berth does not run in %(folder)s.") % {"folder": data})
        else:
            if engines:
                self._stop_engines_by_panel(options["timeout"])
            self._stop_up(lock, owner)
        if engines:
            self._stop_engines_by_agent(data / "agent")
        self.stdout.write(_("Stopped."))

    def _stop_engines_by_panel(self, timeout: float) -> None:
        """Want everything stopped, and wait until it is: so the record says who stopped what, and when."""
        from deployments.models import Run
        from deployments.services import stop_all
        from panel.accounts.actor import Actor

        deadline = time.monotonic() + timeout
        said = -1
        try:
            stop_all(actor=Actor.shell())
            while (left := Run.objects.filter(ended_at=None).count()) and time.monotonic() < deadline:
                if left != said:
                    text = ngettext(
                        "Waiting for %(count)s engine to stop …", "Waiting for %(count)s engines to stop …", left
                    )
                    self.stdout.write(text % {"count": left})
                    said = left
                time.sleep(LOOK_S)
        except DatabaseError as exc:
            self.stdout.write(_("The database does not answer (%(why)s); the agent stops the engines.") % {"why": exc})

    def _stop_up(self, lock: OwnerLock, owner: int) -> None:
        os.kill(owner, signal.SIGTERM)
        deadline = time.monotonic() + UP_STOPS_S
        while lock.owner() is not None:
            if time.monotonic() > deadline:
                raise CommandError(_("Process %(pid)s does not end. Look at it, or kill it.") % {"pid": owner})
            time.sleep(LOOK_S)

    def _stop_engines_by_agent(self, folder: Path) -> None:
        """What the panel could not stop (it did not run, or not in time) stops by the agent's own journal."""
        if not (folder / "agent.json").exists():
            return
        argv = [sys.executable, "-m", "panel.fleet.agent", "--stop-all", "--dir", str(folder)]
        done = subprocess.run(argv, cwd=settings.BASE_DIR, check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode:  # its log is of no interest otherwise
            self.stderr.write(done.stderr)
            raise CommandError(_("The agent could not stop every engine; its answer is above."))
