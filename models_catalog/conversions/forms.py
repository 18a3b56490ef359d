"""The form of a conversion. It only reads fields; services decide and refuse."""

from django import forms
from django.utils.translation import gettext_lazy as _


class ConvertForm(forms.Form):
    dtype = forms.CharField(max_length=20, label=_("Number format"))
    folder = forms.CharField(max_length=1000, label=_("Folder"))
    name = forms.CharField(
        max_length=130, label=_("Name of the new folder"), widget=forms.TextInput(attrs={"id": "f-name"})
    )
