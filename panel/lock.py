"""The lock file: one `requirements.lock` with hashes for the groups agent, panel, embedded and dev of pyproject.toml.

    python -m panel.lock select agent embedded > wanted.txt   # then: pip install --require-hashes -r wanted.txt
    python -m panel.lock write                                # resolve anew (needs uv; installs it aside when absent)

Each entry follows a comment line that names its groups. Selecting needs the standard library only and Python 3.10,
since it runs before anything is installed. pip also takes the whole file: that is every group.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
# Group to the oldest Python it must install on.
GROUPS = {"agent": "3.10", "panel": "3.11", "embedded": "3.11", "dev": "3.11"}
HEAD = "# Made by `python -m panel.lock write` from pyproject.toml; not by hand. Groups stand above each entry.\n"


@dataclass(frozen=True)
class Entry:
    """One pinned distribution. `text` is what pip reads: the first line with its marker, then the hashes."""

    name: str
    text: str
    groups: frozenset[str]

    @property
    def pin(self) -> str:
        """`name==version ; marker`, without hashes."""
        return self.text.splitlines()[0].rstrip(" \\")


def read(text: str) -> list[Entry]:
    """The entries of a lock file. Raises ValueError when an entry has no group or no hash."""
    entries = []
    for block in re.split(r"^# groups: ", text, flags=re.MULTILINE)[1:]:
        groups, _, body = block.partition("\n")
        entry = Entry(re.split(r"[=\[]", body, maxsplit=1)[0].strip(), body.strip(), frozenset(groups.split()))
        if not entry.groups or "--hash=" not in entry.text:
            raise ValueError(f"requirements.lock: no group or no hash at {entry.pin!r}")
        entries.append(entry)
    return entries


def select(entries: Iterable[Entry], groups: Iterable[str]) -> str:
    """The entries of these groups, as a requirements file."""
    wanted = set(groups)
    if unknown := wanted - set(GROUPS):
        raise ValueError(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    return "".join(f"{entry.text}\n" for entry in entries if entry.groups & wanted)


# --- writing ----------------------------------------------------------------------------------------------------------
def _uv(folder: Path) -> str:
    """uv from PATH, or installed into a folder that is thrown away."""
    if found := shutil.which("uv"):
        return found
    venv.create(folder / "uv", with_pip=True)
    subprocess.run([folder / "uv/bin/python", "-m", "pip", "install", "--quiet", "uv"], check=True)
    return str(folder / "uv/bin/uv")


def _resolve(uv: str, groups: Iterable[str], python: str, held: Path | None) -> list[Entry]:
    """Resolve groups for every platform from this Python upwards; `held` pins what is decided already."""
    argv = [uv, "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-header", "--no-annotate"]
    argv += ["--python-version", python, *(part for group in groups for part in ("--group", group))]
    argv += ["--constraint", str(held)] if held else []
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    blocks = re.findall(r"^[^\s#-].*(?:\n[ \t]+.*)*", done.stdout, flags=re.MULTILINE)
    return [Entry(re.split(r"[=\[]", block, maxsplit=1)[0].strip(), block, frozenset()) for block in blocks]


def write() -> str:
    """The text of a new lock file: the agent's versions first (they must suit its older Python), then the rest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uv, held = _uv(folder), folder / "held.txt"
        found = {"agent": _resolve(uv, ["agent"], GROUPS["agent"], None)}
        held.write_text("".join(f"{entry.pin}\n" for entry in found["agent"]))
        rest = _resolve(uv, GROUPS, GROUPS["panel"], held)
        held.write_text("".join(f"{entry.pin}\n" for entry in rest))
        for group in list(GROUPS)[1:]:
            found[group] = _resolve(uv, [group], GROUPS[group], held)
    groups_of: dict[tuple[str, str], set[str]] = {}
    for group, entries in found.items():
        for entry in entries:
            groups_of.setdefault((entry.name, entry.text), set()).add(group)
    ordered = sorted(groups_of.items())
    return HEAD + "".join(f"# groups: {' '.join(sorted(groups))}\n{text}\n" for (_, text), groups in ordered)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m panel.lock", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="resolve anew and write requirements.lock")
    chosen = commands.add_parser("select", help="print the entries of some groups")
    chosen.add_argument("groups", nargs="+", metavar="GROUP")
    options = parser.parse_args(argv)
    try:
        if options.command == "select":
            sys.stdout.write(select(read(LOCK.read_text(encoding="utf-8")), options.groups))
        else:
            LOCK.write_text(write(), encoding="utf-8")
    except (OSError, ValueError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
