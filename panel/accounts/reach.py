"""What a token may be limited to. The room above says at start which deployments there are; this room knows none."""

from collections.abc import Callable

Names = Callable[[], dict[int, str]]
_names: Names = dict


def register(names: Names) -> None:
    """`names()` gives the deployments that exist: number → name, in the order of a list for people."""
    global _names
    _names = names


def names() -> dict[int, str]:
    return _names()


def any_there() -> bool:
    """Whether there is anything to limit a token to."""
    return bool(_names())
