"""The project's own app: loads Celery, so that tasks bind to the configured app in every process."""

from django.apps import AppConfig


class PanelConfig(AppConfig):
    name = "panel"
    label = "panel"

    def ready(self) -> None:
        from panel import celery  # noqa: F401  (import is the effect)
