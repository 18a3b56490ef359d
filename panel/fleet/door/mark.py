"""Of which make the door's program is."""

from __future__ import annotations

import hashlib
from pathlib import Path


def code_mark() -> str:
    """Changes with the program's code, so that an agent sees whether the door that runs is of its own make."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
