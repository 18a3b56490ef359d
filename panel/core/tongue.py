"""The language of whoever sits at a terminal, as the shell's own settings tell it."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager

from django.utils import translation

CHINESE = "zh-hans"
# In the order in which the C library asks them: the first that is set decides.
VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")


def of_terminal(env: Mapping[str, str] | None = None) -> str | None:
    """The language in which a command speaks there; None for the panel's own."""
    known = os.environ if env is None else env
    said = next((value for name in VARIABLES if (value := known.get(name))), "")
    return CHINESE if said.lower().startswith("zh") else None


def spoken() -> AbstractContextManager[None]:
    """Within it, texts are in the language of the terminal."""
    return translation.override(of_terminal() or translation.get_language())
