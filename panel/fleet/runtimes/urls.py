"""Addresses of the engines' pages, below /runtimes/."""

from django.urls import path

from panel.fleet.runtimes import views

urlpatterns = [
    path("", views.index, name="runtimes"),
    path("live", views.index_live, name="runtimes-live"),
    path("install", views.new, name="runtime-new"),
    path("install/check", views.check, name="runtime-check"),
    path("installs/<uuid:install_id>/", views.install, name="runtime-install"),
    path("installs/<uuid:install_id>/live", views.install_live, name="runtime-install-live"),
    path("installs/<uuid:install_id>/log", views.install_log, name="runtime-install-log"),
    path("installs/<uuid:install_id>/log.txt", views.install_log_file, name="runtime-install-log-file"),
    path("installs/<uuid:install_id>/cancel", views.cancel, name="runtime-install-cancel"),
    path("installs/<uuid:install_id>/again", views.try_again, name="runtime-install-again"),
    path("<int:pk>/remove", views.remove, name="runtime-remove"),
    path("<int:pk>/plugin", views.add_plugin, name="runtime-plugin"),
    path("hosts/<int:pk>/find", views.find, name="runtime-find"),
    path("hosts/<int:pk>/folders", views.folders, name="runtime-folders"),
    path("hosts/<int:pk>/folders/forget", views.forget_folder, name="runtime-folder-forget"),
]
