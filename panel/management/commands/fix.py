"""Shows what would help after a failure, or applies it."""

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from deployments import applying, queries, remedies
from deployments.pages.fixes import fix_view
from panel.management.shell import ShellCommand, add_waiting, named, started, wait_for


class Command(ShellCommand):
    help = "Show what would help a failed deployment; with a fix, apply it and start again."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_waiting(parser)
        parser.add_argument("name")
        parser.add_argument("fix", nargs="?", help="the id of a fix, or “first”")

    def run(self, options: dict[str, Any]) -> None:
        name = options["name"]
        row = queries.one(named(name).pk)
        if not options["fix"]:
            self._list(row)
            return
        key = options["fix"]
        if key == "first":
            first = next((fix for fix in remedies.of(row) if fix.by_click), None)
            key = first.key if first is not None else ""
        applying.apply(row, key, base_number=None, actor=self.actor)
        row = wait_for(self, name, started, options["timeout"]) if options["wait"] else named(name)
        if self.as_json or not options["wait"]:
            self.show([row])

    def _list(self, row: Any) -> None:
        views = [fix_view(row, fix) for fix in remedies.of(row)]
        if self.as_json:
            names = ("key", "kind", "title", "text", "effects", "command", "by_click")
            self.write_json([{name: view[name] for name in names} for view in views])
            return
        for view in views:
            how = view["key"] if view["by_click"] else _("by hand")
            self.say(f"{how}  {view['title']}")
            for line in (view["text"], *(each["text"] for each in view["effects"]), view["command"]):
                if line:
                    self.say(f"    {line}")
        if not views:
            self.say(_("Nothing is proposed."))
