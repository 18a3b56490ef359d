"""Numbers, sizes, spans and days in the viewer's language; `templatetags/ui.py` has them as filters.

Sizes come in MiB or bytes as the function says; times are aware datetimes; spans are seconds. A number and its unit are
joined by a no-break space.
"""

import datetime as dt
import math
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

NBSP = "\u00a0"


def day(value: Any) -> str:
    """A day as people of the active language write it."""
    return date_format(value, "SHORT_DATE_FORMAT") if value else ""


def unit(value: Any, word: str) -> str:
    """5 and "s" → "5 s" with a no-break space; the unit follows the language."""
    words = {"s": pgettext("unit", "s"), "min": pgettext("unit", "min"), "h": pgettext("unit", "h")}
    return f"{value}{NBSP}{words.get(word, word)}"


def ngroup(value: Any) -> str:
    """Thousands separators: 118784 → "118,784". Other things stay as they are."""
    try:
        return f"{int(value):,}"
    except (TypeError, ValueError):
        return str(value)


def gib(mib: Any, word: str = "GiB") -> str:
    """MiB → "12.3 GiB"; `|gib:""` leaves the unit away."""
    if mib is None or mib == "":
        return "—"
    number = f"{float(mib) / 1024:,.1f}"
    return f"{number}{NBSP}{word}" if word else number


def size(count: Any) -> str:
    """Bytes → "3.1 GiB", "12 MiB", "4 KiB" or "17 B"."""
    if count is None or count == "":
        return "—"
    value = float(count)
    for step_, word, digits in ((1 << 40, "TiB", 1), (1 << 30, "GiB", 1), (1 << 20, "MiB", 0), (1 << 10, "KiB", 0)):
        if value >= step_:
            return f"{value / step_:,.{digits}f}{NBSP}{word}"
    return f"{value:.0f}{NBSP}B"


def duration(seconds: Any) -> str:
    """Seconds → "0.4 s", "41 s", "1 min 25 s", "2 h 5 min", "3 days"."""
    if seconds is None or seconds == "":
        return ""
    if isinstance(seconds, dt.timedelta):
        seconds = seconds.total_seconds()
    value = max(0.0, float(seconds))
    if value < 0.95:
        return unit(f"{max(value, 0.1):.1f}", "s") if value else unit(0, "s")
    whole = math.floor(value + 0.5)
    if whole < 60:
        return unit(whole, "s")
    if whole < 3600:
        return _join(unit(whole // 60, "min"), unit(whole % 60, "s") if whole % 60 else "")
    if whole < 48 * 3600:
        minutes = whole % 3600 // 60
        return _join(unit(whole // 3600, "h"), unit(minutes, "min") if minutes else "")
    return _("%(n)s days") % {"n": whole // 86400}


def clock(at: dt.datetime) -> str:
    """A time of day that a sentence can end with: "14:03", "yesterday 14:03", then "24 Nov 14:03"."""
    now, local = timezone.localtime(), timezone.localtime(at)
    if local.date() == now.date():
        return f"{local:%H:%M}"
    if local.date() == now.date() - dt.timedelta(days=1):
        return _("yesterday %(time)s") % {"time": f"{local:%H:%M}"}
    return f"{date_format(local, 'MONTH_DAY_FORMAT')} {local:%H:%M}"


def ago(at: dt.datetime | None) -> str:
    """ "40 s ago" below an hour, then the clock time of today, "yesterday 14:02", then "24 Nov"."""
    if at is None:
        return "—"
    now, local = timezone.localtime(), timezone.localtime(at)
    seconds = max(0, int((now - local).total_seconds()))
    if seconds < 90:
        return _("%(span)s ago") % {"span": unit(seconds, "s")}
    if seconds < 3600:
        return _("%(span)s ago") % {"span": unit(seconds // 60, "min")}
    if local.date() == now.date():
        return f"{local:%H:%M}"
    if local.date() == now.date() - dt.timedelta(days=1):
        return _("yesterday %(time)s") % {"time": f"{local:%H:%M}"}
    short = date_format(local, "MONTH_DAY_FORMAT")
    return short if local.year == now.year else f"{short}{NBSP}{local:%Y}"


def approx(text: Any) -> str:
    """An estimate: "≈ " before it."""
    return f"≈{NBSP}{text}"


def _join(first: str, second: str) -> str:
    return f"{first} {second}".strip()
