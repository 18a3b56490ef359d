"""What the commands for deployments share: plain words or --json, exit codes, and waiting.

Exit codes: 0 done, 1 it failed, 2 refused or misused. A command acts as the shell, and its acts are recorded so.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from deployments import queries
from deployments.api.schemas import DeploymentOut, deployments_out
from deployments.models import Deployment
from deployments.states import Desired, State
from deployments.wording import BADGES, STEPS_NOW, words
from panel.accounts.actor import Actor
from panel.core import tongue, trace
from panel.core.errors import Invalid, PanelError
from panel.core.logbounds import for_terminal

FAILED, REFUSED = 1, 2
LOOK_S = 0.5  # how often a waiting command looks


class ShellCommand(BaseCommand):
    """Subclasses write `run(options)`; a PanelError in it is told and ends with 2."""

    requires_system_checks = []  # `manage.py check` is for those; a command in a script should begin at once
    actor = Actor.shell()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        self.as_json: bool = options["json"]
        with tongue.spoken():
            try:
                with trace.bound(trace.new()):
                    self.run(options)
            except PanelError as error:
                if self.as_json:
                    self.write_json(error.as_dict())
                raise CommandError(told(error), returncode=REFUSED) from error

    def run(self, options: dict[str, Any]) -> None:
        raise NotImplementedError

    # --- saying ---

    def write_json(self, value: Any) -> None:
        self.stdout.write(json.dumps(value, indent=2, ensure_ascii=False))

    def say(self, text: str) -> None:
        """A line for people; beside JSON it goes to standard error."""
        (self.stderr if self.as_json else self.stdout).write(for_terminal(str(text)))

    def show(self, rows: list[Deployment]) -> None:
        """The deployments as they are now, one a line or as JSON."""
        if self.as_json:
            self.write_json([as_values(row) for row in rows])
            return
        for row in rows:
            self.stdout.write(for_terminal(f"{row.name}: {state_words(row)}"))


def told(error: PanelError) -> str:
    """An error in plain words, each field with its sentence."""
    fields = [f"{name}: {text}" for name, text in error.fields.items()] if isinstance(error, Invalid) else []
    return "\n".join(part for part in [error.text, *fields, error.hint_text] if part)


def named(name: str) -> Deployment:
    """The deployment with this name. Raises PanelError."""
    row = queries.listed().filter(name=name).first()
    if row is None:
        raise PanelError(
            "deployment.unknown", _("There is no deployment with the name %(name)s.") % {"name": name}, status=404
        )
    return row


def as_values(row: Deployment) -> dict[str, Any]:
    """As the API shows it, ready for JSON."""
    return DeploymentOut(**deployments_out([row])[0]).model_dump(mode="json")


def state_words(row: Deployment) -> str:
    """State, step and reason of a deployment in one line."""
    parts = [str(BADGES[State(row.state)][1])]
    if row.state == State.STARTING and row.run is not None:
        parts += [str(STEPS_NOW[step.code]) for step in queries.steps_of(row.run) if step.state == "now"]
    if (reason := words(row.reason)) is not None:
        parts += [part for part in (reason.text, reason.hint) if part]
    return " · ".join(parts)


# --- waiting ----------------------------------------------------------------------------------------------------------


def add_waiting(parser: CommandParser) -> None:
    parser.add_argument("--wait", action="store_true", help="stay until it is done, and tell each step")
    parser.add_argument("--timeout", type=float, default=3600.0, help="with --wait: seconds at most (default 3600)")


def started(row: Deployment) -> bool | None:
    """True: it answers; False: that came to nothing; None: still going on.

    What the page showed before the loop took up the newest wish says nothing of it.
    """
    if row.desired == Desired.STOPPED:
        return False
    if row.restart_asked > row.restart_done:
        return None
    return {State.READY: True, State.FAILED: False}.get(State(row.state))


def stopped(row: Deployment) -> bool | None:
    """As `started`, for a stop. What had failed before has nothing left to end, once its processes are proven gone."""
    if row.desired == Desired.RUNNING:
        return False
    gone = row.run is None or row.run.ended_at is not None
    return {State.STOPPED: True, State.FAILED: gone}.get(State(row.state))


def wait_for(
    command: ShellCommand, name: str, done: Callable[[Deployment], bool | None], timeout_s: float
) -> Deployment:
    """Tell each change until it is done. Raises CommandError (1) when it failed or took too long."""
    end = time.monotonic() + timeout_s
    last = ""
    while True:
        row = named(name)
        text = state_words(row)
        if text != last:
            command.say(f"{name}: {text}")
            last = text
        result = done(row)
        if result:
            return row
        if result is False:
            if command.as_json:
                command.write_json([as_values(row)])
            raise CommandError(f"{name}: {text}", returncode=FAILED)
        if time.monotonic() > end:
            text = _("It took longer than %(seconds)s s; it goes on, and “list” shows how far it is.")
            raise CommandError(text % {"seconds": round(timeout_s)}, returncode=FAILED)
        time.sleep(LOOK_S)
