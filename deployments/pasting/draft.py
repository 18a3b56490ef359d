"""What comes of a pasted command: a deployment's settings, and what was taken, changed or left out. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.engines import arguments, denied
from deployments.engines.base import Reason, RuntimeFacts
from deployments.engines.options import Schema
from deployments.pasting.hiding import hide
from deployments.pasting.secret_names import HF_TOKEN, is_secret, of_a_hub, secret_variable
from deployments.pasting.start import Finding, Level, Outcome, Start, devices, listed, unresolved
from deployments.pasting.text import plain
from deployments.pasting.values import number_of, size_of, slug, whole
from panel.core.mask import HIDDEN

FIELDS = ("max_model_len", "max_num_seqs", "gpu_memory_utilization", "dtype")  # the form's own fields
MOST_FINDINGS = 100
PARTS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
# Berth decides these itself, so that leaving them out loses nothing.
OWN = frozenset(
    listed(
        """
    host port uds headless root_path device_ids api_server_count disable_uvicorn_access_log uvicorn_log_level
    download_dir ssl_keyfile ssl_certfile ssl_ca_certs enable_ssl_refresh ssl_cert_reqs ssl_ciphers
    show_hidden_metrics_for_version data_parallel_size_local data_parallel_backend
    """
    )
)
DTYPES = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_PATH = re.compile(r"/|~/|\./|\.\./")
_TASKS = {
    "generate": "generate", "auto": "", "transcription": "generate", "draft": "generate", "none": "",
    "embed": "embed", "embedding": "embed", "pooling": "embed",
    "classify": "score", "score": "score", "reward": "score",
}  # fmt: skip
_MODEL_ENV = re.compile(
    r"HF_HOME|HF_HUB_CACHE|HUGGINGFACE_HUB_CACHE|HF_ENDPOINT|TRANSFORMERS_CACHE|HF_DATASETS_CACHE|VLLM_USE_MODELSCOPE"
    r"|MODELSCOPE_CACHE|OLLAMA_MODELS|LLAMA_CACHE|SGLANG_USE_MODELSCOPE"
)
# The version in the tag of an image of vLLM: vllm/vllm-openai:v0.8.5.post1, …/vllm-cpu-release-repo:v0.10.0
IMAGE_VERSION = re.compile(r"(?:.*/)?vllm[\w.-]*:v?(\d{1,4}(?:\.\d{1,4}){1,3})(?:[.\-_+a-z].*)?", re.DOTALL)
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass
class Draft:
    """Settings as they become, in the order in which the command says them. `engine` is the one they are for."""

    start: Start
    engine: RuntimeFacts
    roots: tuple[str, ...] = ("/",)  # without a host nobody knows its folders yet
    model: str = ""
    quant: str = ""  # which quantisation of the model: a tag, or the name of a file
    name: str = ""
    device: str = "auto"
    task: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)  # further options of the engine, by name
    dotted: list[tuple[str, str]] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)  # flags that no schema could check
    env: dict[str, str] = field(default_factory=dict)
    env_secrets: dict[str, str] = field(default_factory=dict)  # by variable: the names of stored ones
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # by variable; "" where the text only names one
    kv_cache_gib: int | None = None
    gpus: list[str] = field(default_factory=list)  # indexes or UUIDs
    gpu_count: int = 1
    restart: dict[str, Any] = field(default_factory=dict)
    grace_s: float | None = None
    start_deadline_s: float | None = None
    host: str = ""  # the name of the chosen one, where an export told it
    chosen: str = ""  # the executable of the chosen engine, where an export told it
    rest: dict[str, Any] = field(default_factory=dict)  # further fields of the spec, where an export told them
    parts: dict[str, int] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def schema(self) -> Schema:
        return self.engine.schema

    def tell(self, level: Level, code: str, outcome: Outcome = "", place: str = "", **params: Any) -> None:
        finding = Finding(level, code, params, place, outcome)
        if finding not in self.findings and len(self.findings) < 200:
            self.findings.append(finding)

    # --- flags ---

    def flag(self, flag: str, name: str, values: Sequence[str], elements: Sequence[str]) -> None:
        """One flag of the engine: its option's name, its values, and all of it as argv elements."""
        bad = next((text for one in values if (text := unresolved(one))), "")
        values, elements = [plain(one) for one in values], [plain(one) for one in elements]
        value = values[0] if values else ""
        if len(self.findings) >= MOST_FINDINGS:  # looking for what was meant takes milliseconds each
            self.tell("error", "paste.too_many", "left_out", n=MOST_FINDINGS)
        elif is_secret(name):
            self.secret(flag, value)
        elif bad:
            self._unresolved(flag, name, bad)
        elif hide(" ".join(elements)) != " ".join(elements):
            self.secret(flag)
        elif name in ("model", "model_tag"):
            self.set_model(value)
        elif name == "served_model_name":
            self.set_name(list(values))
        elif name in OWN:
            self.tell("note", "paste.own", "left_out", flag=flag)
        elif not self._field(flag, name, value):
            self.further(flag, name, [self.mapped(one) for one in elements])

    def _unresolved(self, flag: str, name: str, text: str) -> None:
        if name in ("model", "model_tag"):
            self.tell("error", "paste.model_unresolved", "left_out", "artifact", text=text)
        elif name not in OWN:
            self.tell("warning", "paste.unresolved", "left_out", flag=flag, text=text)

    def secret(self, name: str, value: str = "", *, variable: bool = False) -> None:
        """A secret is named and never kept; one that an engine can be given is offered to the store of secrets."""
        given = secret_variable(name) if variable or HF_TOKEN.fullmatch(name) else ""
        if given:
            told = bool(value) and not unresolved(value) and HIDDEN not in value
            self.secrets[given] = value if told else self.secrets.get(given, "")
        code = "paste.secret_hub" if of_a_hub(name) else "paste.secret_variable" if given else "paste.secret"
        self.tell("warning", code, "left_out", name=name[:100])

    def set_model(self, text: str) -> None:
        if self.model and text and text != self.model:
            self.tell("warning", "paste.two_models", "left_out", "artifact", first=self.model[:200], text=text[:200])
        elif bad := unresolved(text):
            self.tell("error", "paste.model_unresolved", "left_out", "artifact", text=bad)
        else:
            self.model = self.start.on_host(plain(text.strip()))

    def set_name(self, names: list[str]) -> None:
        if len(names) > 1:
            self.tell("note", "paste.first_name", "left_out", "name", name=names[0][:100], others=names[1:6])
        self.name = slug(names[0]) if names else ""
        if names and self.name != names[0]:
            self.tell("note", "paste.name_changed", "changed", "name", old=names[0][:100], new=self.name)

    def _field(self, flag: str, name: str, value: str) -> bool:
        """What a deployment says in a field of its own; False for every other flag."""
        if name == "trust_remote_code":
            self.tell("warning", "paste.remote_code", "left_out", "artifact", flag=flag)
        elif name == "config":
            self.tell("warning", "paste.config_file", "left_out", file=value[:200])
        elif name == "device":
            self.set_device(flag, value)
        elif name in ("task", "runner", "convert", "is_embedding"):
            self._set_task(flag, name, value)
        elif name in PARTS:
            self._set_part(flag, name, value)
        elif name in FIELDS:
            self.set_field(flag, name, value)
        else:
            return False
        return True

    def set_device(self, flag: str, value: str) -> None:
        word = value.split(":")[0].lower()
        if word in ("cpu", "none"):
            self.device = "cpu"
            self.took(flag)
        elif word in ("cuda", "gpu", "rocm"):
            self.device = "gpu"
            self.took(flag)
        elif word != "auto":
            self.tell("warning", "paste.device", "left_out", "device", flag=flag, value=value[:60])

    def _set_task(self, flag: str, name: str, value: str) -> None:
        found = _TASKS.get(value)
        if found is None:
            self.tell(
                "warning", "option.not_a_choice", "left_out", "task", flag=flag, value=value[:60], choices=list(_TASKS)
            )
        elif found and not (name == "runner" and value == "pooling" and self.task):
            self.task = found
            self.took(flag)

    def _set_part(self, flag: str, name: str, value: str) -> None:
        if re.fullmatch(r"\d{1,3}", value) and 1 <= int(value) <= 64:
            self.parts[name] = int(value)
            self.took(flag)
        else:
            self.tell("warning", "option.not_an_int", "left_out", "gpu_count", flag=flag, value=value[:60])

    def set_field(self, flag: str, name: str, value: str) -> None:
        """One of the form's four engine options."""
        number: Any = None
        if value.lower() in ("auto", "-1", ""):
            self.tell("note", "paste.usual", "left_out", name, flag=flag)
            return
        if name == "dtype":
            number = DTYPES.get(value, value)
            number = number if number in DTYPES.values() else None
        elif name == "gpu_memory_utilization":
            number = number_of(value)
            number = number if number is not None and 0 < number <= 1 else None
        else:
            number = size_of(value)
        if number is None:
            self.tell("warning", "paste.bad_value", "left_out", name, flag=flag, value=value[:60])
            return
        if name in self.options and self.options[name] != number:
            self.tell("note", "paste.twice", "changed", name, flag=flag)
        self.options[name] = number
        self.took(flag)

    def further(self, flag: str, name: str, elements: Sequence[str]) -> None:
        """Any other flag, checked by the engine's own list of flags; what it has renamed or dropped is told."""
        if not self.schema.options:
            if name in denied.FLAGS:
                self.tell("warning", f"option.denied_{denied.FLAGS[name]}", "left_out", "extra_args", flag=flag)
                return
            self.raw += elements
            self.took(flag)
            return
        values = arguments.Values(self.schema, self.engine.device, self.engine.version, self.roots)
        values.add_words([whole(elements)] if len(elements) == 2 else elements)
        if values.reasons:
            self._refused(flag, values.reasons)
            return
        for note in values.notes:
            gone = note.code in ("flag.removed_no_effect", "flag.device_by_runtime")
            self.tell("note", note.code, "left_out" if gone else "changed", "extra_args", **note.params)
        for one, value in values.set.items():
            self._keep(flag, one, value)
        self.dotted += values.dotted
        if values.dotted or (values.set and not values.notes):
            self.took(flag)

    def _keep(self, flag: str, name: str, value: Any) -> None:
        if self._field(flag, name, str(value)):
            return
        before = self.more.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            value = before | value
        elif before is not None and before != value:
            self.tell("note", "paste.twice", "changed", "extra_args", flag=flag)
        self.more[name] = value

    def _refused(self, flag: str, reasons: Sequence[Reason]) -> None:
        for reason in reasons:
            if reason.code == "option.denied_house":
                self.tell("note", "paste.own", "left_out", flag=flag)
            else:
                self.tell("warning", reason.code, "left_out", "extra_args", **reason.params)

    def took(self, flag: str) -> None:
        if flag not in self.taken and len(self.taken) < 200:
            self.taken.append(flag)

    def mapped(self, element: str) -> str:
        """Paths of a container as the machine calls them."""
        if not self.start.mounts:
            return element
        head, sign, value = element.partition("=")
        if sign and head.startswith("-") and _PATH.match(value):
            return f"{head}={self.start.on_host(value)}"
        return self.start.on_host(element) if _PATH.match(element) else element

    # --- everything else ---

    def finish(self) -> None:
        """Variables, GPUs, restarts: what the command says beside its flags."""
        self.findings = [*self.start.findings, *self.findings]
        self.grace_s = self.start.grace_s
        visible = self._variables()
        self._share_out(visible if visible is not None else self.start.gpus)
        self._set_restart()
        self._written_for()
        if not self.name and self.start.name:
            self.name = slug(self.start.name)
        if self.taken:
            self.tell("note", "paste.taken", "taken", flags=list(self.taken))
        if not self.model and not any(finding.code == "paste.model_unresolved" for finding in self.findings):
            self.tell("error", "paste.no_model", "", "artifact")

    def _variables(self) -> list[str] | None:
        """Keep the variables that may be set. Returns the GPUs that they name; None where they name none."""
        visible: list[str] | None = None
        loose: list[str] = []
        for name, value in self.start.env.items():
            if name in VISIBLE:
                if not unresolved(value):
                    visible = devices(value)
                    self.took(name)
            elif is_secret(name) or hide(value) != value:
                self.secret(name, plain(value), variable=True)
            elif name == "VLLM_CPU_KVCACHE_SPACE" and re.fullmatch(r"\d{1,4}", value) and 1 <= int(value) <= 4096:
                self.kv_cache_gib = int(value)
                self.took(name)
            elif name == "VLLM_TARGET_DEVICE":
                self.set_device(name, value)
            elif _MODEL_ENV.fullmatch(name):
                self.tell("note", "paste.model_variable", "left_out", name=name)
            elif denied.ENV_HOUSE.fullmatch(name):
                self.tell("note", "paste.own", "left_out", flag=name)
            elif not self._variable(name, value):
                loose.append(name)
        if loose:
            self.tell("note", "paste.loose_variables", "left_out", names=loose[:20])
        return self._inside(visible)

    def _variable(self, name: str, value: str) -> bool:
        """One more variable; False where it was exported for something else."""
        reasons = denied.check_env({name: plain(value)})
        loose = name in self.start.loose
        if reasons and loose:
            return False
        if reasons:
            self.tell("warning", reasons[0].code, "left_out", "env", **reasons[0].params)
        elif bad := unresolved(value):
            self.tell("warning", "paste.unresolved", "left_out", "env", flag=name, text=bad)
        else:
            self.env[name] = plain(value)
            self.took(name)
        return True

    def _inside(self, visible: list[str] | None) -> list[str] | None:
        """In a container that has some GPUs only, numbers count among these."""
        given = self.start.gpus
        if visible is None or not given:
            return visible
        if all(re.fullmatch(r"\d{1,2}", one) and int(one) < len(given) for one in visible):
            return [given[int(one)] for one in visible]
        return visible

    def _share_out(self, chosen: list[str] | None) -> None:
        """How many GPUs, and which."""
        parts = 1
        for number in self.parts.values():
            parts *= number
        told = bool(self.parts)
        have = len(chosen) if chosen is not None else self.start.gpu_count
        if chosen == []:
            self.device = "cpu"
        if have and not told:
            parts = have
            if have > 1:
                self.tell("warning", "paste.gpus_without_parts", "changed", "gpus", n=have)
        elif have and parts < have and chosen:
            self.tell("note", "paste.first_gpus", "changed", "gpus", n=parts, have=have)
        elif have and parts > have:
            self.tell("warning", "paste.too_few_gpus", "changed", "gpus", n=parts, have=have)
            chosen = None
        self.gpus = list(chosen or [])[:parts]
        self.gpu_count = max(1, min(parts, 64))
        if any(number > 1 for name, number in self.parts.items() if name != PARTS[0]):
            self.more |= {name: number for name, number in self.parts.items() if number > 1}

    def _written_for(self) -> None:
        """An image names the version that the flags are of; another one reads them here."""
        found = IMAGE_VERSION.fullmatch(self.start.image.rpartition("@")[0] or self.start.image)
        here = re.match(r"\d+(\.\d+){1,3}", self.engine.version)
        if found is not None and here is not None and found[1] != here[0] and self.start.engine == "vllm":
            self.tell("note", "paste.other_version", "changed", "runtime", written=found[1], read=here[0])

    def _set_restart(self) -> None:
        told = self.start.restart
        if told in ("no", "never"):
            self.restart = {"policy": "never"}
        elif told in ("always", "unless-stopped") or told.startswith("on-failure"):
            self.restart = {"policy": "on_failure"}
            number = told.partition(":")[2]
            if number.isdecimal() and len(number) < 4:
                self.restart["max_attempts"] = max(1, min(int(number), 5))

    def extra_args(self) -> list[str]:
        """Everything that has no field of its own, as argv elements."""
        values = arguments.Values(self.schema, self.engine.device, self.engine.version, self.roots)
        if not self.schema.options:
            parts = [word for name, value in self.more.items() for word in (f"--{name.replace('_', '-')}", str(value))]
            return [*self.raw, *parts]
        values.set, values.dotted = dict(self.more), list(self.dotted)
        return values.argv()

    def values(self) -> dict[str, Any]:
        """The fields of a DeploymentSpec that the command says, without the model and the place."""
        found: dict[str, Any] = {
            "device": self.device,
            "gpu_count": self.gpu_count,
            "options": dict(self.options),
            "extra_args": self.extra_args()[:100],
            "env": dict(self.env),
        }
        names = ("task", "kv_cache_gib", "restart", "grace_s", "start_deadline_s")
        optional = {name: getattr(self, name) for name in names} | {"env_secrets": dict(self.env_secrets)}
        return self.rest | found | {name: value for name, value in optional.items() if value not in (None, "", {})}
