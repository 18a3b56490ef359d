"""What this host refuses to run, whoever orders it: the agent trusts no panel blindly.

Checked here: which executable, which flags, which paths, which environment. The panel checks too, to explain early;
these checks are the ones that hold. A refusal is a code with parameters.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from panel.fleet.agent import forbidden, install_plan
from panel.fleet.wire import PORT_PLACE, Command, InstallTask, Refusal

MAX_ARG = 64 << 10
MAX_ENV = 256
MAX_LINKS = 5000
LOOPBACK = ("127.0.0.1", "localhost", "::1")

# What a host's own settings of the way out are called, and folders that must be allowed ones.
ENV_PROXIES = forbidden.words("HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy")
ENV_ROOTED = ("HF_HOME", "HF_HUB_CACHE")
SIDECAR_FLAGS = ("tokenizer", "hf-config-path")  # may name what the agent made of a GGUF file
ENV_OURS = forbidden.words(
    "HF_TOKEN CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES PYTHONUNBUFFERED TERM"
)
# What an engine inherits of the agent's own environment; everything else stays behind.
INHERITED = forbidden.words(
    """
    PATH HOME USER LOGNAME LANG TZ TMPDIR LD_LIBRARY_PATH CUDA_HOME HF_HOME HF_HUB_CACHE HF_ENDPOINT
    HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy SSL_CERT_FILE SSL_CERT_DIR
    XDG_CACHE_HOME
    """
)


class Refused(Exception):
    """Carries the refusal to report."""

    def __init__(self, code: str, **params: Any) -> None:
        super().__init__(code)
        self.refusal = Refusal(code=code, params=params)


@dataclass(frozen=True)
class Limits:
    """What this host's owner allows. `executables` are resolved paths of registered engines."""

    roots: list[Path]
    executables: frozenset[str]
    remote_code: bool = True
    allow_flags: frozenset[str] = frozenset()
    allow_env: frozenset[str] = frozenset()
    cpu_flags: frozenset[str] = field(default_factory=frozenset)
    sidecars: Path | None = None  # the agent's folder of descriptions, see sidecar.py


def check_engine(task: Command, limits: Limits) -> None:
    """Raises Refused when this host must not run the task."""
    if task.argv[0] not in limits.executables:
        raise Refused("runtime_unknown", executable=task.argv[0][:500])
    if Path(task.argv[0]).name in forbidden.NOT_STARTED:
        raise Refused("engine_not_used_yet")
    if task.needs_avx2 and "avx2" not in limits.cpu_flags:
        raise Refused("cpu_without_avx2")
    check_model(task, limits.roots)
    check_argv(task, limits)
    check_env({**task.env, **task.secret_env}, limits, secret=task.secret_env)
    for uuid in task.gpu_uuids:
        if not re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}", uuid):
            raise Refused("gpu_uuid", uuid=uuid[:100])


def check_install(task: InstallTask, allowed: bool, sources: Sequence[str] | None = None) -> None:
    """Raises Refused when this host's owner forbids installs, or when a field could mean anything else to pip.

    `sources`: the owner's list of package sources that an order may name; None for no such list.
    """
    if not allowed:
        raise Refused("install.forbidden")
    for name in task.secret_env:
        if name not in install_plan.SECRET_NAMES:
            raise Refused("environment_not_allowed", name=name[:100])
    try:
        request = install_plan.check_request(task, task.secret_env)
    except install_plan.Invalid as exc:
        raise Refused("install.order_invalid", field=str(exc)) from exc
    if sources is None:
        return
    folders = [Path(source.removeprefix("file://")) for source in sources if source.startswith(("/", "file:///"))]
    for address in (request.index_url, *request.extra_urls, *request.links, request.proxy, request.wheel_folder):
        local = address.removeprefix("file://")
        known = inside(Path(local), folders) if local[:1] == "/" else install_plan.is_below(address, sources)
        if address and not known:
            raise Refused("install.source_not_allowed", source=install_plan.without_login(address)[:200])


# --- paths ----------------------------------------------------------------------------------------------------------


def inside(path: Path, roots: Iterable[Path]) -> bool:
    """Whether the resolved path lies in (or is) one of the resolved roots. Never true for a root that is missing."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):  # a loop of links, a name too long
        return False
    return any(root.is_dir() and resolved.is_relative_to(root.resolve()) for root in roots)


def check_model(task: Command, roots: list[Path]) -> None:
    path = Path(task.model_path)
    if not path.is_absolute() or "\0" in task.model_path or not inside(path, roots):
        raise Refused("path_not_allowed", path=task.model_path[:500])
    if not path.exists():
        raise Refused("path_missing", path=task.model_path[:500])
    if task.argv[2:3] != [task.model_path]:  # elsewhere it could be another flag's value, and the model another
        raise Refused("model_not_in_command", path=task.model_path[:500])
    check_links(path, roots)


def check_links(folder: Path, roots: list[Path]) -> None:
    """A model folder's links may lead anywhere below the allowed roots (as a Hugging Face cache does), not out."""
    if not folder.is_dir():
        return
    count = 0
    for current, folders, files in os.walk(folder):
        for name in (*folders, *files):
            count += 1
            if count > MAX_LINKS:
                raise Refused("too_many_files", path=str(folder)[:500])
            path = Path(current, name)
            if path.is_symlink() and not inside(path, roots):
                raise Refused("path_not_allowed", path=str(path)[:500])


def looks_like_path(value: str) -> bool:
    return value.startswith(("/", "~", "file:", "./", "../")) or "/../" in value or value.endswith("/..")


def _check_value(flag: str, value: str, limits: Limits) -> None:
    dotted = flag in forbidden.CODE_VALUES and any(sign in value for sign in ".:/")
    other = value not in forbidden.ONLY_VALUES.get(flag, (value,))
    if dotted or other or value in forbidden.CODE_WORDS:
        raise Refused("flag_value_not_allowed", flag=flag, value=value[:200])
    if flag in ("root-path", "disable-access-log-for-endpoints"):  # paths of a URL, not of files
        return
    if flag == "chat-template" and value.startswith(("{%", "{{", "{#")):  # the template itself
        return
    if value.lstrip()[:1] in ("{", "["):
        _check_json(flag, value, limits)
        return
    roots = [*limits.roots, *([limits.sidecars] if limits.sidecars and flag in SIDECAR_FLAGS else [])]
    # name=path, as lora-modules takes it
    for part in {value, value.rpartition("=")[2], *value.split(",")}:
        if looks_like_path(part) and not inside(Path(part.removeprefix("file://")), roots):
            raise Refused("path_not_allowed", path=part[:500])


def _check_json(flag: str, text: str, limits: Limits) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # brackets without end must not end the agent
        raise Refused("flag_value_not_allowed", flag=flag, value=text[:200]) from None
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            for key, inner in item.items():
                named = key == "backend" and isinstance(inner, str) and "." in inner
                if named or (inner and any(word in key.lower() for word in forbidden.CODE_KEYS)):
                    raise Refused("flag_value_not_allowed", flag=flag, value=key[:200])
                todo.append(inner)
        elif isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, str) and item in forbidden.CODE_WORDS:
            raise Refused("flag_value_not_allowed", flag=flag, value=item)
        elif isinstance(item, str) and looks_like_path(item) and not inside(Path(item), limits.roots):
            raise Refused("path_not_allowed", path=item[:500])


# --- the command ----------------------------------------------------------------------------------------------------


def flag_name(arg: str) -> str:
    """The flag's name as its parser will see it: no dashes, no value, no `.key`, underscores as dashes."""
    return re.split(r"[=.+]", arg.lstrip("-"), maxsplit=1)[0].replace("_", "-").lower()


def denied(arg: str, limits: Limits, *, remote_code: bool) -> bool:
    """Whether this flag, or a longer one that it abbreviates for an argparse parser, is refused."""
    keys = arg.partition("=")[0].replace("-", "_").lower()  # --speculative-config.some.key=value, also with -sc
    if "." in keys and (".backend" in keys or any(word in keys for word in forbidden.CODE_KEYS)):
        return True
    if not arg.startswith("--"):
        return forbidden.SHORT.fullmatch(arg) is not None and arg not in limits.allow_flags
    name = flag_name(arg)
    names = set(forbidden.FLAGS) | (set() if remote_code else {forbidden.REMOTE_CODE})
    names -= {flag_name(flag) for flag in limits.allow_flags}
    return name in names or (name not in forbidden.OWN_NAMES and any(full.startswith(name) for full in names))


def check_argv(task: Command, limits: Limits) -> None:
    args = task.argv
    if any("\0" in arg or len(arg) > MAX_ARG for arg in args):
        raise Refused("argument_size")
    remote_code = task.allow_remote_code and limits.remote_code
    if args[1:2] != ["serve"]:  # its other commands read and write files
        raise Refused("command_not_allowed", command=" ".join(args[1:2])[:100])
    _check_listening(args)
    flag = ""
    for arg in args[3:]:
        if arg == "--":  # everything after it would escape these checks
            raise Refused("flag_not_allowed", flag=arg)
        if arg.startswith("-") and not re.fullmatch(r"-[0-9.]+", arg):
            if denied(arg, limits, remote_code=remote_code):
                raise Refused("flag_not_allowed", flag=arg.split("=", 1)[0][:200])
            flag = flag_name(arg)
            _, has_value, value = arg.partition("=")
            if has_value:
                _check_value(flag, value, limits)
        elif arg != PORT_PLACE:
            _check_value(flag, arg, limits)


def _check_listening(args: list[str]) -> None:
    """Loopback only, at the port this agent picks: exactly one --host and one --port, each with its value behind it."""
    hosts, ports = [], []
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        if not arg.startswith("--"):
            continue
        name = flag_name(arg)
        if len(name) > 0 and "host".startswith(name):
            hosts.append((arg, following))
        elif len(name) > 0 and "port".startswith(name):
            ports.append((arg, following))
    if len(hosts) != 1 or hosts[0][0] != "--host" or hosts[0][1] not in LOOPBACK:
        raise Refused("host_not_loopback")
    if ports != [("--port", PORT_PLACE)] or args.count(PORT_PLACE) != 1:
        raise Refused("port_not_ours")


def host_of(argv: list[str]) -> str:
    """The loopback address the engine will listen on."""
    value = argv[argv.index("--host") + 1]
    return "127.0.0.1" if value == "localhost" else value


# --- the environment ------------------------------------------------------------------------------------------------


def check_env(env: Mapping[str, str], limits: Limits, secret: Collection[str] = ()) -> None:
    """`secret` names the variables whose values stand in no refusal."""
    if len(env) > MAX_ENV:
        raise Refused("environment_size")
    for name, value in env.items():
        if name in limits.allow_env:
            continue
        ours = name in (*ENV_OURS, *ENV_PROXIES, *ENV_ROOTED)
        if not ours and (not forbidden.SETTINGS.fullmatch(name) or forbidden.DENIED.fullmatch(name)):
            raise Refused("environment_not_allowed", name=name[:100])
        if "\0" in value or len(value) > MAX_ARG:
            raise Refused("environment_size", name=name)
        try:
            _check_env_value(name, value, limits)
        except Refused:
            if name not in secret:
                raise
            raise Refused("environment_not_allowed", name=name[:100]) from None  # the refusal is shown: no value


def _check_env_value(name: str, value: str, limits: Limits) -> None:
    """A folder or file of a setting must be an allowed one, and an address leads away from here."""
    if name in ENV_ROOTED and not inside(Path(value), limits.roots):
        raise Refused("path_not_allowed", path=value[:500])
    if name in (*ENV_PROXIES, "HF_TOKEN", "VLLM_API_KEY") or value in forbidden.STREAMS:
        return
    for part in {value, *re.split(r"[,;:=\s]", value)}:
        if looks_like_path(part) and not inside(Path(part.removeprefix("file://")), limits.roots):
            raise Refused("path_not_allowed", path=part[:500])
    if "://" in value:
        raise Refused("path_not_allowed", path=value[:500])


def engine_env(task: Command, job_id: str, own: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of the engine: a little of ours, what was ordered, and what marks it as this job's."""
    env = {name: own[name] for name in INHERITED if own.get(name)}
    env.update(task.env)
    env.update(task.secret_env)
    folder = str(Path(task.argv[0]).parent)  # engines call tools of their own installation: ninja, ptxas
    env["PATH"] = f"{folder}:{env.get('PATH') or '/usr/local/bin:/usr/bin:/bin'}"
    env["CUDA_VISIBLE_DEVICES"] = ",".join(task.gpu_uuids)
    env["PYTHONUNBUFFERED"] = "1"
    env["SPT_NOENV"] = "1"  # a process that renames itself must not overwrite its environment: the marker is there
    env["BERTH_JOB"] = job_id
    if any(flag_name(arg) == forbidden.REMOTE_CODE for arg in task.argv if arg.startswith("--")):
        # Code that an admin allowed is the code that lies here, whatever name of a hub an option holds.
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return env
