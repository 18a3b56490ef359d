"""Addresses of the hosts' pages."""

from django.urls import path

from panel.fleet import views

urlpatterns = [
    path("hosts/", views.hosts, name="hosts"),
    path("hosts/live", views.hosts_live, name="hosts-live"),
    path("hosts/<int:pk>/engines/find", views.find_engines, name="host-find-engines"),
    path("hosts/<int:pk>/engines/new", views.name_engine, name="host-name-engine"),
]
