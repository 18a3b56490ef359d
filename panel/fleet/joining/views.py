"""Pages on which an admin makes a code for a machine, and what that machine fetches without one."""

from django.contrib import messages
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from panel.accounts.guard import right
from panel.core.errors import Invalid, PanelError
from panel.core.pages import form_again, go, is_htmx, page, put_errors
from panel.fleet.joining import agent_bundle, contexts, services
from panel.fleet.joining.forms import JoinForm


@never_cache
@require_http_methods(["GET", "POST"])
@right("hosts.manage")
def new(request: HttpRequest) -> HttpResponse:
    """Make a code and show it once, with the one command; the page then waits for the machine."""
    form = JoinForm(request.POST or None, initial={"host_name": request.GET.get("name", "")[:64]})
    if not form.is_bound:
        return page(request, "fleet/join.html", contexts.page(form))
    if form.is_valid():
        try:
            trust = contexts.trust()
            row, code = services.make_code(
                request.actor, form.cleaned_data["host_name"], again=form.cleaned_data["again"]
            )
            return _made(request, row, code, contexts.command(code, trust), trust.kind)
        except services.TakenName as exc:
            form.taken = exc.host
            put_errors(form, exc)
        except Invalid as exc:
            put_errors(form, exc)
        except PanelError as exc:
            form.add_error(None, f"{exc.text} {exc.hint_text}")
    return form_again(request, "fleet/join.html", contexts.page(form))


def _made(request: HttpRequest, row: services.JoinCode, code: str, command: str, trust: str) -> HttpResponse:
    context = {
        "section": "hosts",
        "row": row,
        "standing": contexts.standing(row),
        "code": code,
        "command": command,
        "trust": trust,
        "sha256": agent_bundle.script_sha256(),
        "reach": contexts.reach(),
    }
    return page(request, "fleet/join_code.html", context)


@never_cache
@require_GET
@right("hosts.manage")
def code(request: HttpRequest, pk: int) -> HttpResponse:
    """What came of a code; the code itself is not shown again."""
    row = services.code(pk)
    standing = contexts.standing(row)
    if is_htmx(request) and request.GET.get("was") == standing.kind:
        return HttpResponse(status=204)  # nothing is taken from under a person's finger
    context = {"section": "hosts", "row": row, "standing": standing}
    return page(request, "fleet/join_code.html", context, parts=["wait"], moving=standing.moving)


@require_POST
@right("hosts.manage")
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    if services.revoke(services.code(pk), actor=request.actor):
        messages.info(request, _("The code was taken back."))
    return go(request, reverse("join-new"))


# --- for machines that join: nothing secret, and compared by hash ----------------------------------------------------


@never_cache
@require_GET
def script(request: HttpRequest) -> HttpResponse:
    """Readable in the browser before it is run anywhere."""
    return HttpResponse(agent_bundle.script(), content_type="text/plain; charset=utf-8")


@require_GET
def bundle(request: HttpRequest) -> HttpResponse:
    return HttpResponse(agent_bundle.bundle().data, content_type="application/zip")


@require_GET
def wheels(request: HttpRequest, tag: str) -> HttpResponse:
    """`SHA-256 name`, one package a line; empty when the panel has none for this Python and machine."""
    lines = [f"{sha256} {name}\n" for name, sha256 in agent_bundle.wheels(tag).items()]
    return HttpResponse("".join(lines), content_type="text/plain; charset=utf-8")


@require_GET
def wheel(request: HttpRequest, tag: str, name: str) -> FileResponse:
    if name not in agent_bundle.wheels(tag):
        raise Http404
    return FileResponse((agent_bundle.wheel_folder(tag) / name).open("rb"), content_type="application/octet-stream")
