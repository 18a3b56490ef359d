"""The one error of the house: a stable code, a plain sentence, a hint, an HTTP status.

API, page and log show the same code. `message` and `hint` may be lazy translations; `params` fill
`%(name)s` places in both, so that a code can be counted while its sentence still names the case.
"""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _


class PanelError(Exception):
    """A refusal or failure that a person reads. Subclass it with class attributes, or give all four."""

    code: str = "error"
    message: Any = _("Something went wrong.")
    hint: Any = ""
    status: int = 400

    def __init__(
        self,
        code: str | None = None,
        message: Any = None,
        hint: Any = None,
        *,
        status: int | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.code = code or self.code
        self.message = message if message is not None else self.message
        self.hint = hint if hint is not None else self.hint
        self.status = status or self.status
        self.params = dict(params or {})
        super().__init__(self.code)

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"

    @property
    def text(self) -> str:
        """The sentence in the active language."""
        return str(self.message) % self.params if self.params else str(self.message)

    @property
    def hint_text(self) -> str:
        """The next step in the active language; may be empty."""
        return str(self.hint) % self.params if self.params else str(self.hint)

    def as_dict(self) -> dict[str, str]:
        """The JSON error shape of every API answer."""
        return {"code": self.code, "message": self.text, "hint": self.hint_text}


class NotFound(PanelError):
    code = "not_found"
    message = _("There is nothing here, or it is not yours to see.")
    status = 404


class Denied(PanelError):
    code = "denied"
    message = _("Your role does not allow this.")
    hint = _("Ask an admin of this panel for the right.")
    status = 403


class Conflict(PanelError):
    code = "conflict"
    message = _("Someone changed this a moment ago.")
    hint = _("Look at the page again and repeat the step if it is still wanted.")
    status = 409


class Invalid(PanelError):
    """A form or body that says something impossible. `fields` maps a field name to its sentence."""

    code = "invalid"
    message = _("Some values are not possible.")
    status = 422

    def __init__(self, fields: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fields = {k: str(v) for k, v in (fields or {}).items()}

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "fields": self.fields}
