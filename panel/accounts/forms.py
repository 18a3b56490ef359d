"""The forms of accounts: what people may send. What it means is decided in the services."""

from typing import Any

from django import forms
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from panel.accounts import reach
from panel.accounts.models import Role, Scope
from panel.core.templatetags.ui import role_word

FIRST_DAYS = 90  # what a token lasts when nobody says otherwise
DAYS = [("30", _("30 days")), ("90", _("90 days")), ("365", _("1 year")), ("", _("Never ends"))]


def _password(label: Any, *, new: bool) -> forms.CharField:
    words = "new-password" if new else "current-password"
    return forms.CharField(
        label=label, strip=False, max_length=1000, widget=forms.PasswordInput(attrs={"autocomplete": words})
    )


def _roles() -> list[tuple[str, str]]:
    return [(role.value, role_word(role.value)) for role in Role]


class SignInForm(forms.Form):
    name = forms.CharField(
        label=_("Name"),
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "username", "autocapitalize": "none", "autofocus": True}),
    )
    password = _password(_("Password"), new=False)


class NewPasswordForm(forms.Form):
    """A password, typed twice."""

    password = _password(_("New password"), new=True)
    again = _password(_("The same password again"), new=True)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("password") and data.get("again") and data["password"] != data["again"]:
            self.add_error("again", _("The two passwords differ."))
        return data


class ChangedPasswordForm(NewPasswordForm):
    """Who knew the old password may have made tokens with it: they end where that is ticked."""

    end_tokens = forms.BooleanField(label=_("End all tokens of this account too"), required=False)


class NewAccountForm(NewPasswordForm):
    password = _password(_("Password"), new=True)
    name = forms.CharField(
        label=_("Your name here"),
        help_text=_("Letters, digits and . _ - @ +"),
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "username", "autocapitalize": "none", "autofocus": True}),
    )


class InviteForm(forms.Form):
    label = forms.CharField(
        label=_("Who it is for"), max_length=80, widget=forms.TextInput(attrs={"autocomplete": "off"})
    )
    role = forms.ChoiceField(label=_("Role"), choices=_roles, initial=Role.VIEWER)


class RoleForm(forms.Form):
    role = forms.ChoiceField(label=_("Role"), choices=_roles)


class LookForm(forms.Form):
    """Language and colours. No language means that the browser's is used."""

    language = forms.ChoiceField(
        label=_("Language"), required=False, choices=[("", _("The browser's")), *settings.LANGUAGES]
    )
    theme = forms.ChoiceField(
        label=_("Colours"), choices=[("auto", _("Same as the system")), ("light", _("Light")), ("dark", _("Dark"))]
    )


class PasswordForm(ChangedPasswordForm):
    current = _password(_("Present password"), new=False)


class SecretForm(forms.Form):
    """A secret for engines. What was typed is never sent back, also when something is wrong."""

    name = forms.CharField(
        label=_("Name"),
        max_length=64,
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}),
    )
    value = forms.CharField(
        label=_("The secret"),
        max_length=8_000,
        widget=forms.PasswordInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    team = forms.BooleanField(label=_("For everyone who may deploy"), required=False)


class TokenForm(forms.Form):
    """A new token. `days` left out is 90; sent empty it means that the token never ends.

    Without a tick it reaches all deployments. A page that needs less shows fewer fields: what is left out is as usual.
    """

    name = forms.CharField(
        label=_("What it is for"), max_length=80, widget=forms.TextInput(attrs={"autocomplete": "off"})
    )
    days = forms.IntegerField(
        label=_("Ends after"),
        required=False,
        initial=FIRST_DAYS,
        min_value=1,
        max_value=3650,
        widget=forms.Select(choices=DAYS),
    )
    scope = forms.ChoiceField(label=_("It may"), required=False, initial=Scope.DOOR, choices=Scope.choices)
    deployments = forms.TypedMultipleChoiceField(
        label=_("Only for these deployments"), required=False, coerce=int, widget=forms.CheckboxSelectMultiple
    )

    def __init__(self, *args: Any, full: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if full or self.is_bound:  # a page that does not ask for deployments does not look them up
            choices: Any = self.fields["deployments"]
            choices.choices = list(reach.names().items())
