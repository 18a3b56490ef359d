"""What could run: a model as the team names it, its artifacts, and where copies of them lie."""

from django.db import models

from panel.core.models import TimeStamped
from panel.fleet.models import Host


class CatalogModel(TimeStamped):
    """One entry of the shelf, e.g. "SmolLM2-135M-Instruct"; several artifacts (formats, quantisations) may serve it."""

    name = models.CharField(max_length=200, unique=True)
    notes = models.TextField(blank=True)
    allow_remote_code = models.BooleanField(default=False)  # an admin's decision, audited

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Artifact(TimeStamped):
    """One servable form of a model: a Hugging Face folder or a GGUF file set. `facts` is ModelFacts as a dict."""

    model = models.ForeignKey(CatalogModel, on_delete=models.CASCADE, related_name="artifacts")
    format = models.CharField(max_length=8)  # hf, gguf
    label = models.CharField(max_length=200)  # e.g. "bfloat16", "Q4_K_M"
    fingerprint = models.CharField(max_length=64)  # SHA-256 of names, sizes and header: the same bytes on two hosts
    size_bytes = models.BigIntegerField(default=0)
    facts = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model", "fingerprint"], name="artifact_once_per_model")]
        ordering = ["model_id", "format", "label"]

    def __str__(self) -> str:
        return f"{self.model} ({self.label})"


class Copy(TimeStamped):
    """An artifact on a host's disk. A vanished copy is kept with `present` false, since old runs name it."""

    artifact = models.ForeignKey(Artifact, on_delete=models.CASCADE, related_name="copies")
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="copies")
    path = models.CharField(max_length=1000)
    root = models.CharField(max_length=1000, blank=True)
    present = models.BooleanField(default=True)
    problems = models.JSONField(default=list)  # list of {code, params}
    seen_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "path"], name="copy_once_per_path")]
        ordering = ["host_id", "path"]

    def __str__(self) -> str:
        return f"{self.host}:{self.path}"
