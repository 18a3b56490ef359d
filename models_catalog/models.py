"""What could run: a model as the team names it, its artifacts, and where copies of them lie."""

from typing import Any

from django.db import models
from django.db.models import Value

from models_catalog.facts import ModelFacts
from panel.core.models import TimeStamped
from panel.fleet.models import Host, Job

EMPTY_LIST, EMPTY_DICT = (Value(empty, models.JSONField()) for empty in ([], {}))

# Facts that differ between equal copies.
COPY_FACTS = ("revision", "refs", "config_beside", "projector", "source", "origin", "own_bytes", "licence")


class CatalogModel(TimeStamped):
    """One entry of the shelf, e.g. "SmolLM2-135M-Instruct"; several artifacts (formats, quantisations) may serve it."""

    name = models.CharField(max_length=200, unique=True)
    notes = models.TextField(blank=True)
    notes_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    notes_at = models.DateTimeField(null=True)
    tags = models.JSONField(default=list, db_default=EMPTY_LIST)  # texts, in the order that people gave them
    # what people say; else the files' own word counts
    licence = models.CharField(max_length=100, blank=True, default="", db_default="")
    source_url = models.URLField(max_length=500, blank=True, default="", db_default="")
    # "" where a look through the folders found it
    added_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    added_from = models.JSONField(default=dict, db_default=EMPTY_DICT)  # {how: found or downloaded, host, place}
    # an admin's decisions, audited, as are the next
    approved = models.BooleanField(default=False, db_default=False, db_index=True)
    approved_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    approved_at = models.DateTimeField(null=True)
    allow_remote_code = models.BooleanField(default=False)
    code_pins = models.JSONField(default=list, db_default=EMPTY_LIST)  # [[file, SHA-256], …] that the decision is about
    code_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    code_at = models.DateTimeField(null=True)
    # names of files whose change ended it; [] when nothing did
    code_withdrawn = models.JSONField(default=list, db_default=EMPTY_LIST)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Artifact(TimeStamped):
    """One servable form of a model: a Hugging Face folder or a GGUF file set. `facts` is ModelFacts as a dict.

    The fingerprint is SHA-256 of names, sizes and headers: equal on two hosts for the same bytes. It and the facts
    follow the files as long as only one copy of them is known, so that an edited folder stays the same artifact.
    """

    model = models.ForeignKey(CatalogModel, on_delete=models.CASCADE, related_name="artifacts")
    format = models.CharField(max_length=8)  # hf, gguf
    label = models.CharField(max_length=200)  # e.g. "bfloat16", "Q4_K_M"
    fingerprint = models.CharField(max_length=64, unique=True)
    size_bytes = models.BigIntegerField(default=0)
    facts = models.JSONField(default=dict)
    fits = models.JSONField(default=dict, db_default=EMPTY_DICT)  # {group of GPUs: verdict}, see fits.py
    # which GPUs and facts that was told for
    fits_for = models.CharField(max_length=64, blank=True, db_index=True, default="", db_default="")

    class Meta:
        ordering = ["model_id", "format", "label", "id"]

    def __str__(self) -> str:
        return f"{self.model} ({self.label})"


class Copy(TimeStamped):
    """An artifact on a host's disk. A vanished copy is kept with `present` false, since old runs name it.

    `extra` holds the facts that belong to this copy alone (COPY_FACTS), and `code`, the sums of its program code as
    [[file, SHA-256], …] where it needs that to run. `usable`: nothing found stands in the way.
    """

    artifact = models.ForeignKey(Artifact, on_delete=models.CASCADE, related_name="copies")
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="copies")
    path = models.CharField(max_length=1000)
    root = models.CharField(max_length=1000, blank=True)
    present = models.BooleanField(default=True)
    usable = models.BooleanField(default=True)
    problems = models.JSONField(default=list)  # list of {code, params}
    extra = models.JSONField(default=dict)
    seen_at = models.DateTimeField(null=True)
    delete_job = models.ForeignKey(Job, on_delete=models.SET_NULL, null=True, related_name="+")  # while it is deleted
    delete_refusal = models.JSONField(null=True)  # wire.Refusal of the newest try
    deleted_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "path"], name="copy_once_per_path")]
        indexes = [models.Index(fields=["artifact", "present", "usable"])]
        ordering = ["host_id", "path"]

    def __str__(self) -> str:
        return f"{self.host}:{self.path}"

    @property
    def facts(self) -> ModelFacts:
        """The artifact's facts with those of this copy."""
        merged: dict[str, Any] = {**self.artifact.facts, **self.extra}
        return ModelFacts.from_dict(merged)


class ScannedRoot(TimeStamped):
    """A folder of a host as its newest scan found it. Which folders should be scanned: services.roots_of."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="scanned_roots")
    path = models.CharField(max_length=1000)
    problems = models.JSONField(default=list)  # list of {code, params}: what could not be looked at
    scanned_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "path"], name="scanned_root_once")]
        ordering = ["host_id", "path"]

    def __str__(self) -> str:
        return f"{self.host}:{self.path}"


from models_catalog.conversions.models import Conversion  # noqa: E402, F401
from models_catalog.downloads.models import Download, HubAccess  # noqa: E402, F401  (Django finds rows here)
