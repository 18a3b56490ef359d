"""Forms of the hosts' page. They only read fields; services decide and refuse."""

from django import forms
from django.utils.translation import gettext_lazy as _


class EngineForm(forms.Form):
    """Name an engine that is not on a host's PATH."""

    executable = forms.CharField(
        label=_("Full path of the executable"),
        max_length=500,
        widget=forms.TextInput(
            attrs={"placeholder": "/opt/vllm/bin/vllm", "autocomplete": "off", "spellcheck": "false"}
        ),
    )


class HostNameForm(forms.Form):
    """Another name for a host."""

    name = forms.CharField(
        label=_("Name"), max_length=64, widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"})
    )
