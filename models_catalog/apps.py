from django.apps import AppConfig


class ModelsCatalogConfig(AppConfig):
    name = "models_catalog"
    label = "models_catalog"

    def ready(self) -> None:
        from models_catalog import events  # noqa: F401  (connects the receivers)
        from models_catalog.downloads import events as downloads  # noqa: F401
