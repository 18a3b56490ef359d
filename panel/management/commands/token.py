"""API tokens from the shell: create, list, revoke."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from panel.accounts import reach, services
from panel.accounts.actor import Actor
from panel.accounts.models import ApiToken, Scope, User
from panel.core.errors import Invalid, PanelError


class Command(BaseCommand):
    help = "Create, list or revoke API tokens. `create` prints the token alone, so that a script can keep it."

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True)
        create = acts.add_parser("create", help="make a token and print it; it is shown this once")
        create.add_argument("user")
        create.add_argument("name", help="what it is for")
        create.add_argument("--days", type=int, help="ends after so many days (without it: never)")
        create.add_argument("--scope", choices=Scope.values, default=Scope.DOOR.value, help="what it opens")
        create.add_argument(
            "--deployment", action="append", metavar="NAME", help="reaches only this deployment; can be given again"
        )
        listing = acts.add_parser("list", help="tokens, newest first")
        listing.add_argument("user", nargs="?")
        revoke = acts.add_parser("revoke", help="end a token for good")
        revoke.add_argument("id", type=int)
        for act in (create, listing, revoke):
            act.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['act']}")(options)
        except Invalid as error:
            raise CommandError(" ".join(error.fields.values())) from error
        except PanelError as error:
            raise CommandError(error.text) from error

    def _create(self, options: dict[str, Any]) -> None:
        token, plaintext = services.create_token(
            self._user(options["user"]), options["name"],
            actor=Actor.shell(), scope=options["scope"], days=options["days"],
            deployment_ids=self._deployments(options["deployment"]),
        )  # fmt: skip
        self.stdout.write(json.dumps({**_row(token), "token": plaintext}) if options["json"] else plaintext)

    def _deployments(self, wanted: list[str] | None) -> list[int] | None:
        if wanted is None:
            return None
        known = {name: pk for pk, name in reach.names().items()}
        for name in wanted:
            if name not in known:
                raise CommandError(_("There is no deployment with the name %(name)s.") % {"name": name})
        return [known[name] for name in wanted]

    def _list(self, options: dict[str, Any]) -> None:
        rows = ApiToken.objects.select_related("user")
        if options["user"]:
            rows = rows.filter(user=self._user(options["user"]))
        found = [_row(token) for token in rows]
        if options["json"]:
            self.stdout.write(json.dumps(found, indent=2))
            return
        for row in found:
            end = _("revoked") if row["revoked_at"] else row["expires_at"] or _("never ends")
            self.stdout.write(f"{row['id']:>6}  {row['prefix']}…  {row['user']}  {row['scope']}  {end}  {row['name']}")

    def _revoke(self, options: dict[str, Any]) -> None:
        token = ApiToken.objects.select_related("user").filter(pk=options["id"]).first()
        if token is None:
            raise CommandError(_("There is no token with this number."))
        ended = services.revoke_token(token, actor=Actor.shell())
        if options["json"]:
            self.stdout.write(json.dumps({"id": token.pk, "revoked": ended}))
        else:
            self.stdout.write(_("The token is revoked.") if ended else _("The token was revoked before."))

    def _user(self, name: str) -> User:
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(_("There is nobody with the name %(name)s.") % {"name": name})
        return user


def _row(token: ApiToken) -> dict[str, Any]:
    def moment(value: Any) -> str | None:
        return value.isoformat() if value else None

    return {
        "id": token.pk,
        "user": token.user.username,
        "name": token.name,
        "prefix": token.prefix,
        "scope": token.scope,
        "deployments": token.deployment_ids,
        "created_at": moment(token.created_at),
        "expires_at": moment(token.expires_at),
        "last_used_at": moment(token.last_used_at),
        "revoked_at": moment(token.revoked_at),
    }
