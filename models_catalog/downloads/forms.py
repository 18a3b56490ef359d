"""Forms of the downloads' pages. They only read fields; services decide and refuse."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from models_catalog.downloads.models import Source


class WishForm(forms.Form):
    """What of a repository, where to, how fast. Host and folder come as one value: `<host>:<folder>`."""

    source = forms.ChoiceField(choices=Source.choices)
    repo = forms.CharField(max_length=200)
    ref = forms.CharField(max_length=200, required=False)
    choice = forms.CharField(max_length=300, label=_("What to download"))
    place = forms.CharField(max_length=1100, label=_("Where to"))
    limit_mib_s = forms.FloatField(
        required=False, min_value=0, max_value=1e6, label=_("Not faster than, MiB/s"),
        widget=forms.NumberInput(attrs={"inputmode": "decimal", "min": "0", "step": "any", "id": "f-limit"}),
    )  # fmt: skip

    def clean_place(self) -> tuple[int, str]:
        number, _sep, folder = str(self.cleaned_data["place"]).partition(":")
        if not number.isdecimal() or not number.isascii() or len(number) > 9 or not folder.startswith("/"):
            raise forms.ValidationError(_("Choose a host and a folder."))
        return int(number), folder


class AccessForm(forms.Form):
    """A token for a hub."""

    source = forms.ChoiceField(choices=Source.choices, label=_("Hub"), widget=forms.Select(attrs={"id": "f-source"}))
    token = forms.CharField(
        max_length=500,
        label=_("Token"),
        widget=forms.PasswordInput(attrs={"autocomplete": "off", "spellcheck": "false", "id": "f-token"}),
    )
    team = forms.BooleanField(required=False, label=_("For everyone of this panel"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
