"""What all messages between the panel and the agents are made of; see wire.py."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# A report is bounded in each of its parts, far beyond what a machine has: it is stored, read back and shown.
MAX_LIST = 2000  # disks, folders, flags of a CPU, words of a command, processes that did not end
MAX_PARAMS = 64 << 10  # characters of a refusal's parameters
MAX_NUMBER = 1 << 62  # what a database's columns hold; nothing that a machine counts is larger
EARLIEST, LATEST = -1e10, 1e11  # Unix seconds that a calendar knows (years 1653 to 5138), however wrong a clock is


def _bounded(params: dict[str, Any]) -> dict[str, Any]:
    if len(params) > 100 or len(repr(params)) > MAX_PARAMS:
        raise ValueError("too_large")
    return _tamed(params)  # type: ignore[no-any-return]


def _tamed(value: Any) -> Any:
    """The same with every number near enough to be shown: a file may truly say of itself that it has 10^400 layers."""
    if isinstance(value, int | float):
        if value != value:  # NaN
            return 0
        return max(-MAX_NUMBER, min(MAX_NUMBER, value))
    if isinstance(value, dict):
        return {name: _tamed(item) for name, item in value.items()}
    return [_tamed(item) for item in value] if isinstance(value, list) else value


def is_absurd(value: Any, most: int = MAX_NUMBER) -> bool:
    """Whether it is, or holds at any depth, a number that nothing can have measured: too large, NaN or infinite."""
    if isinstance(value, int | float):
        return not -most <= value <= most  # NaN is neither
    if isinstance(value, dict):
        return any(is_absurd(item, most) for item in value.values())
    return isinstance(value, list | tuple) and any(is_absurd(item, most) for item in value)


Time = Annotated[float, Field(ge=EARLIEST, le=LATEST)]  # Unix seconds
Text = Annotated[str, Field(max_length=4000)]
Texts = Annotated[list[Text], Field(max_length=MAX_LIST)]
Params = Annotated[dict[str, Any], AfterValidator(_bounded)]
# What a machine can truly have very many of is cut; anything else that is too long is a lie, and refused.
Cut = BeforeValidator(lambda value: value[:MAX_LIST] if isinstance(value, list) else value)


class Message(BaseModel):
    """Base of all messages: unknown fields are ignored, so that an older side can talk to a newer one.

    Every number in a field is bounded, so that whoever reads it need not ask whether it can be shown or summed. What a
    field holds as a free dict (items of a result) is checked by whoever takes it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="after")
    def _numbers(self) -> Message:
        for value in self.__dict__.values():
            numbers = value if isinstance(value, list | tuple) else (value,)
            if any(isinstance(one, int | float) and is_absurd(one) for one in numbers):
                raise ValueError("absurd_number")
        return self
