"""The benchmarks begin before there is a panel whose settings Django could have."""

import os
import subprocess
import sys

from tests.panel.running import ROOT


def test_they_are_imported_without_settings() -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "BERTH_"))}
    code = "import sys, benchmarks.__main__, benchmarks.flood, benchmarks.fleet, benchmarks.door; print('fine')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "fine", done.stderr
