"""What all messages between the panel and the agents are made of; see wire.py."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

# A report is bounded in each of its parts, far beyond what a machine has: it is stored, read back and shown.
MAX_LIST = 2000  # disks, folders, flags of a CPU, words of a command, processes that did not end
MAX_PARAMS = 64 << 10  # characters of a refusal's parameters


def _bounded(params: dict[str, Any]) -> dict[str, Any]:
    if len(params) > 100 or len(repr(params)) > MAX_PARAMS:
        raise ValueError("too_large")
    return params


Text = Annotated[str, Field(max_length=4000)]
Texts = Annotated[list[Text], Field(max_length=MAX_LIST)]
Params = Annotated[dict[str, Any], AfterValidator(_bounded)]
# What a machine can truly have very many of is cut; anything else that is too long is a lie, and refused.
Cut = BeforeValidator(lambda value: value[:MAX_LIST] if isinstance(value, list) else value)


class Message(BaseModel):
    """Base of all messages: unknown fields are ignored, so that an older side can talk to a newer one."""

    model_config = ConfigDict(extra="ignore", frozen=True)
