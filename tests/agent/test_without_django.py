"""The agent runs on hosts that have httpx, psutil, nvidia-ml-py and pydantic, and nothing else of the panel."""

from __future__ import annotations

import subprocess
import sys

from tests.agent.conftest import ROOT

CODE = """
import importlib, pkgutil, sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in FORBIDDEN:
            raise ImportError(f"{name} is not there")

FORBIDDEN = {"django", "celery", "redis", "psycopg", "ninja", "uvicorn", "asgiref", "kombu", "cryptography"}
sys.meta_path.insert(0, Forbidden())
import panel.fleet.agent as agent
names = sorted(m.name for m in pkgutil.iter_modules(agent.__path__) if m.name != "__main__")
for name in [*names, "__main__"]:
    importlib.import_module(f"panel.fleet.agent.{name}")
import models_catalog.inspect.scan
assert not FORBIDDEN & {name.split(".")[0] for name in sys.modules}
print(len(names))
"""


def test_every_module_imports_without_django() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 18


def test_the_shim_imports_little() -> None:
    code = "import sys; sys.argv = ['shim']; sys.path.insert(0, sys.path[0]); import shim; print(*sys.modules)"
    folder = ROOT / "panel/fleet/agent"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-E", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"json", "re", "logging", "subprocess", "pathlib", "typing", "threading"} & set(done.stdout.split())
