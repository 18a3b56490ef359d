"""Small files that this user alone can read: keys, tokens, settings, notes of the journal."""

import os
from pathlib import Path


def write(path: Path, data: str | bytes, *, durable: bool = True) -> None:
    """Replace a file as a whole, never half; `durable` also survives a power cut. One writer at a time: the draft's
    name is fixed, so that what a crash left is used up by the next write.
    """
    draft = path.with_name(path.name + ".new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    draft.rename(path)
