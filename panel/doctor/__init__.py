"""`manage.py doctor`: everything that the panel needs, one finding each, with the next step where something is wrong.

`here.py` looks at this machine, `parts.py` at the processes and servers, `hosts.py` at the agents. A check returns its
line, or raises Idle (nothing to say yet), or a PanelError.
"""

from collections.abc import Callable
from dataclasses import dataclass

from django.utils.translation import gettext as _

from panel.core import checks
from panel.core.errors import PanelError

Check = Callable[[], str]


class Idle(Exception):
    """Nothing to say yet: it is not started. The text says what starts it."""


@dataclass(frozen=True)
class Finding:
    """`code` names what is wrong, the same in every language; empty where nothing is."""

    name: str
    verdict: str  # good, bad or idle
    text: str
    hint: str = ""
    code: str = ""


def look(name: str, check: Check) -> Finding:
    """Run one check; what is not a known refusal is shown as what it is, and the next check goes on."""
    try:
        return Finding(name, "good", check())
    except Idle as idle:
        return Finding(name, "idle", str(idle))
    except Exception as exc:
        unknown = (
            f"{type(exc).__name__}: {exc}",
            _("This is a fault of Berth itself; report it with this line."),
        )
        text, hint = checks.explain(exc) or unknown
        return Finding(name, "bad", text, hint, exc.code if isinstance(exc, PanelError) else "unexpected")


def examine() -> list[Finding]:
    """Every check once, in the order in which one thing needs the other."""
    from panel.doctor import here, hosts, parts

    return [look(name, check) for name, check in [*here.CHECKS, *parts.CHECKS, *hosts.CHECKS]]
