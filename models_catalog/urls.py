"""Addresses of the catalog's pages."""

from django.urls import include, path

from models_catalog import views, views_model
from models_catalog.conversions import views as conversions

urlpatterns = [
    path("models/downloads/", include("models_catalog.downloads.urls")),
    path("models/conversions/", include("models_catalog.conversions.urls")),
    path("models/", views.index, name="models"),
    path("models/live", views.catalog_live, name="models-live"),
    path("models/scan", views.scan, name="models-scan"),
    path("models/folders", views.add_folder, name="models-add-folder"),
    path("models/folders/<int:pk>/remove", views.remove_folder, name="models-remove-folder"),
    path("models/<int:pk>/", views_model.model, name="model"),
    path("models/<int:pk>/elsewhere", views_model.elsewhere, name="model-elsewhere"),
    path("models/<int:pk>/code", views_model.remote_code, name="model-code"),
    path("models/<int:pk>/about", views_model.about, name="model-about"),
    path("models/<int:pk>/approve", views_model.approve, name="model-approve"),
    path("models/forms/<int:pk>/template", views_model.template, name="model-template"),
    path("models/copies/<int:pk>/delete", views_model.delete, name="model-delete-copy"),
    path("models/copies/<int:pk>/convert", conversions.convert, name="model-convert"),
    path("models/copies/<int:pk>/repair", views_model.repair, name="model-repair-copy"),
]
