"""Which agent process this is, so that the panel can tell an agent that was restarted from one that was copied.

A seat is one folder on one machine since its newest start. The folder's lock lets one agent at a time sit there, so
another start of the same seat means that the one before is gone, and the panel lets it take over at once. A copy of
the folder, on this machine or on another one, is another seat, even where a cloned machine kept its machine id: it was
booted for itself.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from panel.fleet.agent.procs import kernel_boot

MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


def machine_id() -> str:
    """This installation's id, or "" where there is none (many containers)."""
    for path in MACHINE_IDS:
        try:
            return path.read_text().strip()[:64]
        except OSError:
            continue
    return ""


def seat(folder: Path) -> str:
    """The seat's name: 32 characters that tell nothing of the machine."""
    lock = folder / "lock"
    inode = lock.stat().st_ino if lock.exists() else 0  # tells a copied volume in a container from its original
    parts = [machine_id(), kernel_boot(), str(folder.resolve()), str(inode)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def instance(folder: Path) -> str:
    """The seat and this start of an agent in it. Take the folder's lock before."""
    return f"{seat(folder)}.{secrets.token_hex(8)}"
