"""docs/settings.md and panel/settings.py say the same."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = (ROOT / "panel/settings.py").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/settings.md").read_text(encoding="utf-8").split("## For tests")[0]
READ = dict(re.findall(r'env\.\w+\(\s*"([A-Z_]+)"(?:,\s*([^,()]+?))?\s*[,)]', SETTINGS))
ROWS = dict(re.findall(r"^\| `([A-Z_]+)` \| (.*?) \|", PAGE, flags=re.MULTILINE))


def test_every_setting_has_a_row_and_every_row_a_setting() -> None:
    assert len(READ) > 15
    assert sorted(ROWS) == sorted(READ)


def test_defaults_are_the_ones_of_the_code() -> None:
    words = {"True": "1", "False": "0"}
    for name, default in READ.items():
        if re.fullmatch(r'"[^"]+"|[\d.]+|True|False', default):
            plain = words.get(default, default.strip('"')).removesuffix(".0")
            assert ROWS[name] == f"`{plain}`", name


def test_settings_come_from_one_place() -> None:
    """Only core/env.py reads the environment; the agent has a file of its own, tests and tools have their own names."""
    own = ("panel/core/env.py", "panel/fleet/agent/", "panel/lock.py", "panel/fleet/door")
    reads = ("os.environ[", "os.environ.get", "os.getenv")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in ("panel", "deployments", "models_catalog")
        for path in (ROOT / room).rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith(own)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Subscript | ast.Call) and ast.unparse(node).startswith(reads)
    ]
    assert found == []
