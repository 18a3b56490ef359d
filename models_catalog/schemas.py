"""The shapes of the catalog's API."""

import uuid
from datetime import datetime
from typing import Any, Literal

from django.utils.translation import gettext_noop as _
from ninja import Field, Schema

from models_catalog import shelf
from panel.core.api import Paging, Reason


class CopyOut(Schema):
    """The model's files on a host."""

    id: int
    host: str
    host_id: int
    path: str
    usable: bool
    problems: list[Reason]
    seen_at: datetime | None
    deleting: uuid.UUID | None = Field(description=_("The deletion that runs now."))
    delete_reason: Reason | None = Field(description=_("Why the newest deletion failed."))


class ArtifactOut(Schema):
    """One form of a model that can be served; a deployment names it by `id`."""

    id: int
    format: str
    label: str
    size_bytes: int
    parameters: int | None
    context_length: int | None
    tasks: list[str]
    deployable: bool
    reasons: list[Reason] = Field(description=_("What stands in the way of deploying it."))
    fits: Literal["", "fits", "tight", "does_not_fit", "unknown"] = Field(
        description=_("On the team's GPUs when they are empty, at 8,192 tokens; empty: not estimated yet.")
    )
    used_by: list[str] = Field(description=_("Names of deployments whose settings or runs name it."))
    copies: list[CopyOut]


class CodeOut(Schema):
    """A file of the model's own program code."""

    file: str
    sha256: str


class ModelOut(Schema):
    id: int
    name: str
    notes: str
    tags: list[str]
    licence: str = Field(description=_("As people wrote it, else as the files say."))
    source_url: str
    added_by: str
    added_from: dict[str, Any]
    approved: bool
    approved_by: str
    may_deploy: bool = Field(description=_("False where people who can deploy are held to approved models only."))
    allow_remote_code: bool
    code_withdrawn: list[str] = Field(description=_("Files whose change ended the permission, at a look or a start."))
    code: list[CodeOut] = Field(description=_("Its own program code, as the newest look found it."))
    code_digest: str = Field(description=_("Stands for the list of code; give it with the decision to allow it."))
    created_at: datetime
    artifacts: list[ArtifactOut]


class DescribeIn(Schema):
    """What is left out stays as it is."""

    model_config = {"extra": "forbid"}

    notes: str | None = Field(None, max_length=shelf.MAX_NOTES)
    tags: list[str] | None = Field(None, max_length=shelf.MAX_TAGS, examples=[["chat", "support team"]])
    licence: str | None = Field(None, max_length=shelf.LICENCE)
    source_url: str | None = Field(None, max_length=shelf.ADDRESS)


class ApprovalIn(Schema):
    model_config = {"extra": "forbid"}

    approved: bool = Field(examples=[True])


class CodeIn(Schema):
    model_config = {"extra": "forbid"}

    allowed: bool = Field(examples=[True])
    digest: str | None = Field(None, max_length=64, description=_("`code_digest` of the list that was looked at."))


class FitCell(Schema):
    context: int
    verdict: Literal["fits", "tight", "does_not_fit", "unknown"]
    requests: float | None = Field(description=_("Requests of this length at the same time."))


class FitRow(Schema):
    """So many GPUs of one kind in one host, with nothing else on them."""

    gpu: str
    count: int
    total_mib: int
    cpu: bool
    hosts: list[str]
    cells: list[FitCell]


class FitOut(Schema):
    artifact: int
    engine: str
    engine_version: str
    rows: list[FitRow]


class TryOut(Schema):
    name: str
    text: str
    reason: Reason | None


class TemplateOut(Schema):
    """A chat template and what becomes of example conversations. Empty text: there is none, or it was not kept."""

    artifact: int
    source: str
    text: str
    works: bool
    system: bool
    tools: bool
    tries: list[TryOut]


class DuplicateOut(Schema):
    model_id: int
    name: str
    label: str
    paths: list[str]
    bytes: int = Field(description=_("Of all but one of them."))


class DiskOut(Schema):
    host: str
    host_id: int
    models: int
    bytes: int
    unused: int = Field(description=_("Copies of models that no deployment ever named."))
    unused_bytes: int
    total_mib: int | None
    free_mib: int | None
    duplicates: list[DuplicateOut]


class DisksOut(Schema):
    items: list[DiskOut]


class DeletionFilter(Schema):
    confirmed: bool = Field(False, description=_("Also the last copy of a model that a stopped deployment names."))


class DeletionOut(Schema):
    job: uuid.UUID = Field(description=_("The deletion that runs now."))


class RepairOut(Schema):
    ordered: bool
    download: uuid.UUID | None = Field(description=_("The download that fetches the files."))


class ModelFilter(Paging):
    q: str = Field("", max_length=100, description=_("Words of the name, label, architecture, path or host."))
    host: str = Field("", max_length=64, description=_("Name of a host that has its files."))
    show: Literal["", "whole", "problems", "fits", "approved", "unused", "gguf", "embed", "gone"] = Field(
        "", description=_("As on the page: whole ones, those with problems, GGUF, embeddings, or vanished ones.")
    )
    format: Literal["", "hf", "gguf"] = ""
    task: Literal["", "generate", "embed", "score"] = ""
    size: Literal["", "4", "16", "64", "more"] = Field(
        "", description=_("Up to 4 GiB, from there to 16, to 64, or more.")
    )
    label: str = Field("", max_length=200, description=_("Quantisation or number format, such as Q4_K_M."))
    tag: str = Field("", max_length=shelf.MAX_TAG)


class ScanIn(Schema):
    """Where to look; left out: on all hosts."""

    model_config = {"extra": "forbid"}

    host: str | None = Field(None, max_length=64, description=_("Name of the host."), examples=["quay"])


class ScanOut(Schema):
    host: str
    job: str | None = Field(description=_("The search that runs now."))
    reason: Reason | None = Field(description=_("Why this host could not be asked."))


class ScansOut(Schema):
    items: list[ScanOut]
