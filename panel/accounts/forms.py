"""The forms of accounts: what people may send. What it means is decided in the services."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

FIRST_DAYS = 90  # what a token lasts when nobody says otherwise
DAYS = [("30", _("30 days")), ("90", _("90 days")), ("365", _("1 year")), ("", _("Never ends"))]


def _password(label: Any, *, new: bool) -> forms.CharField:
    words = "new-password" if new else "current-password"
    return forms.CharField(
        label=label, strip=False, max_length=1000, widget=forms.PasswordInput(attrs={"autocomplete": words})
    )


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


class FirstAdminForm(NewPasswordForm):
    password = _password(_("Password"), new=True)
    name = forms.CharField(
        label=_("Your name here"),
        help_text=_("Letters, digits and . _ - @ +"),
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "username", "autocapitalize": "none", "autofocus": True}),
    )


class PasswordForm(NewPasswordForm):
    current = _password(_("Present password"), new=False)


class TokenForm(forms.Form):
    """A new token. `days` left out is 90; sent empty it means that the token never ends."""

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
