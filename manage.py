#!/usr/bin/env python3
"""Django's command line for Berth: `manage.py up`, `doctor`, `migrate`, …"""

import os
import sys


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "panel.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.stderr.write("Django is not installed in this Python.\n  Run `make up`, or use .venv/bin/python.\n")
        return 1
    from panel.core import tracebacks

    tracebacks.hide_secrets()
    try:
        execute_from_command_line(sys.argv)
    except Exception as exc:
        from panel.core.env import SettingError

        if isinstance(exc, SettingError):  # the settings themselves cannot be read: nothing of Django works
            known = (str(exc), "")
        else:
            from panel.core.checks import explain

            known = explain(exc)
        if known is None or "--traceback" in sys.argv:
            raise
        sys.stderr.write("".join(f"{indent}{line}\n" for indent, line in zip(("", "  "), known, strict=True) if line))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
