"""Pages of what was foreseen, measured and answered: load, call, render."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from deployments import golden, queries, revisions
from deployments.pages import measured
from panel.accounts.access import can
from panel.accounts.guard import right
from panel.core.errors import Invalid
from panel.core.pages import form_again, go, page

MOST_NUMBER = 2**31 - 1


def number(request: HttpRequest, name: str) -> int | None:
    """A number in the address; None where it is none."""
    text = request.GET.get(name, "")
    return min(int(text), MOST_NUMBER) if text.isascii() and text.isdecimal() and len(text) < 12 else None


@require_GET
@right("deployments.view")
def compare(request: HttpRequest, pk: int) -> HttpResponse:
    """Two settings side by side; without numbers the newest and the one before."""
    row = queries.one(pk)
    old, new = revisions.pair(row, number(request, "a"), number(request, "b"))
    context = measured.compare(row, old, new, may_edit=can(request.actor, "deployments.edit"))
    return page(request, "deployments/compare.html", context)


@require_GET
@right("deployments.view")
def answers(request: HttpRequest, pk: int) -> HttpResponse:
    """The golden questions and what came of them."""
    context = measured.answers(queries.one(pk), may_edit=can(request.actor, "deployments.edit"))
    return page(request, "deployments/answers.html", context)


@require_POST
@right("deployments.edit")
def questions(request: HttpRequest, pk: int) -> HttpResponse:
    """Other golden questions, or the usual ones again."""
    row = queries.one(pk)
    texts = [text[: golden.LONGEST + 1] for text in request.POST.getlist("question")[: golden.MOST + 1]]
    try:
        golden.set_questions(row, None if "usual" in request.POST else texts, actor=request.actor)
    except Invalid as exc:
        context = measured.answers(row, may_edit=True, texts=texts)
        return form_again(request, "deployments/answers.html", {**context, "errors": list(exc.fields.values())})
    messages.success(request, _("These questions are asked from the next start on."))
    return go(request, reverse("deployment-answers", args=[pk]))


@require_GET
@right("runtimes.view")
def accuracy(request: HttpRequest) -> HttpResponse:
    """How close the estimates of all starts were."""
    return page(request, "deployments/accuracy.html", measured.accuracy())
