"""Addresses of the catalog's pages."""

from django.urls import include, path

from models_catalog import views

urlpatterns = [
    path("models/downloads/", include("models_catalog.downloads.urls")),
    path("models/", views.index, name="models"),
    path("models/live", views.catalog_live, name="models-live"),
    path("models/scan", views.scan, name="models-scan"),
    path("models/folders", views.add_folder, name="models-add-folder"),
    path("models/folders/<int:pk>/remove", views.remove_folder, name="models-remove-folder"),
    path("models/<int:pk>/", views.model, name="model"),
    path("models/<int:pk>/code", views.remote_code, name="model-code"),
]
