"""What the panel gives a machine that joins: the script, the agent's code as one file, packages without an index.

The bundle holds exactly this panel's own code of the agent, and is the same bytes wherever and whenever it is made:
names in order, no times, no compression. Its SHA-256 stands in the script, and the script's in the command that a
person pastes, so that nothing of it has to be trusted on its way.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext_lazy as _

from panel import lock
from panel.core.errors import PanelError
from panel.fleet.agent.version import VERSION
from panel.fleet.joining.panel_tls import authority_pem
from panel.fleet.wire import WIRE_VERSION

UNITS = Path(__file__).resolve().parent.parent / "units"
# What the agent and the host's door import; a test runs the agent from the bundle alone.
FILES = ("panel/__init__.py", "panel/fleet/__init__.py", "panel/core/__init__.py", "models_catalog/__init__.py")
FOLDERS = ("panel/fleet/agent", "panel/fleet/door", "models_catalog/inspect", "models_catalog/sources")
MODULES = (
    "panel/fleet/wire.py",
    "panel/fleet/wire_base.py",
    "panel/fleet/wire_engine.py",
    "panel/fleet/wire_models.py",
    "panel/fleet/wire_serving.py",
    "panel/core/mask.py",
    "panel/core/outbound.py",
    "panel/core/tracebacks.py",
    "models_catalog/facts.py",
)
LISTS = ("panel/fleet/agent/engine_cpu.requirements.txt",)  # what an install of the tested engine consists of
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can say
ADDRESS = re.compile(r"https?://[A-Za-z0-9.:/_~\[\]-]{1,300}")
TAG = re.compile(r"cp3\d{1,2}-[a-z0-9_]{1,20}")
WHEEL = re.compile(r"[A-Za-z0-9_.+-]{1,200}\.whl")


@dataclass(frozen=True)
class Bundle:
    data: bytes
    sha256: str


def names() -> Iterator[str]:
    """The files of the bundle, from the checkout's root, in order."""
    root = settings.BASE_DIR
    yield from sorted([*FILES, *MODULES, *LISTS])
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix()


def lock_text() -> str:
    return (settings.BASE_DIR / "requirements.lock").read_text(encoding="utf-8")


def requirements() -> str:
    """The agent's locked packages, with hashes, as pip reads them."""
    return lock.select(lock.read(lock_text()), ["agent"])


@cache
def bundle() -> Bundle:
    """Made when it is first asked for, and kept: a process serves what it itself runs."""
    about = json.dumps({"version": VERSION, "wire": WIRE_VERSION}, sort_keys=True)
    contents = [(name, (settings.BASE_DIR / name).read_bytes()) for name in names()]
    contents += [("berth.json", about.encode()), ("requirements.txt", requirements().encode())]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in contents:
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, data)
    return Bundle(buffer.getvalue(), hashlib.sha256(buffer.getvalue()).hexdigest())


# --- the script -------------------------------------------------------------------------------------------------------


def unit(name: str, **values: str) -> str:
    """A systemd unit with its places filled."""
    return _filled((UNITS / name).read_text(encoding="utf-8"), values)


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def script() -> str:
    """The script that a person reads and runs. The same for every code, so that its SHA-256 can be announced."""
    panel = settings.BERTH_PUBLIC_URL.rstrip("/")
    if not ADDRESS.fullmatch(panel):  # it stands in a shell script and in a unit
        raise PanelError("join.address", _("The address %(url)s cannot stand in a script."), params={"url": panel})
    in_shell = {"PANEL": panel, "DIR": "$DIR", "USER": "${RUN_AS:-root}"}
    values = {
        "SYSTEM_UNIT": unit("berth-agent.service", **in_shell).strip(),
        "USER_UNIT": unit("berth-agent.user.service", **in_shell).strip(),
        "AUTHORITY": authority_pem().strip(),
        "PANEL": panel,
        "VERSION": VERSION,
        "BUNDLE_SHA256": bundle().sha256,
        "PLAIN_HTTP": "yes" if settings.BERTH_JOIN_PLAIN_HTTP else "no",
    }
    return _filled((UNITS / "berth-join.sh").read_text(encoding="utf-8"), values)


def script_sha256() -> str:
    return hashlib.sha256(script().encode()).hexdigest()


# --- packages without an index ---------------------------------------------------------------------------------------


def wheel_folder(tag: str) -> Path:
    """Where packages for one Python and one machine lie, such as cp311-x86_64."""
    return Path(settings.BERTH_DATA) / "wheels" / tag


@lru_cache(maxsize=512)
def _sha256(path: Path, _size: int, _changed_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wheels(tag: str) -> dict[str, str]:
    """File name → SHA-256 of the packages that the panel can give, only such as the lock file names."""
    folder = wheel_folder(tag)
    if not TAG.fullmatch(tag) or not folder.is_dir():
        return {}
    known = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", requirements()))
    found = {}
    for path in sorted(folder.iterdir()):
        if WHEEL.fullmatch(path.name) and path.is_file():
            digest = _sha256(path, path.stat().st_size, path.stat().st_mtime_ns)
            if digest in known:
                found[path.name] = digest
    return found
