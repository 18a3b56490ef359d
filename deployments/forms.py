"""The deploy form: what a person may say, and the spec that comes of it. Checks of meaning live in preflight.py."""

import json
import re
import shlex
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from deployments import expert
from deployments.engines.options import Schema
from deployments.hidden import restored
from deployments.services import NAME_HINT, parse_spec
from deployments.spec import NAME, DeploymentSpec
from panel.accounts.secret_store import NAME as SECRET_NAME
from panel.core.mask import mask

# form field → the engine's option of the same meaning; empty fields leave the choice to the engine.
OPTION_FIELDS = ("max_model_len", "max_num_seqs", "gpu_memory_utilization", "dtype")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
REST = ("grace_s", "start_deadline_s", "restart")  # see rest below
MENDS = [("no", _("Only people change its settings")), ("once", _("Apply a safe fix and try once more"))]
PRIORITIES = [("speed", _("Quick answers")), ("quality", _("Balanced")), ("fit", _("Room for others"))]
DTYPES = [("", _("As the model says")), ("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "float32")]


class DeploymentForm(forms.Form):
    """Create and edit. `to_spec()` keeps what an edited spec says and the form does not show.

    Settings of the engine beside the fields here come as `o.NAME`, see expert.py; `schema` says what they take.
    """

    artifact = forms.IntegerField(widget=forms.HiddenInput, label=_("Model"))
    name = forms.RegexField(NAME, max_length=63, label=_("Name"), error_messages={"invalid": NAME_HINT})
    host = forms.IntegerField(required=False, label=_("Host"))
    runtime = forms.IntegerField(required=False, label=_("Engine"))
    device = forms.ChoiceField(
        choices=[("auto", _("Berth decides")), ("gpu", _("GPU")), ("cpu", _("CPU"))], initial="auto", label=_("Runs on")
    )
    gpus = forms.MultipleChoiceField(required=False, label=_("GPUs"))
    gpu_count = forms.IntegerField(min_value=1, max_value=64, initial=1, required=False, label=_("Number of GPUs"))
    task = forms.ChoiceField(
        choices=[
            ("generate", _("Chat and text")),
            ("embed", _("Embeddings (vectors)")),
            ("score", _("Reranking (scores)")),
        ],
        initial="generate",
        label=_("Used for"),
    )
    max_model_len = forms.IntegerField(
        min_value=16, max_value=10_000_000, required=False, label=_("Longest conversation")
    )
    people = forms.IntegerField(min_value=1, max_value=100_000, required=False, label=_("People at the same time"))
    priority = forms.ChoiceField(
        choices=PRIORITIES, initial="quality", required=False, widget=forms.RadioSelect, label=_("What matters most")
    )
    max_num_seqs = forms.IntegerField(min_value=1, max_value=4096, required=False, label=_("Requests at once"))
    gpu_memory_utilization = forms.FloatField(
        min_value=0.05, max_value=0.99, required=False, label=_("Share of GPU memory")
    )
    kv_cache_gib = forms.IntegerField(min_value=1, max_value=4096, required=False, label=_("KV cache on the CPU, GiB"))
    dtype = forms.ChoiceField(choices=DTYPES, required=False, label=_("Number format"))
    extra_args = forms.CharField(
        required=False, max_length=8000, widget=forms.Textarea(attrs={"rows": 3}), label=_("More engine flags")
    )
    env = forms.CharField(
        required=False, max_length=20_000, widget=forms.Textarea(attrs={"rows": 2}), label=_("Variables")
    )
    env_secrets = forms.CharField(
        required=False, max_length=4_000, widget=forms.Textarea(attrs={"rows": 1}), label=_("Variables from secrets")
    )
    rest = forms.CharField(required=False, max_length=500, widget=forms.HiddenInput)  # what a pasted command said more
    restart = forms.ChoiceField(
        choices=[("on_failure", _("Start again after a failure")), ("never", _("Never start again by itself"))],
        initial="on_failure",
        label=_("When it ends by itself"),
    )
    fix_once = forms.ChoiceField(choices=MENDS, initial="no", required=False, label=_("When a start fails"))

    def __init__(
        self,
        *args: Any,
        gpu_choices: list[tuple[str, str]] | None = None,
        named: bool = True,
        schema: Schema | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.schema = schema or Schema()
        self.fields["name"].required = named  # an edit keeps its name, a plan can do without one
        self.fields["gpus"].choices = gpu_choices or []
        for name, field in self.fields.items():
            css = "form-select" if isinstance(field, forms.ChoiceField) else "form-control"
            field.widget.attrs.update({"class": css, "id": f"f-{name}"})
            if self.is_bound and name in self.errors:
                field.widget.attrs.update({"aria-invalid": "true", "aria-describedby": f"e-{name}"})

    def clean_extra_args(self) -> list[str]:
        """Flags as people paste them: several on a line, over several lines, quoted JSON kept whole."""
        text = self.cleaned_data["extra_args"].replace("\\\n", " ")
        try:
            return shlex.split(text)
        except ValueError as exc:
            raise forms.ValidationError(_("A quote is opened and not closed.")) from exc

    def clean_env(self) -> dict[str, str]:
        """Variables, one on each line; a value may hold anything but a line end."""
        return _pairs(self.cleaned_data["env"], _("Write each variable on a line of its own, as NAME=value."))

    def clean_env_secrets(self) -> dict[str, str]:
        """Variables with the names of stored secrets, one on each line."""
        text = _("Write each variable on a line of its own, as NAME=name of the secret.")
        found = {name: secret.strip() for name, secret in _pairs(self.cleaned_data["env_secrets"], text).items()}
        for name, secret in found.items():
            if not VARIABLE.fullmatch(name) or not SECRET_NAME.fullmatch(secret):
                raise forms.ValidationError(text)  # what was written is not repeated: it may be the secret itself
        return found

    def options_shown(self) -> dict[str, Any]:
        """The options as the page shows them: as they were sent, or as they are kept."""
        if not self.is_bound:
            return {**self.initial.get("options", {})}
        return expert.read(self.data, {}, self.schema)

    def clean_rest(self) -> dict[str, Any]:
        """Fields that the form does not show; anything else is nothing."""
        try:
            values = json.loads(self.cleaned_data["rest"] or "{}")
        except (ValueError, RecursionError):
            return {}
        return {name: values[name] for name in REST if name in values} if isinstance(values, dict) else {}

    def to_spec(self, base: DeploymentSpec | None = None) -> DeploymentSpec:
        """The spec this form says. Raises Invalid."""
        data = self.cleaned_data
        values = base.model_dump(mode="json") if base is not None else dict(data["rest"])
        options = {key: value for key, value in values.get("options", {}).items() if key not in OPTION_FIELDS}
        options |= {key: data[key] for key in OPTION_FIELDS if data.get(key) not in (None, "")}
        options = expert.read(self.data, options, self.schema)
        values |= {name: data[name] or None for name in ("people",) if name in self.data}
        values |= {name: data[name] for name in ("priority",) if data[name]}
        values |= {"fix_once": data["fix_once"] == "once"} if data["fix_once"] else {}
        kept = values.get("restart")
        restart = {**(kept if isinstance(kept, dict) else {}), "policy": data["restart"]}
        if "env" in self.data:  # a program that knows no such field leaves the variables as they are
            values["env"] = restored(data["env"], values.get("env", {}))
        if "env_secrets" in self.data:
            values["env_secrets"] = data["env_secrets"]
        gpus = data["gpus"] if data["device"] != "cpu" else []
        return parse_spec(
            {
                **values,
                "artifact_id": data["artifact"],
                "host_id": data["host"],
                "runtime_id": data["runtime"],
                "device": data["device"],
                "gpu_uuids": gpus,
                "gpu_count": len(gpus) or data["gpu_count"] or 1,
                "task": data["task"],
                "options": options,
                "kv_cache_gib": data["kv_cache_gib"],
                "extra_args": restored(data["extra_args"], values.get("extra_args", [])),
                "restart": restart,
            }
        )

    @staticmethod
    def initial_of(spec: DeploymentSpec, name: str) -> dict[str, Any]:
        """The form's values for an existing spec."""
        return {
            "artifact": spec.artifact_id,
            "name": name,
            "host": spec.host_id,
            "runtime": spec.runtime_id,
            "device": spec.device,
            "gpus": spec.gpu_uuids,
            "gpu_count": spec.gpu_count,
            "task": spec.task,
            "people": spec.people,
            "priority": spec.priority,
            "options": dict(spec.options),
            "kv_cache_gib": spec.kv_cache_gib,
            "extra_args": shlex.join(mask(spec.extra_args)),
            "env": "\n".join(f"{name}={value}" for name, value in mask(spec.env).items()),
            "env_secrets": "\n".join(f"{variable}={name}" for variable, name in spec.env_secrets.items()),
            "restart": spec.restart.policy,
            "fix_once": "once" if spec.fix_once else "no",
            **{key: spec.options.get(key) for key in OPTION_FIELDS},
        }


def _pairs(text: str, otherwise: Any) -> dict[str, str]:
    """Lines of NAME=value. Raises ValidationError with the sentence `otherwise`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, sign, value = line.strip().partition("=")
        if line.strip() and not sign:
            raise forms.ValidationError(otherwise)
        if sign:
            found[name.strip()] = value
    return found
