from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "panel.audit"
    label = "audit"
