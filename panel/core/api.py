"""What the API of every room shares: the error shape, pages by cursor, bodies read strictly, the lock of an operation.

A room brings a `router` in its api.py; panel/api.py hangs them up. Summaries are marked for translation (the readable
page shows them), the schema itself stays English.
"""

import json
import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_noop as _
from ninja import Field, Schema
from ninja.parser import Parser
from ninja.security.http import HttpBearer
from pydantic import ConfigDict

from panel.core.wording import Words

T = TypeVar("T")
MOST = 200  # items of one page
DEPTH = 40  # how deep a body may be nested


class Problem(Schema):
    """Every answer that is not what was asked for."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "code": "not_found",
                    "message": "There is nothing here, or it is not yours to see.",
                    "hint": "",
                }
            ]
        }
    )

    code: str = Field(description=_("Stable; made for programs."))
    message: str = Field(description=_("One sentence for people, in the language of Accept-Language."))
    hint: str = Field(description=_("The next step; may be empty."))
    fields: dict[str, str] = Field({}, description=_("Which value is wrong and why, where it is about values."))
    incident: str = Field("", description=_("A number that stands in the panel's log as well, of an error inside it."))


class Reason(Schema):
    """Why something is so, in the words that the pages show."""

    code: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, words: Words | None) -> "Reason | None":
        return cls(code=words.code, message=words.text, hint=words.hint) if words is not None else None


class Page(Schema, Generic[T]):
    """A part of a list. `next` is the cursor of the part that follows; null: this was the last one."""

    items: list[T]
    next: str | None = Field(description=_("Give it as `cursor` to get the next part; null at the end."))


class Paging(Schema):
    """The parameters of every list."""

    limit: int = Field(50, ge=1, le=MOST, description=_("How many at most."))
    cursor: str = Field("", pattern=r"^[0-9]{0,18}$", description=_("`next` of the part before; empty: the first."))


def answers(good: dict[int, Any], *codes: int) -> dict[Any, Any]:
    """The answers of an operation: the good ones, and the problems that any operation has, with further `codes`."""
    return {**good, frozenset({400, 401, 403, 422, 500, *codes}): Problem}


def page_of(
    rows: QuerySet[Any],
    paging: Paging,
    made: Callable[[list[Any]], Iterable[Any]],
    *,
    key: str = "id",
    newest: bool = False,
) -> dict[str, Any]:
    """The rows after the cursor in the order of `key`, which is unique: a number, or a time.

    `made` puts them all into their shape.
    """
    if paging.cursor:
        at = int(paging.cursor)
        after = _time(at) if rows.model._meta.get_field(key).get_internal_type() == "DateTimeField" else at
        rows = rows.filter(**{f"{key}__{'lt' if newest else 'gt'}": after})
    found = list(rows.order_by(f"-{key}" if newest else key)[: paging.limit + 1])
    shown = found[: paging.limit]
    return {
        "items": list(made(shown)),
        "next": _cursor(getattr(shown[-1], key)) if len(found) > paging.limit else None,
    }


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = 250_000_000_000_000_000  # microseconds; the years that follow are beyond what Python can say


def _cursor(value: Any) -> str:
    return str((value - EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value)


def _time(cursor: int) -> datetime:
    return EPOCH + timedelta(microseconds=min(cursor, LATEST))


# --- bodies -----------------------------------------------------------------------------------------------------------


class StrictParser(Parser):
    """JSON without what a database cannot keep: NaN, NUL, halves of characters, endless nesting."""

    def parse_body(self, request: HttpRequest) -> Any:
        return read_json(request.body)


def read_json(body: bytes) -> Any:
    """The value of a JSON text. Raises ValueError, also where the reader itself gives up."""
    try:
        value = json.loads(body, parse_constant=_refuse)
    except RecursionError as exc:
        raise ValueError("nested too deep") from exc
    check_plain(value)
    return value


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def check_plain(value: Any) -> None:
    """Raise ValueError when there is something in it that PostgreSQL cannot keep as JSON."""
    level: list[Any] = [value]
    for _depth in range(DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _check_text(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError("not a finite number")
            elif isinstance(item, dict):
                below += [*item.keys(), *item.values()]
            elif isinstance(item, list):
                below += item
        if not below:
            return
        level = below
    raise ValueError("nested too deep")


def _check_text(text: str) -> None:
    if "\0" in text:
        raise ValueError("NUL in a text")
    text.encode()  # a lone half of a surrogate pair raises UnicodeEncodeError, a ValueError


# --- who may ----------------------------------------------------------------------------------------------------------


class Token(HttpBearer):
    """The lock of one operation: opened by a bearer token whose owner holds `right` ("": any token for the API).

    `reads`: a POST that changes nothing, since its question is too long for an address; a token that only reads may.
    This room knows no accounts; panel.accounts.api_access puts its `opener` here.
    """

    opener: ClassVar[Callable[..., Any] | None] = None
    openapi_description: str = "A token for the API, made under Your account: `Authorization: Bearer berth_…`."

    def __init__(self, right: str = "", *, reads: bool = False) -> None:
        super().__init__()
        self.right, self.reads = right, reads

    def __call__(self, request: HttpRequest) -> Any:
        return self.authenticate(request, request.headers.get("Authorization", ""))

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        """The Actor; it becomes `request.auth`. Raises a PanelError."""
        if Token.opener is None:
            raise LookupError("panel.accounts.api_access was not loaded")
        return Token.opener(request, self.right, reads=self.reads)
