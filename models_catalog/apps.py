from django.apps import AppConfig


class ModelsCatalogConfig(AppConfig):
    name = "models_catalog"
    label = "models_catalog"

    def ready(self) -> None:
        from models_catalog import (
            events,  # noqa: F401  (connects the receivers)
            repairs,
        )
        from models_catalog.conversions import events as conversions  # noqa: F401
        from models_catalog.downloads import events as downloads  # noqa: F401
        from models_catalog.downloads import origins, services

        repairs.register(origins.known, services.repair, origins.running)
