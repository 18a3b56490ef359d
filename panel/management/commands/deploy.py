"""Makes a deployment, or starts one that is there."""

import json
from argparse import REMAINDER
from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from deployments import portable, queries, services
from panel.core.errors import Conflict, Invalid
from panel.management.shell import ShellCommand, add_waiting, named, started, wait_for


class Command(ShellCommand):
    help = "Make a deployment and start it, or start one that is there: deploy NAME --model MODEL"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_waiting(parser)
        parser.add_argument("name")
        parser.add_argument("--model", help="name of the model, or the path of its files on a host")
        parser.add_argument("--form", help="which form of the model, where it has several")
        parser.add_argument("--host", help="name of the host; without it Berth chooses")
        parser.add_argument("--engine-version", help="version of the engine; without it Berth chooses")
        parser.add_argument("--device", choices=["auto", "gpu", "cpu"])
        parser.add_argument("--gpus", type=int, help="number of GPUs")
        parser.add_argument("--task", choices=["generate", "embed", "score"])
        parser.add_argument("--kv-cache-gib", type=int, help="KV cache on the CPU, GiB")
        parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="option of the engine")
        parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="environment variable")
        parser.add_argument("--no-start", action="store_true", help="make it, and leave it stopped")
        parser.add_argument("--flags", nargs=REMAINDER, default=[], help="all that follows are flags of the engine")

    def run(self, options: dict[str, Any]) -> None:
        name = options["name"]
        values = _values(options)
        there = queries.listed().filter(name=name).first()
        if there is None:
            if "model" not in values:
                raise Invalid({"--model": _("A new deployment needs a model.")})
            portable.create(values, actor=self.actor)
        elif set(values) > {"name", "running"}:
            text = _("There is already a deployment with the name %(name)s.") % {"name": name}
            hint = _("Change it by a file: export it, edit the file, apply it. Or start it as it is: deploy %(name)s")
            raise Conflict("deployment.exists", text, hint % {"name": name})
        else:
            services.start(there, actor=self.actor)
        row = named(name)
        if options["wait"] and not options["no_start"]:
            row = wait_for(self, name, started, options["timeout"])
        if self.as_json or not options["wait"]:
            self.show([row])


def _values(options: dict[str, Any]) -> dict[str, Any]:
    """What the arguments say, as an entry of a file says it."""
    same = {name: name for name in ("name", "model", "form", "host", "device", "task", "kv_cache_gib")}
    values = {key: options[name] for name, key in {**same, "gpus": "gpu_count"}.items() if options[name] is not None}
    if options["engine_version"]:
        values["runtime"] = {"version": options["engine_version"]}
    if options["set"]:
        values["options"] = {name.replace("-", "_"): _read(text) for name, text in map(_pair, options["set"])}
    if options["env"]:
        values["env"] = dict(map(_pair, options["env"]))
    if options["flags"]:
        values["extra_args"] = options["flags"]
    return {**values, "running": not options["no_start"]}


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Invalid({text[:80]: _("Write it as NAME=VALUE.")})
    return name, value


def _read(text: str) -> Any:
    """A number, true, false or JSON; what is none of them is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
