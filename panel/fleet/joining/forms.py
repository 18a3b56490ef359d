"""The form for a code. It only reads fields; services decide and refuse."""

from django import forms
from django.utils.translation import gettext_lazy as _


class JoinForm(forms.Form):
    """A name for a machine that will join. `taken` is the host of that name, when there is one."""

    host_name = forms.CharField(label=_("Name of the host"), max_length=64, required=False)
    again = forms.BooleanField(label=_("It is that machine, or takes its place: give it a new key"), required=False)

    taken = None
