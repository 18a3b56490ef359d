"""Template tags and filters of the design system; they are built in, no page loads them.

Words follow the viewer's language; the filters of numbers and times are the functions of `panel/core/numbers.py`.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from panel.core import trouble
from panel.core.numbers import ago, day, duration, gib, ngroup, size

register = template.Library()

SPRITE = "vendor/tabler-icons-3.51.0/icons.svg"
STATE_ICONS = {
    "ok": "circle-check",
    "busy": "loader-2",
    "warn": "alert-triangle",
    "bad": "alert-circle",
    "off": "circle-minus",
    "lost": "plug-connected-x",
    "wait": "hourglass",
}
STEP_ICONS = {"yes": "check", "now": "loader-2", "no": "x", "todo": "circle-dashed", "over": "point"}
NOTE_ICONS = {"": "info-circle", "warn": "alert-triangle", "bad": "alert-circle", "ok": "circle-check"}


# --- small pieces of markup -----------------------------------------------------------------------------------------


@register.simple_tag
def icon(name: str, cls: str = "") -> SafeString:
    """An icon of the sprite; decoration only, so the word beside it carries the meaning."""
    return _icon(str(name), str(cls))


@lru_cache(maxsize=256)  # a page holds hundreds, of a few dozen kinds
def _icon(name: str, cls: str) -> SafeString:
    css = f"icon {cls}".strip()
    return format_html('<svg class="{}" aria-hidden="true"><use href="{}#{}"/></svg>', css, static(SPRITE), name)


@register.simple_tag
def state(kind: str, text: Any) -> SafeString:
    """The state badge: ok, busy, warn, bad, off, lost or wait, with its word."""
    return _state(kind, str(text))


@lru_cache(maxsize=256)
def _state(kind: str, text: str) -> SafeString:
    css = {"lost": "warn", "wait": "off"}.get(kind, kind)
    return format_html(
        '<span class="state {}">{}{}</span>', css, icon(STATE_ICONS[kind], "spin" if kind == "busy" else ""), text
    )


@register.simple_tag
def measured(what: Any) -> SafeString:
    """The source tag of measured numbers: a datetime becomes "measured 4 s ago", a text stays; nothing for None."""
    if not what:
        return mark_safe("")
    if isinstance(what, dt.datetime):
        full = date_format(timezone.localtime(what), "DATETIME_FORMAT")
        text = _("measured %(ago)s") % {"ago": ago(what)}
        return format_html('<span class="src" title="{}">{}{}</span>', full, icon("ruler-2"), text)
    return format_html('<span class="src">{}{}</span>', icon("ruler-2"), what)


@register.simple_tag
def estimated(text: Any = "") -> SafeString:
    """The source tag of estimated numbers; `text` says how exact, e.g. "estimated, ± 0.9 GiB"."""
    return format_html('<span class="src">{}{}</span>', icon("wave-sine"), text or _("estimated"))


@register.inclusion_tag("ui/copy.html")
def copy(id: str, value: Any, label: Any, cls: str = "", done: Any = "", text: str = "") -> dict[str, Any]:
    """A value with a copy button. `label` says what ("Copy the address of support-chat"); `text` is copied instead."""
    return {"id": id, "value": value, "label": label, "cls": cls, "done": done or _("Copied"), "text": text}


@register.simple_tag
def avatar(name: Any) -> SafeString:
    """Initials of a person; decoration."""
    return _avatar(str(name))


@lru_cache(maxsize=1024)
def _avatar(name: str) -> SafeString:
    words = name.replace(".", " ").replace("-", " ").replace("_", " ").split()
    letters = "".join(w[0] for w in words[:2]) if len(words) > 1 else "".join(words)[:2]
    return format_html(
        '<span class="av {}" aria-hidden="true">{}</span>',
        " bcd"[sum(map(ord, name)) % 4].strip(),
        letters.upper(),
    )


@register.inclusion_tag("ui/step.html")
def step(
    kind: str, name: Any, detail: Any = "", took: Any = "", usual: Any = "", value: float | None = None, label: Any = ""
) -> dict[str, Any]:
    """One step of a timeline: kind yes, now, no, todo or over (passed over); `value` is per cent done."""
    words = {
        "yes": _("done"),
        "now": _("in progress"),
        "no": _("failed"),
        "todo": _("not started"),
        "over": _("not needed here"),
    }
    return {
        "kind": kind,
        "icon_name": STEP_ICONS[kind],
        "name": name,
        "word": words[kind],
        "detail": detail,
        "took": took,
        "usual": usual,
        "value": value,
        "label": label or name,
    }


@register.inclusion_tag("ui/log_panel.html")
def log_panel(
    id: str,
    name: Any,
    url: str,
    job: Any = "",
    offset: int = 0,
    download: str = "",
    live: bool = True,
    root: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The growing log: live.js fetches `url` from byte `offset` on and takes the stream's `log` events of `job`.

    `root` marks one line of a log that has ended: `line`, `number` of the line at `offset`, `until` which byte the page
    must have it, and `follows`, lines that only follow from it.
    """
    facts = {"id": id, "name": name, "url": url, "job": job, "offset": offset, "download": download, "live": live}
    stuck = trouble.noted(trouble.LOGS) if live else ""
    return {**facts, "stuck": stuck, "root": root, "follows": " ".join(map(str, (root or {}).get("follows", [])))}


@register.simple_tag
def bar(segments: Iterable[Sequence[Any]], total: float, label: Any, cls: str = "") -> SafeString:
    """The memory bar. Segments are (kind, amount, short text or ""), kinds w a g o k x f, in the unit of `total`."""
    x, parts = 0.0, []
    for kind, amount, *word in segments:
        width = min(100 - x, 100 * amount / total) if total else 0.0
        paint = mark_safe('fill="url(#hatch)"') if kind == "x" else format_html('class="s-{}"', kind)
        parts.append(
            format_html('<rect x="{}%" y="0" width="{}%" height="100%" {}/>', f"{x:.2f}", f"{width:.2f}", paint)
        )
        if word and word[0] and kind not in "xf" and width > 6:
            at = f"{x + width / 2:.2f}"
            parts.append(format_html('<text x="{}%" y="52%" data-kind="{}">{}</text>', at, kind, word[0]))
        x += width
    inner = format_html_join("", "{}", ((p,) for p in parts))
    return format_html('<svg class="{}" role="img" aria-label="{}">{}</svg>', f"bar {cls}".strip(), label, inner)


@register.simple_block_tag
def note(content: str, kind: str = "", title: Any = "") -> SafeString:
    """A note: {% note "warn" _("Slower than usual") %}<p>…</p>{% endnote %}; kinds "", ok, warn, bad."""
    head = format_html("<h3>{}</h3>", title) if title else ""
    css = f"note {kind}".strip()
    return format_html('<div class="{}">{}<div>{}{}</div></div>', css, icon(NOTE_ICONS[kind]), head, content)


@register.inclusion_tag("ui/field.html")
def field(bound: Any, hint: Any = "") -> dict[str, Any]:
    """A form field with label, hint and errors, tied together for screen readers. Text, select and password fields."""
    ids = [f"{bound.auto_id}-hint"] if hint or bound.help_text else []
    if bound.errors:
        ids.append(f"{bound.auto_id}-bad")
    select = "select" in bound.field.widget.__class__.__name__.lower()
    css = ("form-select" if select else "form-control") + (" is-invalid" if bound.errors else "")
    attrs = {"class": css, **({"aria-describedby": " ".join(ids)} if ids else {})}
    if bound.errors:
        attrs["aria-invalid"] = "true"
    return {"field": bound, "widget": bound.as_widget(attrs=attrs), "hint": hint or bound.help_text}


@register.simple_tag
def when(at: dt.datetime | None) -> SafeString:
    """A point in time as people say it, with the full time in `datetime` and on hover."""
    if at is None:
        return mark_safe("—")
    full = _full_time(at, get_language() or "", timezone.get_current_timezone_name())
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(timespec="seconds"), full, ago(at))


@lru_cache(maxsize=4096)  # a page of rows looks again every few seconds, and their times are the same
def _full_time(at: dt.datetime, language: str, zone: str) -> str:
    return date_format(timezone.localtime(at), "DATETIME_FORMAT")


# --- numbers and words ----------------------------------------------------------------------------------------------

for _filter in (ago, day, duration, gib, ngroup, size):
    register.filter(_filter)


@register.filter
def role_word(role: str) -> str:
    """What a role may do, in the words of the menu."""
    return {"viewer": _("Can look"), "operator": _("Can deploy"), "admin": _("Admin")}.get(role, role)
