"""Addresses of the deployments' pages. The list is the home page."""

from django.urls import path
from django.views.decorators.http import require_GET
from django.views.generic import RedirectView

from deployments.views import check, deployment, failures, hosts, live, paste, record, serving

urlpatterns = [
    path("", deployment.index, name="deployments"),
    path("deployments/", require_GET(RedirectView.as_view(pattern_name="deployments"))),
    path("deployments/live", live.all_live, name="deployments-live"),
    path("deployments/new", deployment.new, name="deployment-new"),
    path("deployments/paste", paste.paste, name="deployment-paste"),
    path("deployments/plan", deployment.plan, name="deployment-plan"),
    path("deployments/check", check.check, name="deployment-check"),
    path("deployments/<int:pk>/", deployment.detail, name="deployment"),
    path("deployments/<int:pk>/edit", deployment.edit, name="deployment-edit"),
    path("deployments/<int:pk>/start", deployment.start, name="deployment-start"),
    path("deployments/<int:pk>/fixes/<slug:key>", deployment.fix, name="deployment-fix"),
    path("deployments/<int:pk>/start-in-detail", deployment.start_in_detail, name="deployment-start-in-detail"),
    path("deployments/<int:pk>/settings/<int:number>/use", deployment.use_revision, name="deployment-use-revision"),
    path("deployments/<int:pk>/settings/compare", record.compare, name="deployment-compare"),
    path("deployments/<int:pk>/answers", record.answers, name="deployment-answers"),
    path("deployments/<int:pk>/questions", record.questions, name="deployment-questions"),
    path("deployments/<int:pk>/stop", deployment.stop, name="deployment-stop"),
    path("deployments/<int:pk>/restart", deployment.restart, name="deployment-restart"),
    path("deployments/<int:pk>/findings/<str:family>/apply", serving.apply_finding, name="deployment-finding-apply"),
    path("deployments/<int:pk>/delete", deployment.delete, name="deployment-delete"),
    path("deployments/<int:pk>/ask", deployment.ask, name="deployment-ask"),
    path("deployments/<int:pk>/export", paste.export, name="deployment-export"),
    path("deployments/<int:pk>/live", live.one_live, name="deployment-live"),
    path("hosts/<int:pk>/stop-deployments", hosts.empty, name="host-empty"),
    path("estimates/", record.accuracy, name="accuracy"),
    path("failures/", failures.index, name="failures"),
    path("failures/export.<str:form>", failures.export, name="failures-export"),
    path("runs/<uuid:run_id>/", deployment.run, name="run"),
    path("runs/<uuid:run_id>/verdict", failures.verdict, name="run-verdict"),
    path("runs/<uuid:run_id>/log", live.log_part, name="run-log"),
    path("runs/<uuid:run_id>/log.txt", live.log_file, name="run-log-file"),
]
