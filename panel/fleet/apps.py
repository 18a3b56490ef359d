from collections.abc import Mapping
from typing import Any

from django.apps import AppConfig


class FleetConfig(AppConfig):
    name = "panel.fleet"
    label = "fleet"

    def ready(self) -> None:
        from panel.audit import codes

        codes.register("runtime.", say=_of_engine)


def _of_engine(_fact: str, code: str, params: Mapping[str, Any]) -> str:
    from panel.fleet.runtimes import wording

    return wording.failure({"code": code, "params": params}).text
