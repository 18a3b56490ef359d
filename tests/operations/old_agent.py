"""The agent of an earlier release as a file: `python -m tests.operations.old_agent COMMIT FILE`, from git's history.

It holds what that release's panel gave to a joining host (its agent_bundle.py says what), so a test can run a truly
older agent on the wire of today. Kept beside the release's panel in tests/data/releases; the same commit gives the same
bytes.
"""

import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LISTING = "panel/fleet/joining/agent_bundle.py"
NAMES = ("FILES", "FOLDERS", "MODULES", "LISTS")
EPOCH = (1980, 1, 1, 0, 0, 0)


def git(*args: str) -> bytes:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, check=True).stdout


def names(commit: str) -> list[str]:
    """The files of that release's bundle."""
    tree = ast.parse(git("show", f"{commit}:{LISTING}"))
    said = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in NAMES
    }
    inside = git("ls-tree", "-r", "--name-only", commit, *said["FOLDERS"]).decode().split()
    return sorted(
        [*said["FILES"], *said["MODULES"], *said["LISTS"], *(path for path in inside if path.endswith(".py"))]
    )


def write(commit: str, target: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        for name in names(commit):
            made.writestr(zipfile.ZipInfo(name, EPOCH), git("show", f"{commit}:{name}"), zipfile.ZIP_DEFLATED, 9)
    target.write_bytes(packed.getvalue())


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
