"""Conversions of GGUF files: what one would take, start, cancel, try again. Each act and its audit row are one
transaction; what became of it is written by outcomes.py. Whoever moves one locks its host first.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from models_catalog.conversions import events, wording
from models_catalog.conversions.models import ACTIVE, Conversion, State
from models_catalog.downloads import places
from models_catalog.downloads.services import Forbidden
from models_catalog.models import Artifact, Copy
from panel import audit
from panel.accounts.access import require
from panel.accounts.actor import name_of
from panel.core.errors import Conflict, Invalid
from panel.core.numbers import gib
from panel.fleet import services as fleet
from panel.fleet import wire
from panel.fleet.agent.install_plan import release
from panel.fleet.models import Host, Runtime
from panel.fleet.wire_models import BESIDE_WEIGHTS_MIB, DTYPE_BYTES

RIGHT = "models.convert"
NO_FLOAT16 = ("gemma",)  # kinds whose numbers leave the range of float16
STOP_GRACE_S = 20.0
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}")


class NoSpace(Conflict):
    code = "convert.no_space"
    message: Any = _("The disk of %(path)s has %(free)s free; %(need)s are needed.")
    hint: Any = wording.FAILURES["convert.no_space"][1]


class NoEngine(Conflict):
    code = "convert.no_engine"
    message: Any = _("No vLLM on %(host)s could read this file.")
    hint: Any = _("Install vLLM there first; the version for the CPU is enough.")


class NotConvertible(Conflict):
    code = "convert.not_gguf"
    message: Any = _("Only a whole GGUF model can be converted.")
    hint: Any = _("Its page says what it is and what it lacks.")


@dataclass(frozen=True)
class Wish:
    """What to make, and where."""

    dtype: str
    folder: str
    name: str


# --- what it would take -----------------------------------------------------------------------------------------------


def size_of(artifact: Artifact, dtype: str) -> int:
    """Bytes of the weights; 0 when the file does not say how many parameters there are."""
    return int(artifact.facts.get("parameters") or 0) * DTYPE_BYTES[dtype]


def need_mib(size_bytes: int) -> int:
    """Room on the disk."""
    return -(-size_bytes >> 20) + BESIDE_WEIGHTS_MIB if size_bytes else 0


def usual_dtype(artifact: Artifact) -> str:
    """float16, which every engine takes; bfloat16 for what was made in it or leaves the range of float16."""
    facts = artifact.facts
    kind = " ".join([str(facts.get("model_type", "")), *map(str, facts.get("architectures", []))]).lower()
    bytes_by = facts.get("dtype_bytes") or {}
    mostly = max(bytes_by, key=lambda name: bytes_by[name], default="")
    return "bfloat16" if mostly == "BF16" or any(name in kind for name in NO_FLOAT16) else "float16"


def usual_name(artifact: Artifact, dtype: str) -> str:
    """A folder's name from the model's that says what it is."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", artifact.model.name.rpartition("/")[2]).strip("-.") or "model"
    base = re.sub(r"[-.]gguf$", "", base, flags=re.IGNORECASE)
    return f"{base[:100]}-{dtype}"


def converters(runtimes: Iterable[Runtime], host_id: int) -> list[Runtime]:
    """The engines of a host whose Python could do it, the newest first."""
    here = [row for row in runtimes if row.host_id == host_id and row.engine == "vllm" and row.present]
    usable = [row for row in here if not row.refusal and row.remove_job_id is None]
    return sorted(usable, key=lambda row: release(row.version), reverse=True)


def is_convertible(copy: Copy) -> bool:
    return copy.artifact.format == "gguf" and copy.present and copy.usable and copy.delete_job_id is None


def spots(host: Host, own: str = "") -> list[places.Place]:
    """The folders that it may go to, the file's `own` first: it is there. A cache holds what came from a hub only."""
    return sorted((place for place in places.of(host) if not place.cache), key=lambda place: place.path != own)


# --- acts -------------------------------------------------------------------------------------------------------------


def _may(actor: Any, target: Any = None) -> None:
    """Before the transaction, so that the record of a refusal outlives it. The actor None is the loop itself."""
    if actor is not None:
        require(actor, RIGHT, target)


def start(copy: Copy, wish: Wish, *, actor: Any) -> Conversion:
    """Have the host convert a copy. The same again while it goes on is the same one. Raises Invalid, Conflict."""
    _may(actor, copy.artifact.model)
    with transaction.atomic():
        fleet.lock_host(copy.host_id)
        row = Copy.objects.select_related("host", "artifact__model").get(pk=copy.pk)
        going = Conversion.objects.filter(host=row.host, folder=wish.folder, name=wish.name, state__in=ACTIVE).first()
        if going is not None:
            if going.copy_id == row.pk and going.dtype == wish.dtype:
                return going
            raise Conflict("convert.busy", *wording.FAILURES["convert.busy"])
        engine = _checked(row, wish)
        made = Conversion(
            host=row.host,
            copy=row,
            source_path=row.path,
            source_name=str(row.artifact)[:250],
            executable=engine.executable,
            dtype=wish.dtype,
            folder=wish.folder,
            name=wish.name,
            bytes_total=size_of(row.artifact, wish.dtype),
            asked_by=name_of(actor),
            asked_by_id=getattr(actor, "id", None),
        )
        return _order(made, actor)


def _checked(row: Copy, wish: Wish) -> Runtime:
    """The engine that does it. Raises what the host would refuse, before anything begins."""
    host = row.host
    if host.forgotten_at is not None:
        raise Conflict("host.forgotten", _("This host does not belong to the panel any more."), "")
    if not is_convertible(row) or not size_of(row.artifact, "float16"):
        raise NotConvertible
    if host.facts.get("allow_download") is False:
        raise Forbidden("convert.forbidden", *wording.FAILURES["convert.forbidden"])
    bad: dict[str, Any] = {}
    if wish.dtype not in DTYPE_BYTES:
        bad["dtype"] = _("There is no such number format.")
    if not NAME.fullmatch(wish.name) or ".." in wish.name:
        bad["name"] = _("Letters, digits, dots, dashes and underscores only, at most 120.")
    place = next((place for place in spots(host) if place.path == wish.folder), None)
    if place is None:
        bad["folder"] = _("Choose one of the model folders of this host.")
    if not bad and Copy.objects.filter(host=host, present=True, path=f"{wish.folder.rstrip('/')}/{wish.name}").exists():
        bad["name"] = _("A model of this name lies there already.")
    if bad:
        raise Invalid(bad)
    assert place is not None
    need = need_mib(size_of(row.artifact, wish.dtype))
    if place.free_mib is not None and place.free_mib < need:
        raise NoSpace(params={"path": wish.folder, "free": gib(place.free_mib), "need": gib(need)})
    engines = converters(Runtime.objects.filter(host=host, present=True).defer("flags"), host.pk)
    if not engines:
        raise NoEngine(params={"host": host.name})
    return engines[0]


def _order(row: Conversion, actor: Any) -> Conversion:
    task = wire.ConvertTask.model_validate(
        {
            "executable": row.executable,
            "path": row.source_path,
            "folder": row.folder,
            "name": row.name,
            "dtype": row.dtype,
        }
    )
    row.job = fleet.order_job(host=row.host, task=task, grace_s=STOP_GRACE_S)
    row.state, row.refusal, row.ended_at = State.WAITING, None, None
    row.tries += 1
    row.save()
    audit.record("conversion.started", row, actor=actor, host=row.host.name, path=row.source_path, into=row.target)
    events.announce(row)
    return row


def _locked(conversion: Conversion) -> Conversion:
    fleet.lock_host(conversion.host_id)
    return Conversion.objects.select_for_update(of=("self",)).select_related("host").get(pk=conversion.pk)


def cancel(conversion: Conversion, *, actor: Any) -> Conversion:
    """End it; the host removes what came of it. Pressed twice, or when it is over, it changes nothing."""
    _may(actor)
    with transaction.atomic():
        row = _locked(conversion)
        if row.state not in (State.WAITING, State.RUNNING):
            return row
        row.state = State.CANCELLING
        row.save(update_fields=["state", "updated_at"])
        if row.job_id is not None:
            fleet.stop_job(row.job_id, grace_s=STOP_GRACE_S)
        audit.record("conversion.cancelled", row, actor=actor, host=row.host.name)
        events.announce(row)
    return row


def try_again(conversion: Conversion, *, actor: Any) -> Conversion:
    """The same once more, looked at anew. While it goes on it changes nothing. Raises Invalid, Conflict."""
    _may(actor)
    with transaction.atomic():
        row = _locked(conversion)
        if row.state not in (State.FAILED, State.CANCELLED):
            return row
        copy = Copy.objects.select_related("host", "artifact__model").filter(pk=row.copy_id).first()
        if copy is None:
            raise NotConvertible
        if Conversion.objects.filter(host=row.host, folder=row.folder, name=row.name, state__in=ACTIVE).exists():
            raise Conflict("convert.busy", *wording.FAILURES["convert.busy"])
        row.executable = _checked(copy, Wish(row.dtype, row.folder, row.name)).executable
        return _order(row, actor)
