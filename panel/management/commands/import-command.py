"""Reads a pasted command and says, or makes, the deployment that it means."""

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _

from deployments import names, pasted, pasted_secrets, services
from deployments.api.paste import command_out
from deployments.portable import NUMBERS
from deployments.spec import DeploymentSpec
from deployments.yaml_lines import dump as as_yaml
from models_catalog.models import Artifact
from panel.core.errors import Invalid
from panel.management.shell import FAILED, REFUSED, ShellCommand


class Command(ShellCommand):
    help = (
        "Read a command that starts vLLM, SGLang, llama.cpp or Ollama, and print the deployment that it means as YAML,"
        " which `apply` takes; what was left out goes to standard error. The command is never run."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("file", nargs="?", default="-", help="a file with the command; without it standard input")
        parser.add_argument("--name", help="name of the deployment")
        parser.add_argument("--model", type=int, metavar="NUMBER", help="which form of a model is meant, by its number")
        parser.add_argument(
            "--keep", action="append", default=[], metavar="VARIABLE",
            help="keep the secret of this variable for the team, and give it to the engine; may be repeated",
        )  # fmt: skip
        parser.add_argument("--create", action="store_true", help="make the deployment and start it")
        parser.add_argument("--no-start", action="store_true", help="with --create: leave it stopped")

    def run(self, options: dict[str, Any]) -> None:
        text = self._text(options["file"])
        reading = pasted.read(text, actor=self.actor, artifact_id=options["model"])
        if options["keep"] and reading.spec is not None:  # nothing is kept for what cannot be made
            kept = pasted_secrets.keep(reading.offers, options["keep"], self.actor)
            reading = pasted.read(text, actor=self.actor, artifact_id=options["model"], page=kept)
        answer = command_out(reading)
        answer["name"] = options["name"] or answer["name"]
        if self.as_json and not options["create"]:
            self.write_json(answer)
        else:
            self._tell(answer)
        spec = reading.spec if answer["spec"] is not None else None
        if spec is None:
            raise CommandError(_("There is no deployment in this yet."), returncode=FAILED)
        if options["create"]:
            self.show([self._made(answer["name"], spec, options)])
        elif not self.as_json:
            self.stdout.write(_entry(answer["name"], spec), ending="")

    def _made(self, name: str, spec: DeploymentSpec, options: dict[str, Any]) -> Any:
        return services.create(name=name, spec=spec, actor=self.actor, start=not options["no_start"])

    def _tell(self, answer: dict[str, Any]) -> None:
        """Findings for people, beside the YAML on standard output."""
        words = {"error": _("Error"), "warning": _("Warning"), "note": _("Note")}
        for finding in answer["findings"]:
            self.stderr.write(f"{words[finding['level']]}: {finding['message']} {finding['hint']}".rstrip())
        for form in answer["candidates"]:
            self.stderr.write(
                f"  --model {form['artifact_id']}  {form['model']} ({form['form']}) {form['host']}:{form['path']}"
            )

        for secret in answer["secrets"]:
            self.stderr.write(f"  --keep {secret['variable']}  ({secret['name']})")

    def _text(self, name: str) -> str:
        """At most a little more than is read, so that an endless input ends."""
        most = pasted.LONGEST * 4 + 1
        try:
            if name == "-":
                return sys.stdin.buffer.read(most).decode("utf-8", "replace")
            with Path(name).open("rb") as file:
                return file.read(most).decode("utf-8", "replace")
        except OSError as exc:
            raise CommandError(f"{name}: {exc.strerror}", returncode=REFUSED) from exc


def _entry(name: str, spec: DeploymentSpec) -> str:
    """The deployment as `apply` reads it."""
    usual = DeploymentSpec(artifact_id=spec.artifact_id).model_dump(mode="json")
    values = spec.model_dump(mode="json")
    rest = {key: value for key, value in values.items() if key not in NUMBERS and value != usual[key]}
    try:
        said = names.Books.of([spec]).said(spec)
    except (LookupError, Artifact.DoesNotExist) as exc:
        raise Invalid({"model": str(exc)}) from exc
    return as_yaml({"berth": 1, "deployments": [{"name": name, **said, **rest}]})
