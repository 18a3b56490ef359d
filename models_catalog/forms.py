"""Forms of the catalog's pages. They only read fields; services decide and refuse."""

from django import forms
from django.utils.translation import gettext_lazy as _

from panel.fleet.models import Host


class FolderForm(forms.Form):
    """Add a folder of a host to the ones that are searched."""

    host = forms.ModelChoiceField(queryset=Host.objects.none(), label=_("Host"), empty_label=None)
    path = forms.CharField(
        label=_("Folder"),
        max_length=4000,
        strip=False,
        widget=forms.TextInput(attrs={"placeholder": "/data/models", "autocomplete": "off", "spellcheck": "false"}),
    )

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # passed on as they came
        self.fields["host"].queryset = Host.objects.order_by("name").only("name")  # type: ignore[attr-defined]


class AboutForm(forms.Form):
    """What people say about a model."""

    tags = forms.CharField(
        label=_("Tags"),
        max_length=1000,
        required=False,
        widget=forms.TextInput(attrs={"placeholder": _("chat, support team"), "autocomplete": "off"}),
    )
    notes = forms.CharField(
        label=_("Notes"), max_length=10_000, required=False, widget=forms.Textarea(attrs={"rows": 4})
    )
    licence = forms.CharField(label=_("Licence"), max_length=100, required=False)
    source_url = forms.CharField(label=_("Source"), max_length=500, required=False)
