"""The door has no need of the panel: it will run beside an agent too."""

import os
import subprocess
import sys
from pathlib import Path


def test_the_door_lives_without_django(tmp_path: Path) -> None:
    blocker = (
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('django', 'celery', 'psycopg', 'redis'):\n"
        "            raise ImportError(f'{name} is not here')\n"
        "sys.meta_path.insert(0, No())\n"
        "import panel.fleet.door\n"
        "print(sorted(m for m in sys.modules if m.startswith(('django', 'deployments', 'panel.core'))))\n"
    )
    root = Path(__file__).parents[2]
    env = {"PYTHONPATH": str(root), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", blocker], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
