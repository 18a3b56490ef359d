"""Flags, values and variables that people may not set, and why. Pure.

The agent checks the same again on the host (panel/fleet/agent/guard.py) and has the last word; here the refusal comes
early and beside its field. A test holds the two together.

Reasons: house (Berth sets it itself), code (it would load code, or take serialised objects from whoever asks),
network (it opens or calls another address), secret (argv is readable by every user of the host), file (it reads or
writes files outside the model folders).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from deployments.engines.reason import Reason
from panel.fleet.agent import forbidden

_BY_REASON = {
    "house": """
        host port uds model model_tag served_model_name config headless root_path device_ids
        ssl_keyfile ssl_certfile ssl_ca_certs enable_ssl_refresh ssl_cert_reqs ssl_ciphers
        data_parallel_external_lb data_parallel_hybrid_lb data_parallel_multi_port_external_lb data_parallel_rank
        data_parallel_start_rank data_parallel_size_local tokens_only enable_elastic_ep
        enable_scale_out trust_remote_code api_server_count show_hidden_metrics_for_version
    """,
    "code": """
        middleware tool_parser_plugin reasoning_parser_plugin io_processor_plugin worker_cls worker_extension_cls
        scheduler_cls logits_processors model_class_overrides kv_transfer_config ec_transfer_config ec_manager_config
        kv_events_config weight_transfer_config additional_config model_loader_extra_config aux_output_config
        log_config_file logging_config custom_pipeline trust_request_chat_template enable_trace_replay
        hf_config_path code_revision trust_request_mm_kwargs enable_prompt_embeds enable_mm_embeds
    """,
    "network": """
        grpc grpc_port data_parallel_supervisor_port data_parallel_address data_parallel_rpc_port master_addr
        master_port nnodes node_rank tool_server otlp_traces_endpoint allowed_media_domains rpc
        ray_workers_use_nsight
    """,
    "secret": "api_key hf_token",
    "file": """
        allowed_local_media_path download_dir profiler_config mm_encoder_fp8_scale_save_path
        log_file slot_save_path media_path
    """,
}
FLAGS: dict[str, str] = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}

# A plain word chooses something built in; a dotted path or a file would load code.
WORDS_ONLY = frozenset(name.replace("-", "_") for name in forbidden.CODE_VALUES)
# ray would start a cluster of its own, with open ports
BACKENDS = {name.replace("-", "_"): values for name, values in forbidden.ONLY_VALUES.items()}

ENV_HOUSE = re.compile(
    r"VLLM_API_KEY|VLLM_TARGET_DEVICE|VLLM_CPU_KVCACHE_SPACE|VLLM_NO_USAGE_STATS|VLLM_DO_NOT_TRACK|DO_NOT_TRACK|"
    r"CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|SPT_NOENV|BERTH_.*"
)
# A revision is kept and shown for ever: a secret has no place in it, and is named there (`env_secrets`).
ENV_SECRET = re.compile(r".*(_TOKEN$|_TOKEN_|SECRET|PASSWORD|_KEY$).*")


def check_env(env: dict[str, str]) -> list[Reason]:
    """Why variables of a spec cannot be set."""
    reasons = []
    for name, value in env.items():
        if ENV_HOUSE.fullmatch(name):
            reasons.append(Reason("env.denied_house", {"name": name}, f"env.{name}"))
        elif not _may_be_set(name):
            reasons.append(Reason("env.denied", {"name": name[:100]}, f"env.{name[:100]}"))
        elif "\x00" in value or len(value) > 10_000 or _leads_away(value):
            reasons.append(Reason("env.bad_value", {"name": name}, f"env.{name}"))
    return reasons


def check_env_secrets(secrets: Mapping[str, str], env: Mapping[str, str]) -> list[Reason]:
    """Why variables cannot be given a stored secret.

    Every host lets HF_TOKEN pass, and what tunes an engine; another one that looks like a secret's variable is up to
    the host's owner (`allow_env`), which only the host knows.
    """
    reasons = []
    for name in secrets:
        place = f"env_secrets.{name[:100]}"
        known = name == "HF_TOKEN" or forbidden.SETTINGS.fullmatch(name) or ENV_SECRET.fullmatch(name)
        if ENV_HOUSE.fullmatch(name):
            reasons.append(Reason("env.denied_house", {"name": name[:100]}, place))
        elif not known or forbidden.DENIED.fullmatch(name):
            reasons.append(Reason("env.denied_secret", {"name": name[:100]}, place))
        elif name in env:
            reasons.append(Reason("env.twice", {"name": name[:100]}, place))
    return reasons


def _may_be_set(name: str) -> bool:
    known = forbidden.SETTINGS.fullmatch(name) is not None
    return known and not forbidden.DENIED.fullmatch(name) and not ENV_SECRET.fullmatch(name)


def _leads_away(value: str) -> bool:
    """Whether a value holds a path or an address: none of the variables that may be set needs one."""
    return value not in forbidden.STREAMS and re.search(r"(^|[,;:=\s])(/|~|\.\.?/|file:)|://", value) is not None


def check_content(name: str, flag: str, value: Any, roots: tuple[str, ...]) -> Reason | None:
    """Why a value of an allowed flag is denied: it names code, or a path outside the model folders."""
    if name in WORDS_ONLY and isinstance(value, str) and re.search(r"[./:\\]", value):
        return Reason("option.denied_code", {"flag": flag, "value": value[:100]}, name)
    choices = BACKENDS.get(name)
    if choices and value not in choices:
        return Reason("option.not_a_choice", {"flag": flag, "value": str(value)[:100], "choices": list(choices)}, name)
    if name == "chat_template" and isinstance(value, str) and value.lstrip().startswith(("{%", "{{", "{#")):
        return None  # the template itself
    for key, item in _leaves(name, value):
        if item is not None and key and _is_code(key, item):
            return Reason("option.denied_code", {"flag": flag, "value": key[:100]}, name)
        if isinstance(item, str) and item in forbidden.CODE_WORDS:
            return Reason("option.denied_code", {"flag": flag, "value": item}, name)
        if isinstance(item, str) and (path := outside(item, roots)):
            return Reason("option.path_outside", {"flag": flag, "path": path[:300]}, name)
    return None


def _is_code(key: str, value: Any) -> bool:
    dotted = key == "backend" and isinstance(value, str) and "." in value
    return dotted or (bool(value) and any(word in key.lower() for word in forbidden.CODE_KEYS))


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(nearest key, value) of everything inside, with the keys that hold containers as well."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return  # refused elsewhere as bad JSON
    if isinstance(value, dict):
        for inner_key, inner in value.items():
            yield str(inner_key), inner if not isinstance(inner, dict | list) else bool(inner)
            yield from _leaves(str(inner_key), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves("", inner)
    else:
        yield "", value


def outside(text: str, roots: tuple[str, ...]) -> str:
    """The path in a value that lies below none of the roots, "" when there is none. Values may be `name=path`."""
    for part in {text, text.rpartition("=")[2], *text.split(",")}:
        if not (part.startswith(("/", "~", "file:", "./", "../")) or "/../" in part or part.endswith("/..")):
            continue
        clean = posixpath.normpath(part.removeprefix("file://"))
        if not any(clean == root or clean.startswith(root.rstrip("/") + "/") for root in roots if root):
            return part
    return ""
