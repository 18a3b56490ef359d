"""What is said of secrets that settings name, as (what happened, what to do next), to be translated. See codes.py."""

from django.utils.translation import gettext_lazy as _

from panel.core.wording import Pair

SECRETS: dict[str, Pair] = {
    "secret.missing": (
        _("The secret %(name)s is not there any more, so it was not started."),
        _("%(who)s, who saved these settings, can keep it again on the page “Secrets”, or an admin for the team."),
    ),
    "secret.missing_team": (
        _("The team has no secret %(name)s, so it was not started."),
        _("An admin can keep it on the page “Secrets”. Or leave it out in the settings."),
    ),
    "secret.unknown": (
        _("There is no secret %(name)s of yours or of the team."),
        _("Keep it on the page “Secrets” first, or leave it out."),
    ),
    "secret_unreadable": (
        _("A secret that it needs cannot be read: the panel's secret key is another one now."),
        _("Restore the former secret key, or keep the secret again on the page “Secrets”."),
    ),
    "env.denied_secret": (
        _("The variable %(name)s cannot be given a secret."),
        _("Possible are HF_TOKEN, names that end in _TOKEN, _KEY or _SECRET, and variables that tune the engine."),
    ),
    "env.twice": (
        _("The variable %(name)s is given a value and a secret."),
        _("Leave one of them out."),
    ),
}
