"""On PYTHONPATH this makes a process see only what `make up` installs: other modules are absent for it."""

import os
import sys
from importlib.abc import MetaPathFinder


class Absent(MetaPathFinder):
    names = frozenset(os.environ.get("BERTH_TEST_ABSENT", "").split(","))

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


sys.meta_path.insert(0, Absent())
