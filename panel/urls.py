"""Where each address goes. Rooms bring their own urls.py; this file only hangs them up."""

from django.urls import include, path

from panel import api
from panel.core import pages

urlpatterns = [
    path("preferences", pages.preferences, name="preferences"),
    path("", include("deployments.urls")),
    path("", include("models_catalog.urls")),
    path("", include("panel.fleet.urls")),
    path("", include("panel.accounts.urls")),
    path("api/v1/", include(api.patterns())),
    # In the web process panel/fleet/line.py answers these before Django does; here they stand for tests and tables.
    path("agent/v1/", include("panel.fleet.link")),
]

handler400 = pages.bad_request
handler403 = pages.permission_denied
handler404 = pages.not_found
handler500 = pages.server_error
