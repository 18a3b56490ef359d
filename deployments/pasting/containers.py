"""`docker run …` and compose files: image, variables, folders and GPUs of the container that holds an engine. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from deployments.pasting.shell import split
from deployments.pasting.start import Finding, Start, devices, listed
from deployments.pasting.text import DOLLAR, interpolated

_SWITCHES = frozenset(
    listed(
        """
    --rm --detach --interactive --tty --privileged --init --no-healthcheck --oom-kill-disable --publish-all
    --read-only --sig-proxy --quiet --disable-content-trust --help --replace
    """
    )
)
_SHORT_VALUES = "veputwmhlacn"
_SHORT_NAMES = {
    "v": "--volume", "e": "--env", "p": "--publish", "u": "--user", "w": "--workdir", "m": "--memory",
    "h": "--hostname", "l": "--label", "a": "--attach", "c": "--cpu-shares", "t": "--tty", "n": "--net",
}  # fmt: skip
_VLLM_FLAGS = frozenset(
    ["--tensor-parallel-size", "--max-model-len", "--gpu-memory-utilization", "--served-model-name", "--max-num-seqs"]
)
_COMPOSE = re.compile(r"^services:[ \t]*(?:#.*)?$", re.MULTILINE)
_PROBE = 4096  # characters that tell a compose file
LONGEST_FILE = 20_000  # characters: reading YAML takes long


def engine_of(image: str, words: Iterable[str]) -> str:
    """The engine that an image is known for, or that its words give away; "" when neither does."""
    name = image.rpartition("@")[0] or image
    name = name.lower()
    for part, engine in (
        ("sglang", "sglang"),
        ("ollama", "ollama"),
        ("llama.cpp", "llamacpp"),
        ("llama-cpp", "llamacpp"),
    ):
        if part in name:
            return engine
    if "vllm" in name or any(word.partition("=")[0].replace("_", "-") in _VLLM_FLAGS for word in words):
        return "vllm"
    return ""


# --- docker run -------------------------------------------------------------------------------------------------------


def read_run(words: list[str], outer: Mapping[str, str]) -> Start | None:
    """`docker [container] run …` and `docker exec …`; None for its other commands. The engine is not known yet."""
    at = 1
    while at < len(words) and words[at].startswith("-"):  # docker --context x run
        at += 1 if "=" in words[at] else 2
    if words[at : at + 1] == ["container"]:
        at += 1
    if words[at : at + 1] not in (["run"], ["exec"], ["create"]):
        return None
    runs = words[at] != "exec"
    start = Start("", [])
    options, rest = _options(words[at + 1 :])
    if not rest:
        return None
    entrypoint: list[str] = []
    for name, value in options:
        if name == "--entrypoint":
            entrypoint = [value] if value else []
        else:
            _option(start, name, value, outer)
    start.image = rest[0] if runs else "exec"
    start.words = [*entrypoint, *rest[1:]]
    _gpus_of_env(start)
    return start


def _options(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options with their values, and the words from the image on."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and len(words[at]) > 1:
        word = words[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            if not sign and name not in _SWITCHES:
                value = words[at] if at < len(words) else ""
                at += 1
            found.append((name, value))
            continue
        letters = word[1:]
        while letters and (letters[0] not in _SHORT_VALUES or letters[0] == "t"):
            letters = letters[1:]
        if letters:
            value = letters[1:].removeprefix("=")
            if not value:
                value = words[at] if at < len(words) else ""
                at += 1
            found.append((_SHORT_NAMES[letters[0]], value))
    return found, words[at:]


def _option(start: Start, name: str, value: str, outer: Mapping[str, str]) -> None:
    if name in ("--env", "--env-file"):
        _env(start, name, value, outer)
    elif name == "--volume":
        _volume(start, value)
    elif name == "--mount":
        parts = dict(part.partition("=")[::2] for part in value.split(","))
        host = parts.get("source") or parts.get("src", "")
        inside = parts.get("target") or parts.get("destination") or parts.get("dst", "")
        if host and inside:
            start.mounts.append((host, inside))
    elif name == "--gpus":
        _gpus(start, value)
    elif name == "--device" and "/gpu=" in value:  # podman: nvidia.com/gpu=0
        one = value.rpartition("=")[2]
        if one != "all":
            start.gpus = [*(start.gpus or []), one]
    elif name == "--name":
        start.name = value
    elif name == "--restart":
        start.restart = value
    elif name == "--stop-timeout" and re.fullmatch(r"\d{1,3}", value):
        start.grace_s = float(value)
    elif name == "--workdir":
        start.cwd = value


def _env(start: Start, name: str, value: str, outer: Mapping[str, str]) -> None:
    if name == "--env-file":
        start.findings.append(Finding("warning", "paste.env_file", {"file": value[:200]}, outcome="left_out"))
        return
    key, sign, text = value.partition("=")
    if sign or key in outer:
        start.env[key] = text if sign else outer[key]
    elif re.fullmatch(r"\w{1,100}", key):
        start.env[key] = f"${key}"


def _volume(start: Start, value: str) -> None:
    drive = re.match(r"[A-Za-z]:[\\/]", value)  # C:\models:/models
    host, _sign, rest = value[2:].partition(":") if drive else value.partition(":")
    inside = rest.partition(":")[0]
    host = value[:2] + host if drive else host
    if inside and ("/" in host or host.startswith(("~", ".", "$")) or drive):
        start.mounts.append((host, inside))


def _gpus(start: Start, value: str) -> None:
    value = value.strip("\"' ")
    for part in re.split(r",(?=\w+=)", value):
        part = part.strip("\"' ")
        if part.startswith("device="):
            start.gpus = devices(part.removeprefix("device=").strip("\"' "))
        elif re.fullmatch(r"(count=)?\d{1,2}", part):
            start.gpu_count = int(part.removeprefix("count="))


def _gpus_of_env(start: Start) -> None:
    told = start.env.pop("NVIDIA_VISIBLE_DEVICES", "")
    if told and told not in ("all", "void") and "$" not in told and start.gpus is None:
        start.gpus = [] if told == "none" else devices(told)


# --- compose ----------------------------------------------------------------------------------------------------------


def read_compose(text: str) -> Start | None:
    """The first service of a compose file that holds an engine; None when this is no such file."""
    if not _COMPOSE.search(text[:_PROBE]) or len(text) > LONGEST_FILE:
        return None
    try:
        value = _Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError, TypeError):
        return None
    services = value.get("services") if isinstance(value, dict) else None
    for name, service in list(services.items())[:20] if isinstance(services, dict) else ():
        if isinstance(service, dict) and (start := _service(str(name), service)) is not None:
            return start
    return None


class _Loader(yaml.SafeLoader):
    """Without dates and merges. Aliases are one object each here, and nothing walks deeper than a few steps."""

    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if not tag.endswith((":timestamp", ":merge"))]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _service(name: str, service: dict[str, Any]) -> Start | None:
    start = Start("", [], image=_text(service.get("image")), name=_text(service.get("container_name")) or name)
    known: dict[str, str] = {}
    for key, value in _pairs(service.get("environment")):
        start.env[key] = value
    for volume in _list(service.get("volumes")):
        if isinstance(volume, dict):
            start.mounts.append((_text(volume.get("source")), _text(volume.get("target"))))
        else:
            _volume(start, _text(volume))
    start.words = [*_words(service.get("entrypoint"), known), *_words(service.get("command"), known)]
    if not start.words and not engine_of(start.image, ()):
        return None
    if not engine_of(start.image, start.words) and not any("vllm" in w or "sglang" in w for w in start.words[:4]):
        return None
    start.restart = _text(service.get("restart"))
    start.cwd = _text(service.get("working_dir"))
    grace = re.fullmatch(r"(\d{1,4})s?", _text(service.get("stop_grace_period")))
    start.grace_s = float(grace[1]) if grace else None
    if service.get("env_file"):
        start.findings.append(Finding("warning", "paste.env_file", {"file": "env_file"}, outcome="left_out"))
    _compose_gpus(start, service)
    _gpus_of_env(start)
    return start


def _compose_gpus(start: Start, service: dict[str, Any]) -> None:
    value: Any = service
    for key in ("deploy", "resources", "reservations", "devices"):
        value = value.get(key) if isinstance(value, dict) else None
    for device in _list(value):
        if not isinstance(device, dict):
            continue
        if device.get("device_ids"):
            start.gpus = [_text(one) for one in _list(device["device_ids"])][:64]
        elif isinstance(device.get("count"), int) and 0 < device["count"] <= 64:
            start.gpu_count = device["count"]


def _words(value: Any, known: Mapping[str, str]) -> list[str]:
    """`command:` as a text or a list; `$$` is one sign there."""
    if isinstance(value, list):
        return [interpolated(_text(one).replace("$$", DOLLAR)).filled(known) for one in value[:2_000]]
    script = split(_text(value).replace("\n", " ").replace("$$", DOLLAR))
    return [word.filled(known) for command in script.commands[:1] for word in command.words]


def _pairs(value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        found = [(str(key), _text(one) if one is not None else f"${key}") for key, one in value.items()]
    else:
        found = [_text(one).partition("=")[::2] for one in _list(value)]
    return [(key[:100], interpolated(text.replace("$$", DOLLAR)).filled({})) for key, text in found[:200]]


def _list(value: Any) -> list[Any]:
    return value[:200] if isinstance(value, list) else []


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)[:65_536] if isinstance(value, str | int | float) else ""
