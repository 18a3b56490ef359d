"""The command of a deployment in three forms. Each carries the comment by which it can be read back. Pure.

Nothing in them is secret: the key that protects the engine is named, and whoever runs them gives one.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deployments.engines import arguments
from deployments.engines.base import Launch, RuntimeFacts
from deployments.pasting import marker
from deployments.spec import DeploymentSpec, Restart

Form = Literal["command", "compose", "systemd"]
FORMS: tuple[Form, ...] = ("command", "compose", "systemd")
PORT = 8000
_HEAD = 9  # of the command: executable, serve, model, --host, address, --port, port, --served-model-name, name
_WANTED = {"VLLM_API_KEY": "set a key of your own"}
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=+@-]+")


@dataclass(frozen=True)
class Exported:
    """All that the forms are made of. `folders` are what a container must see, `title` is a line about it all."""

    name: str
    spec: DeploymentSpec
    launch: Launch
    runtime: RuntimeFacts
    title: str = ""
    host: str = ""  # its name, where the settings choose it
    folders: tuple[str, ...] = ()
    secrets: tuple[str, ...] = field(default=("VLLM_API_KEY",))


def export(what: Exported, form: Form) -> str:
    """One of the forms, ending with a line end."""
    return {"command": _command, "compose": _compose, "systemd": _systemd}[form](what)


# --- what Berth added -------------------------------------------------------------------------------------------------


def added(what: Exported) -> dict[str, Any]:
    """Options that stand in the command and not in the settings, with their values."""
    in_command = _values(what.runtime, {}, what.launch.argv[_HEAD:])
    in_settings = _values(what.runtime, what.spec.options, what.spec.extra_args)
    return {name: value for name, value in in_command.set.items() if name not in in_settings.set}


def _values(runtime: RuntimeFacts, options: Mapping[str, Any], words: list[str]) -> arguments.Values:
    values = arguments.Values(runtime.schema, runtime.device, runtime.version, ("/",))
    for name, value in options.items():
        values.add(str(name).replace("-", "_"), value)
    values.add_words(words)
    return values


def _own(what: Exported) -> list[str]:
    """Flags that people may not set, and Berth did: permission for a model's code, the description of a lone GGUF."""
    reasons = _values(what.runtime, {}, what.launch.argv[_HEAD:]).reasons
    return sorted({str(one.params["flag"]) for one in reasons if one.code.startswith("option.denied_")})


def _marker(what: Exported) -> str:
    """The comment for pasting/marker.py; what has its usual value is left out."""
    spec, usual = what.spec, DeploymentSpec(artifact_id=0)
    values: dict[str, Any] = {"v": 1, "device": spec.device}
    if found := added(what):
        values["added"] = found
    if own := _own(what):
        values["own"] = own
    kept = set(spec.env) | ({"VLLM_CPU_KVCACHE_SPACE"} if spec.kv_cache_gib is not None else set())
    if names := sorted(set(what.launch.env) - kept):
        values["env"] = names
    if not spec.gpu_uuids:
        values["gpus"] = "any"
    for name in ("task", "grace_s", "start_deadline_s"):
        if getattr(spec, name) != getattr(usual, name):
            values[name] = getattr(spec, name)
    if more := {name: getattr(spec, name) for name in DeploymentSpec.model_fields if name not in marker.SAID}:
        values["more"] = {name: value for name, value in more.items() if value != getattr(usual, name)}
    if spec.env_secrets:
        values["kept"] = sorted([variable, name] for variable, name in spec.env_secrets.items())
    if spec.restart != Restart():
        values["restart"] = spec.restart.model_dump()
    if what.host:
        values["host"] = what.host
    if spec.runtime_id is not None:
        values["runtime"] = what.runtime.executable
    return marker.line(values)


# --- the forms --------------------------------------------------------------------------------------------------------


def _about(what: Exported) -> list[str]:
    lines = [f"# {line}" for line in what.title.splitlines()]
    return [*lines, f"# {_marker(what)}"]


def _argv(what: Exported, *, listen: str = "127.0.0.1") -> list[str]:
    """The command with a port of its own; a container listens to its network."""
    words = [str(PORT) if word == "{port}" else word for word in what.launch.argv]
    if words[3:5] == ["--host", "127.0.0.1"]:
        words[4] = listen
    return words


def _pairs(words: list[str]) -> list[list[str]]:
    """Words by line: each flag with its values."""
    lines: list[list[str]] = []
    for word in words:
        if not lines or (word.startswith("-") and not re.fullmatch(r"-[0-9.]+", word)):
            lines.append([word])
        else:
            lines[-1].append(word)
    return lines


def _visible(what: Exported) -> str:
    return ",".join(what.launch.gpu_uuids)


def _command(what: Exported) -> str:
    env = [f"{name}={shlex.quote(value)}" for name, value in sorted(what.launch.env.items())]
    env += [f'{name}="${name}"' for name in what.secrets]
    if what.launch.gpu_uuids:
        env.append(f"CUDA_VISIBLE_DEVICES={shlex.quote(_visible(what))}")
    lines = [*env, *(" ".join(map(shlex.quote, line)) for line in _pairs(_argv(what)))]
    return "\n".join([*_about(what), " \\\n  ".join(lines)]) + "\n"


def _systemd(what: Exported) -> str:
    seconds = f"{what.spec.grace_s:g}"
    env = [f"Environment={_unit_word(f'{name}={value}')}" for name, value in sorted(what.launch.env.items())]
    if what.launch.gpu_uuids:
        env.append(f"Environment=CUDA_VISIBLE_DEVICES={_unit_word(_visible(what))}")
    secrets = ", ".join(f"{name}=…" for name in what.secrets)
    command = " \\\n  ".join(" ".join(map(_unit_word, line)) for line in _pairs(_argv(what)))
    lines = [
        *_about(what),
        f"# /etc/{what.name}.env holds {secrets} and is readable by root alone.",
        "[Unit]",
        f"Description={what.name} (vLLM)",
        "After=network-online.target",
        "",
        "[Service]",
        *env,
        f"EnvironmentFile=/etc/{what.name}.env",
        f"ExecStart={command}",
        f"Restart={'no' if what.spec.restart.policy == 'never' else 'on-failure'}",
        f"TimeoutStopSec={seconds if float(seconds).is_integer() else round(what.spec.grace_s)}",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _unit_word(word: str) -> str:
    """One word of a unit: `%` and `$` mean something there, and C's escapes count within quotes."""
    word = word.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _compose(what: Exported) -> str:
    version = re.match(r"\d+(\.\d+){1,3}", what.runtime.version)
    cpu = not what.launch.gpu_uuids
    image = f"vllm/vllm-openai{'-cpu' if cpu else ''}:v{version[0] if version else 'latest'}"
    words = _argv(what, listen="0.0.0.0")[2:]
    env = {name: value.replace("$", "$$") for name, value in what.launch.env.items()}
    env |= {name: f"${{{name}:?{_WANTED.get(name, 'give this secret')}}}" for name in what.secrets}
    lines = [
        *_about(what),
        "services:",
        f"  {_yaml(what.name)}:",
        f"    image: {_yaml(image)}" + ("  # or the one for your kind of CPU" if cpu else ""),
        '    entrypoint: ["vllm", "serve"]',
        "    command:",
        *(f"      - {_yaml(word.replace('$', '$$'))}" for word in words),
        "    environment:",
        *(f"      {name}: {_yaml(env[name])}" for name in sorted(env)),
        f'    ports: ["127.0.0.1:{PORT}:{PORT}"]',
        "    ipc: host",
        "    restart: " + ('"no"' if what.spec.restart.policy == "never" else "on-failure"),
        f"    stop_grace_period: {round(what.spec.grace_s)}s",
    ]
    if what.folders:
        lines += ["    volumes:", *(f"      - {_yaml(f'{folder}:{folder}:ro')}" for folder in what.folders)]
    if what.launch.gpu_uuids:
        ids = ", ".join(map(_yaml, what.launch.gpu_uuids))
        lines += [
            "    deploy:",
            "      resources:",
            "        reservations:",
            "          devices:",
            f"            - {{driver: nvidia, device_ids: [{ids}], capabilities: [gpu]}}",
        ]
    return "\n".join(lines) + "\n"


def _yaml(text: str) -> str:
    """A text that YAML cannot take for anything else."""
    plain = re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", text) and text.lower() not in (
        "true",
        "false",
        "null",
        "yes",
        "no",
        "on",
        "off",
        "y",
        "n",
    )
    return text if plain else json.dumps(text, ensure_ascii=False)
