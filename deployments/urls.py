"""Addresses of the deployments' pages. The list is the home page."""

from django.urls import path
from django.views.decorators.http import require_GET
from django.views.generic import RedirectView

from deployments import (
    views,
    views_check,
    views_failures,
    views_hosts,
    views_live,
    views_paste,
    views_record,
    views_serving,
)

urlpatterns = [
    path("", views.index, name="deployments"),
    path("deployments/", require_GET(RedirectView.as_view(pattern_name="deployments"))),
    path("deployments/live", views_live.all_live, name="deployments-live"),
    path("deployments/new", views.new, name="deployment-new"),
    path("deployments/paste", views_paste.paste, name="deployment-paste"),
    path("deployments/plan", views.plan, name="deployment-plan"),
    path("deployments/check", views_check.check, name="deployment-check"),
    path("deployments/<int:pk>/", views.detail, name="deployment"),
    path("deployments/<int:pk>/edit", views.edit, name="deployment-edit"),
    path("deployments/<int:pk>/start", views.start, name="deployment-start"),
    path("deployments/<int:pk>/fixes/<slug:key>", views.fix, name="deployment-fix"),
    path("deployments/<int:pk>/start-in-detail", views.start_in_detail, name="deployment-start-in-detail"),
    path("deployments/<int:pk>/settings/<int:number>/use", views.use_revision, name="deployment-use-revision"),
    path("deployments/<int:pk>/settings/compare", views_record.compare, name="deployment-compare"),
    path("deployments/<int:pk>/answers", views_record.answers, name="deployment-answers"),
    path("deployments/<int:pk>/questions", views_record.questions, name="deployment-questions"),
    path("deployments/<int:pk>/stop", views.stop, name="deployment-stop"),
    path("deployments/<int:pk>/restart", views.restart, name="deployment-restart"),
    path(
        "deployments/<int:pk>/findings/<str:family>/apply", views_serving.apply_finding, name="deployment-finding-apply"
    ),
    path("deployments/<int:pk>/delete", views.delete, name="deployment-delete"),
    path("deployments/<int:pk>/ask", views.ask, name="deployment-ask"),
    path("deployments/<int:pk>/export", views_paste.export, name="deployment-export"),
    path("deployments/<int:pk>/live", views_live.one_live, name="deployment-live"),
    path("hosts/<int:pk>/stop-deployments", views_hosts.empty, name="host-empty"),
    path("estimates/", views_record.accuracy, name="accuracy"),
    path("failures/", views_failures.index, name="failures"),
    path("failures/export.<str:form>", views_failures.export, name="failures-export"),
    path("runs/<uuid:run_id>/", views.run, name="run"),
    path("runs/<uuid:run_id>/verdict", views_failures.verdict, name="run-verdict"),
    path("runs/<uuid:run_id>/log", views_live.log_part, name="run-log"),
    path("runs/<uuid:run_id>/log.txt", views_live.log_file, name="run-log-file"),
]
