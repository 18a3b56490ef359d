"""Addresses of the downloads' pages, below /models/downloads/."""

from django.urls import path

from models_catalog.downloads import views

urlpatterns = [
    path("", views.index, name="downloads"),
    path("live", views.index_live, name="downloads-live"),
    path("find", views.find, name="download-find"),
    path("new", views.new, name="download-new"),
    path("quick", views.quick, name="download-quick"),
    path("access", views.tokens, name="download-access"),
    path("access/<int:pk>/remove", views.remove_token, name="download-access-remove"),
    path("<uuid:download_id>/", views.download, name="download"),
    path("<uuid:download_id>/live", views.download_live, name="download-live"),
    path("<uuid:download_id>/log", views.log, name="download-log"),
    path("<uuid:download_id>/log.txt", views.log_file, name="download-log-file"),
    path("<uuid:download_id>/pause", views.pause, name="download-pause"),
    path("<uuid:download_id>/resume", views.resume, name="download-resume"),
    path("<uuid:download_id>/cancel", views.cancel, name="download-cancel"),
]
