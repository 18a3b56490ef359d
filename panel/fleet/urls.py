"""Addresses of the hosts' pages."""

from django.urls import include, path

from panel.fleet import host_views, views
from panel.fleet.joining import views as join_views

urlpatterns = [
    path("runtimes/", include("panel.fleet.runtimes.urls")),
    path("hosts/", views.hosts, name="hosts"),
    path("hosts/live", views.hosts_live, name="hosts-live"),
    path("hosts/<int:pk>/", host_views.host, name="host"),
    path("hosts/<int:pk>/rename", host_views.rename, name="host-rename"),
    path("hosts/<int:pk>/aside", host_views.drain, name="host-drain"),
    path("hosts/<int:pk>/back", host_views.undrain, name="host-undrain"),
    path("hosts/<int:pk>/door-key", host_views.door_key, name="host-door-key"),
    path("hosts/<int:pk>/forget", host_views.forget, name="host-forget"),
    path("hosts/gpus/<int:pk>/aside", host_views.gpu_aside, name="gpu-aside"),
    path("hosts/gpus/<int:pk>/back", host_views.gpu_back, name="gpu-back"),
    path("hosts/<int:pk>/engines/find", views.find_engines, name="host-find-engines"),
    path("hosts/new", join_views.new, name="join-new"),
    path("hosts/codes/<int:pk>/", join_views.code, name="join-code"),
    path("hosts/codes/<int:pk>/revoke", join_views.revoke, name="join-revoke"),
    path("join/berth-join.sh", join_views.script, name="join-script"),
    path("join/agent.zip", join_views.bundle, name="join-bundle"),
    path("join/wheels/<str:tag>", join_views.wheels, name="join-wheels"),
    path("join/wheels/<str:tag>/<str:name>", join_views.wheel, name="join-wheel"),
    path("hosts/<int:pk>/engines/new", views.name_engine, name="host-name-engine"),
]
