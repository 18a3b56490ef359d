"""Forms of the engines' pages. They only read fields; services decide and refuse."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from panel.fleet.models import Host


class InstallForm(forms.Form):
    """Install an engine on a host."""

    host = forms.ModelChoiceField(Host.objects.filter(forgotten_at=None), empty_label=None, label=_("Host"))
    variant = forms.ChoiceField(
        choices=[("cuda", _("vLLM for NVIDIA GPUs (CUDA)")), ("cpu", _("vLLM for CPU"))], label=_("Engine")
    )
    version = forms.CharField(
        required=False,
        max_length=60,
        label=_("Version"),
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    extras = forms.MultipleChoiceField(
        required=False,
        choices=[("gguf", _("GGUF plugin")), ("flashinfer", "FlashInfer")],
        widget=forms.CheckboxSelectMultiple,
        label=_("Additions"),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            field.widget.attrs["id"] = f"f-{name}"


class FolderForm(forms.Form):
    """Name a folder with engines on a host."""

    folder = forms.CharField(
        label=_("Full path of the folder"),
        max_length=500,
        widget=forms.TextInput(attrs={"placeholder": "/opt/engines", "autocomplete": "off", "spellcheck": "false"}),
    )
