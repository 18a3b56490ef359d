"""Prints the log of a deployment's start."""

import json
import time
from codecs import getincrementaldecoder
from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from deployments.models import Run
from panel.core.errors import Invalid, PanelError
from panel.core.logbounds import for_terminal
from panel.fleet import logstore
from panel.fleet.models import Job
from panel.management.shell import LOOK_S, ShellCommand, named

LINE = 400  # bytes of a long line, from which --tail estimates where to begin


class Command(ShellCommand):
    help = "Print the log of a deployment's newest start, or of another one."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("name")
        parser.add_argument("--run", type=int, help="number of the start; without it the newest")
        parser.add_argument("--tail", type=int, help="only so many lines of the end")
        parser.add_argument("--follow", "-f", action="store_true", help="stay and print what comes, until it ends")

    def run(self, options: dict[str, Any]) -> None:
        if options["tail"] is not None and options["tail"] < 0:
            raise Invalid({"--tail": _("This must be 0 or more.")})
        job_id = self._job(options["name"], options["run"])
        offset = 0
        if options["tail"] is not None:
            offset = self._tail(job_id, options["tail"])
        decoder = getincrementaldecoder("utf-8")("replace")
        while True:
            over = not Job.objects.filter(pk=job_id, open=True).exists()  # asked before the last part is read
            for part in logstore.read_all(job_id, offset):
                self._print(decoder, part)
                offset = part.end
            if not options["follow"] or over:
                return
            time.sleep(LOOK_S)

    def _job(self, name: str, number: int | None) -> Any:
        rows = Run.objects.filter(deployment=named(name)).exclude(job=None).order_by("-number")
        if number is not None:
            rows = rows.filter(number=number)
        job_id = rows.values_list("job_id", flat=True).first()
        if job_id is None:
            raise PanelError("run.no_log", _("There is no such start with a log."), status=404)
        return job_id

    def _tail(self, job_id: Any, lines: int) -> int:
        """Where the last lines begin. Looks at more bytes until there are enough lines, or no more bytes."""
        wanted, size = max(1, lines) * LINE, logstore.read(job_id, 0, 1).size
        while True:
            begin = max(0, size - wanted)
            data = b"".join(part.data for part in logstore.read_all(job_id, begin))
            kept = data.splitlines(keepends=True)
            if len(kept) > lines or begin == 0:
                return begin + len(data) - sum(map(len, kept[len(kept) - lines :] if lines < len(kept) else kept))
            wanted *= 4

    def _print(self, decoder: Any, part: logstore.Part) -> None:
        text = decoder.decode(part.data)
        if self.as_json:
            self.stdout.write(json.dumps({"offset": part.start, "next": part.end, "gap": part.gap, "text": text}))
            return
        if part.gap:
            self.stdout.write(_("[%(n)s bytes are not kept any more]") % {"n": part.gap})
        # A file gets what the engine wrote; a terminal would obey what a model or a request put into the log.
        self.stdout.write(for_terminal(text) if self.stdout.isatty() else text, ending="")
        self.stdout.flush()
