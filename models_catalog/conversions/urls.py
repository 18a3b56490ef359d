"""Addresses of the conversions' pages, below /models/conversions/."""

from django.urls import path

from models_catalog.conversions import views

urlpatterns = [
    path("<uuid:conversion_id>/", views.conversion, name="conversion"),
    path("<uuid:conversion_id>/live", views.conversion_live, name="conversion-live"),
    path("<uuid:conversion_id>/log", views.log, name="conversion-log"),
    path("<uuid:conversion_id>/log.txt", views.log_file, name="conversion-log-file"),
    path("<uuid:conversion_id>/cancel", views.cancel, name="conversion-cancel"),
    path("<uuid:conversion_id>/again", views.again, name="conversion-again"),
]
