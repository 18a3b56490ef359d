from collections.abc import Callable, Mapping
from typing import Any

from django.apps import AppConfig


class ModelsCatalogConfig(AppConfig):
    name = "models_catalog"
    label = "models_catalog"

    def ready(self) -> None:
        from models_catalog import (
            events,  # noqa: F401  (connects the receivers)
            repairs,
            wording,
        )
        from models_catalog.conversions import events as conversions  # noqa: F401
        from models_catalog.conversions import wording as of_conversions
        from models_catalog.downloads import events as downloads  # noqa: F401
        from models_catalog.downloads import origins, services
        from models_catalog.downloads import wording as of_downloads
        from panel.audit import codes

        repairs.register(origins.known, services.repair, origins.running)
        codes.register("download.", say=_text(of_downloads.failure))
        codes.register("conversion.", say=_text(of_conversions.failure))
        codes.register("model.", say=_text(wording.of_deletion))


def _text(words: Callable[[Mapping[str, Any]], Any]) -> Callable[[str, str, Mapping[str, Any]], str]:
    """As the record of acts asks for it."""
    return lambda _fact, code, params: str(words({"code": code, "params": params}).text)
