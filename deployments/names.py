"""Models, hosts and engines by name, for files and the shell: names into numbers and back. Reads only."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from django.utils.translation import gettext as _

from deployments.spec import DeploymentSpec
from models_catalog.models import Artifact, Copy
from panel.fleet.models import Host, Runtime


class NotThere(Exception):
    """A name that means nothing here, or several things; `field` says which of the file's values it is."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field, self.text = field, text


# --- numbers into names -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Books:
    """What the numbers of some specs mean, in four queries."""

    artifacts: dict[int, Artifact]
    forms: dict[int, list[str]]  # model → the labels of its artifacts
    hosts: dict[int, Host]
    runtimes: dict[int, Runtime]
    copies: dict[int, str]  # artifact → a path of it

    @classmethod
    def of(cls, specs: Iterable[DeploymentSpec]) -> Self:
        found = list(specs)
        artifacts = Artifact.objects.select_related("model").in_bulk({spec.artifact_id for spec in found})
        models = {artifact.model_id for artifact in artifacts.values()}
        forms: dict[int, list[str]] = {}
        for model_id, label in Artifact.objects.filter(model__in=models).values_list("model_id", "label"):
            forms.setdefault(model_id, []).append(label)
        runtimes = Runtime.objects.select_related("host").defer("flags")
        copies = Copy.objects.filter(artifact__in=artifacts, present=True).order_by("-path")
        return cls(
            artifacts=artifacts,
            forms=forms,
            hosts=Host.objects.filter(forgotten_at=None).in_bulk({s.host_id for s in found if s.host_id is not None}),
            runtimes=runtimes.in_bulk({spec.runtime_id for spec in found if spec.runtime_id is not None}),
            copies=dict(copies.values_list("artifact_id", "path")),
        )

    def said(self, spec: DeploymentSpec) -> dict[str, Any]:
        """Model, form, host and engine by name. Raises LookupError with the number that means nothing any more."""
        values = self._model(spec.artifact_id)
        if spec.host_id is not None:
            if spec.host_id not in self.hosts:
                raise LookupError(f"host {spec.host_id}")
            values["host"] = self.hosts[spec.host_id].name
        if spec.runtime_id is not None:
            row = self.runtimes.get(spec.runtime_id)
            if row is None:
                raise LookupError(f"engine {spec.runtime_id}")
            values["runtime"] = {
                "version": row.version,
                "device": row.device,
                "executable": row.executable,
                "host": row.host.name,
            }
        return values

    def _model(self, artifact_id: int) -> dict[str, Any]:
        artifact = self.artifacts.get(artifact_id)
        if artifact is None:
            raise LookupError(f"model {artifact_id}")
        labels = self.forms.get(artifact.model_id, [])
        if labels.count(artifact.label) > 1 and artifact_id in self.copies:  # no name tells it from its twin
            return {"model": self.copies[artifact_id]}
        return {"model": artifact.model.name, **({"form": artifact.label} if len(labels) > 1 else {})}


# --- names into numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shelf:
    """What the names of some entries could mean, in four queries."""

    artifacts: dict[str, list[Artifact]]  # by the model's name
    copies: dict[str, list[Copy]]  # by path
    hosts: dict[str, int]
    runtimes: list[Runtime]

    @classmethod
    def of(cls, items: Iterable[Any]) -> Self:
        found = list(items)
        wanted = {item.model for item in found}
        artifacts: dict[str, list[Artifact]] = {}
        for artifact in Artifact.objects.filter(model__name__in=wanted).select_related("model"):
            artifacts.setdefault(artifact.model.name, []).append(artifact)
        paths = {name for name in wanted if name.startswith("/")}
        copies: dict[str, list[Copy]] = {}
        for copy in Copy.objects.filter(path__in=paths, present=True).select_related("host"):
            copies.setdefault(copy.path, []).append(copy)
        versions = {item.runtime.version for item in found if item.runtime is not None}
        runtimes = Runtime.objects.filter(version__in=versions, present=True, removed_at=None, host__forgotten_at=None)
        return cls(
            artifacts=artifacts,
            copies=copies,
            hosts=dict(Host.objects.filter(forgotten_at=None).values_list("name", "pk")),
            runtimes=list(runtimes.select_related("host").defer("flags")),
        )

    def numbers(self, item: Any) -> dict[str, int | None]:
        """artifact_id, host_id and runtime_id of an entry. Raises NotThere."""
        host_id = self._host(item.host, "host")
        return {
            "artifact_id": self._artifact(item),
            "host_id": host_id,
            "runtime_id": self._runtime(item) if item.runtime is not None else None,
        }

    def _host(self, name: str, field: str) -> int | None:
        if name and name not in self.hosts:
            raise NotThere(field, _("There is no host with the name %(name)s.") % {"name": name})
        return self.hosts[name] if name else None

    def _artifact(self, item: Any) -> int:
        if item.model.startswith("/"):
            copies = [copy for copy in self.copies.get(item.model, []) if item.host in ("", copy.host.name)]
            found = {copy.artifact_id for copy in copies}
            if not found:
                raise NotThere("model", _("No model lies at %(path)s.") % {"path": item.model})
            if len(found) > 1:
                raise NotThere("model", _("Different models lie at this path on several hosts; name the host."))
            return found.pop()
        forms = self.artifacts.get(item.model, [])
        if not forms:
            raise NotThere("model", _("There is no model with the name %(name)s.") % {"name": item.model})
        fit = [artifact for artifact in forms if item.form in ("", artifact.label)]
        if len(fit) == 1:
            return fit[0].pk
        labels = ", ".join(sorted({artifact.label for artifact in forms}))
        if not fit:
            raise NotThere("form", _("This model has no such form; it has: %(forms)s.") % {"forms": labels})
        text = _("This model has several forms: %(forms)s. Name one, or give the path of its files as the model.")
        raise NotThere("form", text % {"forms": labels})

    def _runtime(self, item: Any) -> int:
        wanted, host = item.runtime, item.runtime.host or item.host
        self._host(wanted.host, "runtime")
        fit = [
            row
            for row in self.runtimes
            if row.engine == item.engine
            and row.version == wanted.version
            and wanted.device in ("", row.device)
            and wanted.executable in ("", row.executable)
            and host in ("", row.host.name)
        ]
        if not fit:
            text = _("No engine %(engine)s %(version)s was found that fits.")
            raise NotThere("runtime", text % {"engine": item.engine, "version": wanted.version})
        if len(fit) > 1:
            raise NotThere("runtime", _("Several engines fit; name the host, the device or the executable too."))
        return fit[0].pk
