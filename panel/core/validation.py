"""What pydantic found wrong, as one sentence per field in the reader's language."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _

SENTENCES: dict[str, Any] = {
    "missing": _("This is needed."),
    "extra_forbidden": _("There is no such field."),
    "string_type": _("This must be a text."),
    "string_too_short": _("Use at least %(min_length)s characters."),
    "string_too_long": _("Use at most %(max_length)s characters."),
    "string_pattern_mismatch": _("This is not in the form that is wanted: %(pattern)s."),
    "int_type": _("This must be a whole number."),
    "int_parsing": _("This must be a whole number."),
    "int_parsing_size": _("This number is too large."),
    "int_from_float": _("This must be a whole number."),
    "float_type": _("This must be a number."),
    "float_parsing": _("This must be a number."),
    "finite_number": _("This must be a number."),
    "bool_type": _("This must be true or false."),
    "bool_parsing": _("This must be true or false."),
    "list_type": _("This must be a list."),
    "dict_type": _("This must be an object with names and values."),
    "model_type": _("This must be an object with names and values."),
    "model_attributes_type": _("This must be an object with names and values."),
    "spec_too_large": _("This is too long together: options, flags and variables have %(most)s characters at most."),
    "too_long": _("At most %(max_length)s entries are possible."),
    "too_short": _("At least %(min_length)s entries are needed."),
    "greater_than_equal": _("This must be %(ge)s or more."),
    "greater_than": _("This must be more than %(gt)s."),
    "less_than_equal": _("This must be %(le)s or less."),
    "less_than": _("This must be less than %(lt)s."),
    "literal_error": _("Choose one of: %(expected)s."),
    "enum": _("Choose one of: %(expected)s."),
    "uuid_parsing": _("This must be a UUID."),
    "uuid_type": _("This must be a UUID."),
    "date_from_datetime_parsing": _("This must be a date such as 2026-11-30."),
    "date_parsing": _("This must be a date such as 2026-11-30."),
    "datetime_from_date_parsing": _("This must be a time such as 2026-11-30T14:00:00Z."),
    "datetime_parsing": _("This must be a time such as 2026-11-30T14:00:00Z."),
}
OTHER = _("This value is not possible.")
MOST = 20  # fields that are told at once


def sentence(error: Mapping[str, Any]) -> str:
    """One entry of `ValidationError.errors()` as a sentence."""
    text = str(SENTENCES.get(error["type"], OTHER))
    try:
        return text % error.get("ctx", {}) if "%(" in text else text
    except (KeyError, TypeError):
        return str(OTHER)


def fields(errors: Iterable[Mapping[str, Any]], *, skip: int = 0) -> dict[str, str]:
    """{dotted name: sentence}; `skip` names at the front of each place belong to the reader of the body."""
    found: dict[str, str] = {}
    for error in list(errors)[:MOST]:
        place = ".".join(str(part)[:100] for part in error["loc"][skip:])
        found.setdefault(place or "body", sentence(error))
    return found
