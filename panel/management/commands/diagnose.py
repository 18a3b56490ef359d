"""`manage.py diagnose LOG`: why an engine's start failed, from its log. Needs no database and no running panel."""

import json
import signal as signals
import sys
from pathlib import Path
from typing import Any, BinaryIO

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from deployments.diagnosis import notices, told
from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.encodings import Utf8
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.result import Diagnosis, Offer
from deployments.diagnosis.rule import Rule
from deployments.diagnosis.rules import BY_CODE, causes_of, doc_of, versions_of
from panel.core import tongue

PART = 1 << 20  # bytes that are read at once
ENGINES = ("vllm", "sglang", "llamacpp", "ollama")


class Command(BaseCommand):
    """Reads the log as a stream, so its size does not matter."""

    help = "Say why an engine's start failed, from its log. Needs no database."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("log", help="a file, or - for standard input")
        parser.add_argument(
            "--engine", type=_engine, choices=ENGINES, default="", help="the engine, when the log does not show it"
        )
        ended = parser.add_mutually_exclusive_group()
        ended.add_argument("--exit-code", type=int, help="the exit code of the engine")
        ended.add_argument("--signal", help="the signal that ended it, such as SIGKILL or 9")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        with tongue.spoken():
            self._tell(options)

    def _tell(self, options: dict[str, Any]) -> None:
        number = _signal(options["signal"]) if options["signal"] else None
        reader = Reader(options["engine"])
        try:
            if options["log"] == "-":
                _read(reader, sys.stdin.buffer)
            else:
                with Path(options["log"]).open("rb") as stream:
                    _read(reader, stream)
        except OSError as exc:
            raise CommandError(_("The log could not be read: %(why)s") % {"why": exc.strerror or exc}) from exc
        found = diagnose(reader, exit_code=options["exit_code"], signal=number)
        if options["json"]:
            self.stdout.write(json.dumps(_translated(found), ensure_ascii=False, indent=2))
            return
        self._say(found)

    def _say(self, found: Diagnosis) -> None:
        if not found.failed and not found.code:
            self.stdout.write(_("Nothing in this log failed. Phase reached: %(phase)s.") % {"phase": found.phase})
            return
        if found.recognised:
            self.stdout.write(f"{_(found.title)} [{found.code}]\n{told.sentence(found.why, found.told, _)}")
            self._more(BY_CODE[found.code])
        else:
            self.stdout.write(_("This failure was not recognised. The first error is shown."))
        self.stdout.write(_("Phase: %(phase)s") % {"phase": found.phase})
        if found.root_line is not None:
            self.stdout.write(_("Line %(number)s: %(text)s") % {"number": found.root_line, "text": found.root})
        for notice in found.facts.get("notices") or []:
            text = notices.sentence(notice, _)
            self.stdout.write(_("It warned in line %(number)s: %(text)s") % {"number": notice["line"], "text": text})
        for rank, fix in enumerate(found.fixes if found.recognised else (), 1):
            self.stdout.write(f"{rank}. {_said(fix)}")
            if fix.command:
                self.stdout.write(f"   {fix.command}")

    def _more(self, rule: Rule) -> None:
        for cause in causes_of(rule):
            self.stdout.write(f"- {_(cause)}")
        if versions := versions_of(rule):
            self.stdout.write(_("Versions that fail so: %(versions)s") % {"versions": versions})
        self.stdout.write(_("More about this: %(address)s") % {"address": doc_of(rule)})


def _engine(name: str) -> str:
    """llama.cpp and llama-server are llamacpp, whatever the case."""
    plain = name.lower().replace(".", "").replace("-", "").replace("_", "")
    return "llamacpp" if plain == "llamaserver" else plain


def _read(reader: Reader, stream: BinaryIO) -> None:
    text = Utf8()
    while part := stream.read(PART):
        reader.feed(text.feed(part))
    reader.feed(text.end())


def _signal(name: str) -> int:
    """The number of SIGKILL, KILL or 9."""
    if name.isascii() and name.isdigit() and len(name) < 4:
        return int(name)
    try:
        return signals.Signals["SIG" + name.upper().removeprefix("SIG")].value
    except KeyError as exc:
        raise CommandError(_("There is no signal %(name)s.") % {"name": name}) from exc


def _said(fix: Offer) -> str:
    return (_(fix.text) if fix.text else "") % dict(fix.params)


def _translated(found: Diagnosis) -> dict[str, Any]:
    known = found.as_dict()
    known["title"] = _(found.title) if found.title else ""
    known["explanation"] = told.sentence(found.why, found.told, _)
    rule = BY_CODE.get(found.code)
    known["causes"] = [_(cause) for cause in causes_of(rule)] if rule is not None else []
    known["versions"] = versions_of(rule) if rule is not None else ""
    for notice in known["facts"].get("notices") or []:
        notice["text"] = notices.sentence(notice, _)
    known["fixes"] = [{**fix.as_dict(), "text": _said(fix)} for fix in found.fixes]
    return known
