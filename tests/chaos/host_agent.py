"""The agent as it is, but its shims, which it starts with an empty environment, get the clock of the host as well."""

import os
import subprocess
import sys
from typing import Any

from panel.fleet.agent import spawn
from panel.fleet.agent.__main__ import main

CLOCK = {name: os.environ[name] for name in ("LD_PRELOAD", "BERTH_TEST_CLOCK") if name in os.environ}
_popen = subprocess.Popen


def _with_clock(argv: Any, **kwargs: Any) -> Any:
    if str(spawn.SHIM) in argv:
        kwargs["env"] = {**kwargs["env"], **CLOCK}
    return _popen(argv, **kwargs)


if __name__ == "__main__":
    spawn.subprocess.Popen = _with_clock  # type: ignore[attr-defined, assignment, misc] # for this process alone
    raise SystemExit(main(sys.argv[1:]))
