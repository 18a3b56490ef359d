"""What goes wrong with a download, as a code with parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from panel.fleet.wire import Refusal


class Trouble(Exception):
    """What went wrong, as a code with parameters. `fatal`: trying again is no use. `wait_s`: the server asks for it."""

    def __init__(
        self,
        code: str,
        params: Mapping[str, Any] | None = None,
        *,
        fatal: bool = False,
        wait_s: float = 0.0,
        **more: Any,
    ) -> None:
        super().__init__(code)
        self.code, self.fatal, self.wait_s, self.params = code, fatal, wait_s, {**(params or {}), **more}

    @property
    def refusal(self) -> Refusal:
        return Refusal(code=f"download.{self.code}", params=self.params)
