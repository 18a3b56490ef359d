"""A record as a sentence in the reader's language. A verb without a sentence is shown as it is, never hidden.

A room adds its verbs here; tests/audit/test_wording.py finds a verb that is recorded and has no sentence.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, pgettext
from django.utils.translation import gettext_lazy as _

from panel.audit import codes
from panel.audit.models import Event, Outcome
from panel.audit.names import NAMES as NAMES
from panel.audit.names import PLACES, VALUES

SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Kind:
    """A choice of the filter "What": its words, and how the verbs of it begin."""

    label: Any
    verbs: tuple[str, ...]


KINDS = {
    "runs": Kind(
        _("Starts and stops"),
        (
            "run.",
            "deployment.started",
            "deployment.stopped",
            "deployment.restarted",
            "deployment.fixed",
            "deployment.mended",
            "deployments.operate",
        ),
    ),
    "settings": Kind(
        _("Settings changed"),
        (
            "deployment.created",
            "deployment.edited",
            "deployment.checked",
            "deployment.questions",
            "deployment.deleted",
            "deployment.fixed",
            "deployment.mended",
        ),
    ),
    "models": Kind(_("Models"), ("model", "root.", "artifact.", "download.", "conversion.")),
    "hosts": Kind(_("Hosts"), ("host", "runtime", "job.")),
    "access": Kind(
        _("Access"),
        (
            "log",
            "token",
            "secret",
            "user",
            "invite",
            "session",
            "password",
            "first_admin",
            "profile",
            "audit",
            "backup",
        ),
    ),
}

# {actor} and {target} become bold names; a translation may put them in any order.
SENTENCES: dict[str, Any] = {
    "login": _("{actor} signed in"),
    "logout": _("{actor} signed out"),
    "login.failed": _("{actor} gave a wrong name or password"),
    "login.locked": _("{actor} tried too many passwords and has to wait"),
    "password.changed": _("{actor} changed the password of {target}"),
    "first_admin.link_made": _("{actor} made the link for the first admin"),
    "backup.made": _("{actor} made the backup {target}"),
    "backup.restored": _("{actor} restored the backup {target}"),
    "first_admin.created": _("{target} became the first admin"),
    "user.created": _("{actor} made the account {target}"),
    "user.joined": _("{target} accepted an invitation"),
    "user.role_changed": _("{actor} changed the role of {target}"),
    "user.disabled": _("{actor} disabled the account of {target}"),
    "user.enabled": _("{actor} enabled the account of {target} again"),
    "invite.made": _("{actor} invited {target}"),
    "invite.replaced": _("{actor} made a new link for the invitation of {target}"),
    "invite.revoked": _("{actor} took back the invitation for {target}"),
    "password.link_made": _("{actor} made a link for a new password of {target}"),
    "password.reset": _("{target} set a new password by a link"),
    "session.ended": _("{actor} signed {target} out in one browser"),
    "session.all_ended": _("{actor} signed {target} out everywhere"),
    "login.unlocked": _("{actor} let everyone try passwords again at once"),
    "token.created": _("{actor} made the token {target}"),
    "token.revoked": _("{actor} revoked the token {target}"),
    "secret.kept": _("{actor} gave Berth the secret {target}"),
    "secret.replaced": _("{actor} replaced the secret {target}"),
    "secret.removed": _("{actor} deleted the secret {target}"),
    "deployment.created": _("{actor} created {target}"),
    "deployment.edited": _("{actor} changed {target}"),
    "deployment.checked": _("{actor} had the engine check the settings of {target}"),
    "deployment.started_despite": _("{actor} started {target} in spite of warnings"),
    "deployment.questions_changed": _("{actor} changed the golden questions of {target}"),
    "deployment.started": _("{actor} started {target}"),
    "deployment.stopped": _("{actor} stopped {target}"),
    "deployment.started_in_detail": _("{actor} started {target} again with more detail in the log"),
    "deployment.fixed": _("{actor} applied a fix to {target} and started it again"),
    "deployment.mended": _("Berth applied a fix to {target} by itself and started it again"),
    "deployment.restarted": _("{actor} restarted {target}"),
    "deployment.deleted": _("{actor} deleted {target}"),
    "run.ready": _("{target} is ready and answered a test question"),
    "run.failed": _("{target} failed"),
    "run.stopped": _("{target} has stopped"),
    "run.lost": _("{actor} lost contact with {target}"),
    "run.judged": _("{actor} said whether the explanation of a failed start of {target} was right"),
    "model.code_allowed": _("{actor} let {target} run its own code"),
    "model.code_forbidden": _("{actor} forbade {target} to run its own code"),
    "download.started": _("{actor} began to download {target}"),
    "download.resumed": _("{actor} resumed the download of {target}"),
    "download.repaired": _("{actor} had the files of {target} compared and fetched again where needed"),
    "download.paused": _("{actor} paused the download of {target}"),
    "download.cancelled": _("{actor} cancelled the download of {target}"),
    "download.done": _("{target} was downloaded and verified"),
    "download.failed": _("The download of {target} failed"),
    "download.access_given": _("{actor} gave Berth a token for {target}"),
    "download.access_removed": _("{actor} removed the token for {target}"),
    "conversion.started": _("{actor} began to convert {target}"),
    "conversion.cancelled": _("{actor} cancelled the conversion of {target}"),
    "conversion.done": _("{target} was converted"),
    "conversion.failed": _("The conversion of {target} failed"),
    "model.code_withdrawn": _("The own code of {target} changed, so it may not run any more"),
    "model.described": _("{actor} changed notes or tags of {target}"),
    "model.approved": _("{actor} approved the model {target}"),
    "model.approval_withdrawn": _("{actor} withdrew the approval of {target}"),
    "model.delete_asked": _("{actor} had a copy of {target} deleted"),
    "model.deleted": _("A copy of {target} was deleted on its host"),
    "model.delete_failed": _("A copy of {target} could not be deleted"),
    "audit.exported": _("{actor} exported this record as {target}"),
    "audit.dropped": _("{actor} dropped all of this record from before {target}"),
    "logs.exported": _("{actor} moved old logs into files: {target}"),
    "host.joined": _("The host {target} joined"),
    "host.rejoined": _("The host {target} joined again with a new key"),
    "host.code_made": _("{actor} made a code for {target} to join"),
    "host.code_revoked": _("{actor} took back the code for {target}"),
    "host.join_refused": _("{actor} tried a code to join as a host and was refused"),
    "host.restarted": _("The machine of the host {target} started again"),
    "host.left": _("The host {target} was taken away on its machine"),
    "host.lost": _("{actor} lost contact with {target}"),
    "host.back": _("The host {target} is back"),
    "host.renamed": _("{actor} renamed the host {target}"),
    "host.drained": _("{actor} set the host {target} aside: nothing new starts there"),
    "host.undrained": _("{actor} took the host {target} back: new starts may go there"),
    "host.gpu_set_aside": _("{actor} set a GPU of {target} aside"),
    "host.gpu_taken_back": _("{actor} took a GPU of {target} back"),
    "host.door_key_replaced": _("{actor} replaced the key for the door of {target}"),
    "host.emptied": _("{actor} stopped all deployments on {target}"),
    "host.forgotten": _("{actor} took the host {target} out of Berth"),
    "host.engines_searched": _("{actor} looked for engines on {target}"),
    "host.engine_named": _("{actor} named an engine on {target}"),
    "host.engine_folder_named": _("{actor} named a folder with engines on {target}"),
    "host.engine_folder_forgotten": _("{actor} took a folder with engines off the list of {target}"),
    "runtime.install_asked": _("{actor} began to install {target}"),
    "runtime.install_cancelled": _("{actor} cancelled the install of {target}"),
    "runtime.install_tried_again": _("{actor} tried again to install {target}"),
    "runtime.installed": _("{target} is installed and was verified"),
    "runtime.install_failed": _("The install of {target} failed"),
    "runtime.package_asked": _("{actor} began to add a package to {target}"),
    "runtime.package_added": _("A package was added to {target}"),
    "runtime.package_failed": _("A package could not be added to {target}"),
    "runtime.remove_asked": _("{actor} had {target} removed"),
    "runtime.removed": _("{target} was removed from its host"),
    "host.models_searched": _("{actor} looked for models on {target}"),
    "host.folder_added": _("{actor} added a model folder on {target}"),
    "host.folder_removed": _("{actor} removed a model folder from {target}"),
}

# What was tried, by the right that was missing.
REFUSED: dict[str, Any] = {
    "deployments.view": _("{actor} tried to see deployments and was refused"),
    "deployments.create": _("{actor} tried to create a deployment and was refused"),
    "deployments.edit": _("{actor} tried to change a deployment and was refused"),
    "deployments.operate": _("{actor} tried to start or stop a deployment and was refused"),
    "deployments.delete": _("{actor} tried to delete a deployment and was refused"),
    "deployments.try": _("{actor} tried to ask a model and was refused"),
    "models.view": _("{actor} tried to see the models and was refused"),
    "models.scan": _("{actor} tried to look for models and was refused"),
    "models.download": _("{actor} tried to download a model and was refused"),
    "models.convert": _("{actor} tried to convert a model and was refused"),
    "models.roots": _("{actor} tried to change the model folders and was refused"),
    "models.describe": _("{actor} tried to change notes or tags of a model and was refused"),
    "models.approve": _("{actor} tried to approve a model and was refused"),
    "models.trust": _("{actor} tried to let a model run its own code and was refused"),
    "models.delete": _("{actor} tried to delete a model and was refused"),
    "hosts.view": _("{actor} tried to see the hosts and was refused"),
    "hosts.manage": _("{actor} tried to change a host and was refused"),
    "runtimes.view": _("{actor} tried to see the engines and was refused"),
    "runtimes.manage": _("{actor} tried to change an engine and was refused"),
    "audit.view": _("{actor} tried to see this record and was refused"),
    "audit.export": _("{actor} tried to export this record and was refused"),
    "tokens.own": _("{actor} tried to make or revoke a token and was refused"),
    "tokens.manage": _("{actor} tried to change the token of someone else and was refused"),
    "secrets.own": _("{actor} tried to see or change secrets and was refused"),
    "secrets.manage": _("{actor} tried to change a secret of the team or of someone else and was refused"),
    "profile.own": _("{actor} tried to change an account and was refused"),
    "users.manage": _("{actor} tried to see or change the people of this panel and was refused"),
    "settings.manage": _("{actor} tried to change the settings and was refused"),
    "api": _("{actor} tried to use the API and was refused"),
}


@dataclass(frozen=True, slots=True)
class Change:
    name: Any
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One record, ready for the page."""

    event: Event
    who: str
    by_system: bool
    sentence: SafeString
    detail: str
    changes: list[Change]


def who_of(event: Event) -> str:
    """The name of whoever acted, as people read it."""
    return "Berth" if _by_system(event) else event.actor or gettext("Someone who is not signed in")


def _by_system(event: Event) -> bool:
    return event.actor == SYSTEM and event.actor_id is None


def entry(event: Event) -> Entry:
    who = who_of(event)
    return Entry(
        event=event,
        who=who,
        by_system=_by_system(event),
        sentence=sentence(event, who),
        detail=" · ".join(_details(event)),
        changes=_changes(event),
    )


def _pattern(event: Event) -> Any:
    return (REFUSED if event.outcome == Outcome.DENIED else {}).get(event.verb) or SENTENCES.get(event.verb)


def plain_sentence(event: Event) -> str:
    """What happened, as text without markup."""
    text = _pattern(event)
    if text is None:
        return " ".join(part for part in (who_of(event), event.verb, event.target) if part)
    return str(text).format(actor=who_of(event), target=event.target).strip()


def sentence(event: Event, who: str) -> SafeString:
    """What happened. Names are escaped: they are what people typed."""
    text = _pattern(event)
    actor = format_html("<b>{}</b>", who)
    if text is None:
        return format_html("{} {} {}", actor, format_html('<span class="mono">{}</span>', event.verb), _target(event))
    return format_html(str(text), actor=actor, target=_target(event))


def address_of(kind: str, target_id: str) -> str:
    """Where a target is shown; empty when it has no page."""
    place, takes_id = PLACES.get(kind, ("", False))
    try:
        return reverse(place, args=[target_id] if takes_id else []) if place else ""
    except NoReverseMatch:
        return ""


def _target(event: Event) -> SafeString:
    if not event.target:
        return format_html("{}", "")
    url = address_of(event.target_kind, event.target_id)
    if url and not event.verb.endswith(".deleted"):
        return format_html('<a href="{}">{}</a>', url, event.target)
    return format_html("<b>{}</b>", event.target)


def _details(event: Event) -> list[str]:
    facts = dict(event.facts)
    params = facts.pop(codes.PARAMS, None)
    params = params if isinstance(params, dict) else {}
    via = str(facts.pop("via", ""))
    if facts.get("scope") == "door":  # what tokens are for; only another scope is worth a word
        del facts["scope"]
    if facts.get("owner") == event.actor:
        del facts["owner"]
    words = {"browser": pgettext("way in", "browser"), "shell": pgettext("way in", "command line")}
    token = gettext("token “%(name)s”") % {"name": via[6:]} if via.startswith("token ") else via
    way = words.get(via) or token
    parts = [_list(part for part in (way, event.address) if part)]
    if event.outcome == Outcome.DENIED and event.target:
        parts.append(event.target)
    if event.count > 1:
        parts.append(gettext("%(n)s times in this minute") % {"n": f"{event.count:,}"})
    for name, value in facts.items():
        said = _coded(event.verb, name, value, params) if name in codes.CODED else _word(name, value)
        if name not in codes.CODED or said:
            parts.append(_pair(codes.name_of(event.verb, name), said))
    return [part for part in parts if part]


def _coded(verb: str, name: str, value: Any, params: dict[str, Any]) -> str:
    """The sentences of what is kept as codes, one or several."""
    told = value if isinstance(value, list) else [value]
    plain = [(str(each or ""), _word(name, each)) for each in told]
    return _list(str(word) if word != code else codes.sentence_of(verb, name, code, params) for code, word in plain)


def _changes(event: Event) -> list[Change]:
    before, after = _mapping(event.before), _mapping(event.after)
    names = [*before, *(name for name in after if name not in before)]
    values = [(name, _word(name, before.get(name)), _word(name, after.get(name))) for name in names]
    found = [Change(codes.name_of(event.verb, name), _short(old), _short(new)) for name, old, new in values]
    return [change for change in found if change.before != change.after]


def _mapping(document: Any) -> dict[str, Any]:
    """The values by name; those of the settings one by one, as they are what people set."""
    if not isinstance(document, dict):
        return {}
    spec = document.get("spec")
    return {**{k: v for k, v in document.items() if k != "spec"}, **spec} if isinstance(spec, dict) else document


def _word(name: str, value: Any) -> Any:
    """The words for a value that is kept as a code; else the value."""
    return VALUES.get(name.rpartition(".")[2], {}).get(value, value) if isinstance(value, str) else value


def _short(value: Any) -> str:
    """A value as people read it."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return pgettext("a fact", "yes") if value else pgettext("a fact", "no")
    if isinstance(value, list):
        return _list(_short(item) for item in value) or "–"
    if isinstance(value, dict):
        return _list(_pair(name, item) for name, item in value.items()) or "–"
    return str(value)


def _list(words: Iterable[str]) -> str:
    return pgettext("between the words of a list", ", ").join(words)


def _pair(name: Any, value: Any) -> str:
    # Translators: a fact, such as "Role: admin"
    return pgettext("name and value", "%(name)s: %(value)s") % {"name": name, "value": _short(value)}
