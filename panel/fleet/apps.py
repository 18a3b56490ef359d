from django.apps import AppConfig


class FleetConfig(AppConfig):
    name = "panel.fleet"
    label = "fleet"
