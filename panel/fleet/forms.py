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


class JoinForm(forms.Form):
    """A name for a machine that will join. `taken` is the host of that name, when there is one."""

    host_name = forms.CharField(label=_("Name of the host"), max_length=64, required=False)
    again = forms.BooleanField(label=_("It is that machine, or takes its place: give it a new key"), required=False)

    taken = None


class HostNameForm(forms.Form):
    """Another name for a host."""

    name = forms.CharField(
        label=_("Name"), max_length=64, widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"})
    )
