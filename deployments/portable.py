"""Deployments as files: names instead of numbers, so that what one panel exports another one can apply.

    berth: 1
    deployments:
      - name: team-chat
        running: true
        model: Qwen3-0.6B          # or the path of its files on a host
        host: quay                 # left out: Berth chooses
        options: {max_model_len: 4096}

What is left out has its usual value. Applying looks at the whole file first; one mistake, and nothing is changed.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from deployments import names, preflight, services, startable
from deployments.hidden import restored
from deployments.models import Deployment
from deployments.planner import length
from deployments.spec import NAME, DeploymentSpec, diff
from deployments.states import Desired
from deployments.wording import words
from deployments.yaml_lines import Mistake, Read, read
from deployments.yaml_lines import dump as as_yaml
from panel.accounts.access import require
from panel.core.errors import Conflict, Invalid, PanelError
from panel.core.locks import Lock, lock_until_commit
from panel.core.mask import mask
from panel.core.validation import fields, sentence

MOST_BYTES = 256 << 10
MOST = 200  # deployments of one file
NUMBERS = ("artifact_id", "host_id", "runtime_id")  # what files say by name


class FileTooLarge(PanelError):
    code = "file.too_large"
    message: Any = gettext_lazy("A file of deployments may have 256 KiB at most.")
    status = 413


class BadFile(Invalid):
    """`fields` maps "line 7" to what is wrong there."""

    code = "file.invalid"
    message: Any = gettext_lazy("This file has mistakes; nothing was changed.")


class RuntimeName(BaseModel):
    """Which installed engine; what is left out does not matter."""

    model_config = ConfigDict(extra="forbid")

    version: str = Field(max_length=60)
    device: str = Field("", max_length=16)
    executable: str = Field("", max_length=500)
    host: str = Field("", max_length=64)


class _Named(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=63)
    running: bool | None = Field(None, description=gettext_noop("Left out: a new one starts, one that is there stays."))
    model: str = Field(max_length=1000, description=gettext_noop("Its name, or the path of its files on a host."))
    form: str = Field("", max_length=200, description=gettext_noop("Which form of the model."))
    host: str = Field("", max_length=64)
    runtime: RuntimeName | None = None


# The rest is the spec itself, so that the two cannot differ.
Item: Any = create_model(
    "FileDeployment",
    __base__=_Named,
    **{name: (f.annotation, copy(f)) for name, f in DeploymentSpec.model_fields.items() if name not in NUMBERS},
)


class File(BaseModel):
    """A file of deployments."""

    model_config = ConfigDict(extra="forbid")

    berth: Literal[1] = Field(description=gettext_noop("The version of this kind of file."))
    deployments: list[Item] = Field(max_length=MOST)


def file_schema() -> dict[str, Any]:
    """For the API's description; in one piece, with nothing to refer to."""
    schema = File.model_json_schema()
    parts = schema.pop("$defs")

    def inlined(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return inlined(parts[value["$ref"].rsplit("/", 1)[-1]])
            return {name: inlined(item) for name, item in value.items()}
        return [inlined(item) for item in value] if isinstance(value, list) else value

    return dict(inlined(schema))


# --- out --------------------------------------------------------------------------------------------------------------


def dump(rows: Iterable[Deployment]) -> str:
    """The deployments as YAML, secrets hidden. Raises Conflict where a model, host or engine is not there any more."""
    found = list(rows)
    books = names.Books.of([DeploymentSpec.model_validate(row.revision.spec) for row in found if row.revision])
    return as_yaml({"berth": 1, "deployments": [_entry(row, books) for row in found]})


def _entry(row: Deployment, books: names.Books) -> dict[str, Any]:
    assert row.revision is not None
    spec = DeploymentSpec.model_validate(row.revision.spec)
    usual = DeploymentSpec(artifact_id=spec.artifact_id).model_dump(mode="json")
    values = mask(spec.model_dump(mode="json"))
    try:
        said = books.said(spec)
    except LookupError as exc:
        text = gettext_lazy("%(name)s uses something that is not there any more: %(what)s.")
        hint = gettext_lazy("Change its settings first.")
        raise Conflict("export.gone", text, hint, params={"name": row.name, "what": str(exc)}) from exc
    rest = {name: value for name, value in values.items() if name not in NUMBERS and value != usual[name]}
    return {"name": row.name, "running": row.desired == Desired.RUNNING, **said, **rest}


# --- in ---------------------------------------------------------------------------------------------------------------


@dataclass
class Applied:
    """What one entry of a file changes, or changed."""

    name: str
    spec: DeploymentSpec
    row: Deployment | None
    running: bool | None
    changes: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def action(self) -> str:
        return "created" if self.row is None else "changed" if self.changes else "unchanged"

    @property
    def run(self) -> str:
        """What is to happen beside the settings; a new one brings its own start."""
        if self.row is None or self.running is None or self.running == (self.row.desired == Desired.RUNNING):
            return ""
        return "started" if self.running else "stopped"

    @property
    def differs(self) -> bool:
        return self.action != "unchanged" or bool(self.run)

    def as_dict(self) -> dict[str, Any]:
        number = self.row.pk if self.row is not None else None
        return {"name": self.name, "id": number, "action": self.action, "run": self.run, "changes": self.changes}


def apply(data: bytes, *, actor: Any, dry_run: bool = False) -> list[Applied]:
    """Make it as the file says; returns what that changed. Raises BadFile, FileTooLarge, Conflict or Denied."""
    items, where = _parsed(data)
    if dry_run:
        planned = _planned(items, where)
        for item in planned:
            if item.row is not None and item.changes:
                startable.require(item.row, item.spec)
        return planned
    with transaction.atomic():
        # One file after the other, and rows in the order in which everyone takes several: else two wait for each other.
        lock_until_commit(Lock.APPLY)
        rows = Deployment.objects.filter(deleted_at=None, name__in=[item.name for item in items])
        list(rows.select_for_update().order_by("pk").values_list("pk"))
        return [_done(item, actor) for item in _planned(items, where)]


def create(values: dict[str, Any], *, actor: Any) -> Deployment:
    """One new deployment of what an entry of a file says. Raises Invalid, also where the name is taken."""
    try:
        item = Item.model_validate(values)
        planned = _plan(item, None, names.Shelf.of([item]))
    except ValidationError as exc:
        raise Invalid(fields(exc.errors())) from exc
    except names.NotThere as exc:
        raise Invalid({exc.field: exc.text}) from exc
    require(actor, "deployments.create")
    _refuse_options(planned.spec, item.name)
    return services.create(name=item.name, spec=planned.spec, actor=actor, start=item.running is not False)


def _refuse_options(spec: DeploymentSpec, name: str) -> None:
    """What the engine would not take is said now, not by a failed start. Without a place nobody can say it yet."""
    check = preflight.check(spec, name=name)
    if check.ok:
        return
    wrong = check.reason.get("params", {}).get("candidates") or [{**check.reason, "name": "options"}]
    if check.reason.get("code") == length.CODE:
        wrong = [{**check.reason, "name": length.OPTION}]
    elif check.placement is None:
        wrong = [{**one, "name": one["option"]} for one in wrong if one.get("option")]
        if not wrong:
            return
    found = {str(one.get("name") or "options"): words(one) for one in wrong}
    raise Invalid({place: f"{said.text} {said.hint}".strip() for place, said in found.items() if said is not None})


def _parsed(data: bytes) -> tuple[list[Any], Read]:
    if len(data) > MOST_BYTES:
        raise FileTooLarge
    try:
        where = read(data.decode("utf-8-sig"))
        return File.model_validate(where.value).deployments, where
    except UnicodeDecodeError as exc:
        raise BadFile({_line(data[: exc.start].count(b"\n") + 1): _("This is no text in UTF-8.")}) from exc
    except Mistake as exc:
        raise BadFile({_line(exc.line): exc.text}) from exc
    except ValidationError as exc:
        raise _all_wrong([(tuple(e["loc"]), sentence(e)) for e in exc.errors()[:20]], where) from exc


def _line(number: int) -> str:
    return _("line %(n)s") % {"n": number}


def _all_wrong(wrong: list[tuple[tuple[Any, ...], str]], where: Read) -> BadFile:
    """Each mistake at its line; the name of what is missing is told, since it has no line."""
    found: dict[str, str] = {}
    for path, text in wrong:
        name = ".".join(str(part) for part in path if not isinstance(part, int))
        place = _line(where.line_of(path))
        told = f"{name}: {text}" if name else text
        found[place] = f"{found[place]} {told}" if place in found else told
    return BadFile(found)


def _planned(items: list[Any], where: Read) -> list[Applied]:
    """Every entry against what is there; reads only, a few queries for all."""
    rows = Deployment.objects.filter(deleted_at=None, name__in=[item.name for item in items]).select_related("revision")
    known = {row.name: row for row in rows}
    shelf = names.Shelf.of(items)
    planned: list[Applied] = []
    wrong: list[tuple[tuple[Any, ...], str]] = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        at = ("deployments", index)
        if not NAME.match(item.name):
            wrong.append(((*at, "name"), str(services.NAME_HINT)))
        elif item.name in seen:
            wrong.append(((*at, "name"), _("This name stands in the file twice.")))
        seen.add(item.name)
        try:
            planned.append(_plan(item, known.get(item.name), shelf))
        except names.NotThere as exc:
            wrong.append(((*at, exc.field), exc.text))
        except Invalid as exc:
            wrong += [((*at, *name.split(".")), text) for name, text in exc.fields.items()]
    if wrong:
        raise _all_wrong(wrong, where)
    return planned


def _plan(item: Any, row: Deployment | None, shelf: names.Shelf) -> Applied:
    values = item.model_dump(mode="json", exclude=set(_Named.model_fields))
    old = DeploymentSpec.model_validate(row.revision.spec) if row is not None and row.revision is not None else None
    if old is not None:
        values = restored(values, old.model_dump(mode="json"))
    spec = services.parse_spec({**values, **shelf.numbers(item)})
    changes = diff(old, spec) if old is not None else {}
    shown = {name: [mask(before, name), mask(after, name)] for name, (before, after) in changes.items()}
    return Applied(item.name, spec, row, item.running, shown)


def _done(item: Applied, actor: Any) -> Applied:
    """Carry out one entry; the answer keeps what was different before."""
    if item.row is None:
        require(actor, "deployments.create")
        row = services.create(name=item.name, spec=item.spec, actor=actor, start=item.running is not False)
        return _Made(item.name, item.spec, row, item.running)
    if item.changes:
        require(actor, "deployments.edit", item.row)
        assert item.row.revision is not None
        services.edit(item.row, spec=item.spec, actor=actor, base_number=item.row.revision.number)
    if item.run:
        require(actor, "deployments.operate", item.row)
        act = services.start if item.run == "started" else services.stop
        act(item.row, actor=actor)
    return item


class _Made(Applied):
    """An entry whose deployment is new."""

    @property
    def action(self) -> str:
        return "created"

    @property
    def run(self) -> str:
        return ""
