"""Looks at everything the panel needs, one line each; the exit code is 1 when something is wrong."""

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from panel import doctor

SIGNS = {"good": "✓", "bad": "✗", "idle": "–"}


class Command(BaseCommand):
    help = "Check everything the panel needs; one line each, with the next step where something is wrong."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="a list of {name, verdict, text, hint, code}")

    def handle(self, *args: Any, **options: Any) -> None:
        findings = doctor.examine()
        if options["json"]:
            self.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
        else:
            self.tell(findings)
        if any(finding.verdict == "bad" for finding in findings):
            raise SystemExit(1)

    def tell(self, findings: list[doctor.Finding]) -> None:
        for finding in findings:
            self.stdout.write(f"{SIGNS[finding.verdict]} {finding.name}: {finding.text}")
            if finding.hint:
                self.stdout.write(f"    {finding.hint}")
