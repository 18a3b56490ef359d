"""Names of flags and variables that hold secrets, and the variable that an engine reads each from. Pure."""

from __future__ import annotations

import re

from deployments.engines import denied
from panel.core.mask import is_secret_key

SECRETS = frozenset(["api_key", "hf_token"])
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
# What an engine reads a token for Hugging Face from, and its flag.
HF_TOKEN = re.compile(
    r"HF_TOKEN|HUGGING_?FACE_?(HUB_?)?(API_?)?(ACCESS_?)?(TOKEN|KEY)|(--)?hf[-_]token|-hft", re.IGNORECASE
)
HUB_SECRET = re.compile(r"(HF|HUGGING_?FACE|HUB|MODELSCOPE).*TOKEN|HUGGINGFACE.*KEY", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether what stands under this name of a flag or variable is a secret."""
    return name in SECRETS or denied.ENV_SECRET.fullmatch(name) is not None or is_secret_key(name)


def secret_variable(name: str) -> str:
    """The variable in which an engine can be given what stands under this name; "" where there is none."""
    if HF_TOKEN.fullmatch(name):
        return "HF_TOKEN"
    possible = _VARIABLE.fullmatch(name) is not None and not denied.check_env_secrets({name: ""}, {})
    return name if possible else ""


def of_a_hub(name: str) -> bool:
    """Whether it is for downloading models."""
    return HUB_SECRET.search(name) is not None or HF_TOKEN.fullmatch(name) is not None
