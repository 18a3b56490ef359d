"""The comment that an exported command carries: what Berth chose in it, and what no flag can say. Pure.

A shell takes it for a comment. Where it stands, reading the command again gives the settings that it was made of; the
settings themselves are read from the command, so that what a person has changed in it counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from deployments.pasting.start import listed
from deployments.spec import DeploymentSpec

if TYPE_CHECKING:
    from deployments.pasting.draft import Draft

SIGN = "berth: "
LONGEST = 8_000
# What the command itself says, or this comment under another name; all other fields of a spec go as they are.
SAID = frozenset(
    listed(
        """
        engine artifact_id host_id runtime_id device gpu_uuids gpu_count task options extra_args env env_secrets
        kv_cache_gib restart grace_s start_deadline_s
        """
    )
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
_SECRET = re.compile(r"[a-z0-9]([a-z0-9.-]{0,62}[a-z0-9])?")


def line(values: Mapping[str, Any]) -> str:
    """The comment, without its sign of a comment."""
    return SIGN + json.dumps(values, ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def read(comments: Iterable[str]) -> dict[str, Any]:
    """What the first such comment says; empty where there is none, or where it cannot be read."""
    for text in comments:
        if text.startswith(SIGN) and len(text) < LONGEST:
            try:
                value = json.loads(text.removeprefix(SIGN))
            except (ValueError, RecursionError):
                return {}
            return value if isinstance(value, dict) and value.get("v") == 1 else {}
    return {}


def apply(draft: Draft, marker: Mapping[str, Any]) -> None:
    """Take what Berth had chosen out of the draft again, and put in what the command could not say."""
    if not marker:
        return
    added = marker.get("added")
    for name, value in added.items() if isinstance(added, dict) else ():
        for values in (draft.options, draft.more):
            if name in values and values[name] == value:
                del values[name]
    names = marker.get("env")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and _NAME.fullmatch(name):
            draft.env.pop(name, None)
            if name == "VLLM_CPU_KVCACHE_SPACE":
                draft.kv_cache_gib = None
    if marker.get("device") in ("auto", "gpu", "cpu"):
        draft.device = marker["device"]
    if marker.get("task") in ("generate", "embed", "score"):
        draft.task = marker["task"]
    if marker.get("gpus") == "any":
        draft.gpus = []
    _rest(draft, marker)
    _kept(draft, marker)
    own = marker.get("own")
    mine = [flag for flag in own if isinstance(flag, str)] if isinstance(own, list) else []
    mine += ["--" + str(name).replace("_", "-") for name in added] if isinstance(added, dict) else []
    told = ("paste.own", "paste.taken", "paste.secret", "paste.env_file", "paste.model_variable", "paste.usual")
    draft.findings = [
        finding
        for finding in draft.findings
        if finding.code not in told
        and not (
            finding.code in ("paste.secret_hub", "paste.secret_variable")
            and finding.params.get("name") in draft.env_secrets
        )
        and not (finding.params.get("flag") in mine and finding.code.startswith(("option.", "paste.remote_code")))
    ]
    draft.tell("note", "paste.exported", "taken")


def _kept(draft: Draft, marker: Mapping[str, Any]) -> None:
    """Variables with stored secrets, by their names. They are told: a text of somebody else's can name yours."""
    pairs = marker.get("kept")
    for pair in pairs[:20] if isinstance(pairs, list) else ():
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair)):
            continue
        variable, name = pair
        if _NAME.fullmatch(variable) and _SECRET.fullmatch(name):
            draft.env_secrets[variable] = name
            draft.tell("note", "paste.secret_named", "taken", "env_secrets", variable=variable, name=name)


def _rest(draft: Draft, marker: Mapping[str, Any]) -> None:
    restart = marker.get("restart")
    if isinstance(restart, dict):
        policy, most = restart.get("policy"), restart.get("max_attempts")
        draft.restart = {"policy": policy} if policy in ("never", "on_failure") else {}
        if isinstance(most, int) and not isinstance(most, bool) and 1 <= most <= 5:
            draft.restart["max_attempts"] = most
    for name, low, high in (("grace_s", 0, 600), ("start_deadline_s", 5, 86_400)):
        value = marker.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            setattr(draft, name, float(value))
    more = marker.get("more")
    for name, value in more.items() if isinstance(more, dict) else ():
        if name in DeploymentSpec.model_fields and name not in SAID and isinstance(value, str | int | float):
            draft.rest[name] = value
    for name, place in (("host", "host"), ("runtime", "chosen")):
        text = marker.get(name)
        if isinstance(text, str) and len(text) < 600:
            setattr(draft, place, text)
