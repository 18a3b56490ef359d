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
        self.fields["host"].queryset = Host.objects.order_by("name")  # type: ignore[attr-defined]
