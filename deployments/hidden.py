"""Secrets that were shown hidden and come back: each is put in again where it belongs, and nowhere else. Pure."""

from typing import Any

from panel.core.mask import HIDDEN, mask


def restored(sent: Any, kept: Any, name: str = "") -> Any:
    """What was sent, with the secrets of `kept` in place of the hidden ones that came back as they were shown.

    `name` is that of the value. A hidden one that is of nothing kept stays as it is.
    """
    if isinstance(sent, dict):
        known = kept if isinstance(kept, dict) else {}
        return {key: restored(item, known.get(key), key) for key, item in sent.items()}
    if isinstance(sent, list) and isinstance(kept, list):
        return _items(sent, kept, name)
    return kept if kept is not None and HIDDEN in str(sent) and mask(kept, name) == sent else sent


def _items(sent: list[Any], kept: list[Any], name: str) -> list[Any]:
    """A list, such as a command line, in which other items may have come, gone or moved.

    An item that is nothing but hidden belongs to what stands before it: under another flag it would be shown.
    """
    shown = mask(kept, name)
    free = [at for at, item in enumerate(kept) if shown[at] != item]
    found = []
    for place, item in enumerate(sent):
        before = sent[place - 1] if place else None
        fit = [at for at in free if shown[at] == item and (item != HIDDEN or before == (shown[at - 1] if at else None))]
        if fit:
            at = min(fit, key=lambda at: abs(at - place))
            free.remove(at)
            found.append(kept[at])
        else:
            found.append(item)
    return found


def still_hidden(value: Any) -> bool:
    """Whether a hidden secret is left in place of a real one: such a value would be given to the engine as it looks."""
    if isinstance(value, dict):
        return any(map(still_hidden, value.values()))
    if isinstance(value, list | tuple):
        return any(map(still_hidden, value))
    return isinstance(value, str) and HIDDEN in value
