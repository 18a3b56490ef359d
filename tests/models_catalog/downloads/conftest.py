"""A hub on loopback, a host with two folders, people of each role."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.utils import timezone

from models_catalog.downloads import catalogue, picks, services
from models_catalog.downloads.models import Download
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.fleet import reports, wire
from panel.fleet.models import Host, Job
from tests.fakes.hub import Hub

CONFIG = (
    b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 16, '
    b'"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 2048}'
)
TINY = {"config.json": CONFIG, "model.safetensors": b"w" * 5000, "tokenizer.json": b"{}"}
GGUF = {"tiny-Q4_K_M.gguf": b"q" * 3000, "tiny-Q8_0.gguf": b"g" * 6000, "README.md": b"# Tiny"}
FOLDERS = ["/srv/hf/hub", "/srv/models"]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    monkeypatch.setattr("models_catalog.downloads.events.send", lambda job_id: None)
    monkeypatch.setattr("models_catalog.events.send", lambda job_id: None)


@pytest.fixture
def hub(settings: Any) -> Iterator[Hub]:
    with Hub() as running:
        running.add("acme/tiny", TINY, license="apache-2.0", downloads=1200)
        running.add("acme/tiny-gguf", GGUF, license="mit", downloads=90)
        settings.HF_ENDPOINT = settings.BERTH_MODELSCOPE_ENDPOINT = running.url
        yield running


@pytest.fixture
def host(db: None) -> Host:
    now = timezone.now()
    facts = {
        "hostname": "quay", "os": "Linux", "kernel": "6", "machine": "x86_64", "cpu_count": 2, "ram_total_mib": 16_000,
        "ram_available_mib": 9000, "python": "3.12.3", "boot_time": 1.0, "agent_started": 2.0, "model_roots": FOLDERS,
        "disks": [{"path": "/srv/hf/hub", "total_mib": 90_000, "free_mib": 50_000}],
    }  # fmt: skip
    return Host.objects.create(
        name="quay", token_hash="h", facts=facts, last_seen_at=now, facts_at=now, ram_total_mib=16_000
    )


def person(role: str, name: str = "") -> Actor:
    user, _made = User.objects.get_or_create(username=name or role, defaults={"role": role})
    return Actor.from_user(user, via="browser")


@pytest.fixture
def otto(db: None) -> Actor:
    return person("operator", "otto")


@pytest.fixture
def wish(hub: Hub, host: Host, otto: Actor) -> Callable[..., services.Wish]:
    """What the hub tells of a repository now, as something to fetch."""

    def make(repo: str = "acme/tiny", *, key: str = "", folder: str = FOLDERS[0], **more: Any) -> services.Wish:
        asker = services.asker(more.pop("source", "huggingface"), otto)
        told = catalogue.repository(asker, repo)
        found = picks.choices(told.files)
        choice = next(choice for choice in found if key in ("", choice.label, choice.key))
        return services.Wish(asker.hub, told, choice, folder, **more)

    return make


def say(host: Host, job: Job | None, **status: Any) -> None:
    """The host tells of a job, and the nudge arrives."""
    from models_catalog.downloads import outcomes

    assert job is not None
    values = {"id": str(job.pk), "kind": job.kind, "state": "running", "started_at": 1.0, **status}
    report = {"agent_version": "1", "sent_at": 1.0, "rev": 1, "jobs": [values]}
    host.refresh_from_db()
    reports.take_report(host, wire.Report.model_validate(report))
    outcomes.take(job.pk)


def result(quay: Host, job: Job | None, *items: dict[str, Any], code: str = "", **params: Any) -> None:
    """The job's result, after its end was told."""
    from models_catalog.downloads import outcomes

    assert job is not None
    say(quay, job, state="ended", exit_code=0, ended_at=2.0, stop_asked=code == "stopped")
    refusal = {"code": code, "params": params} if code else None
    reports.take_result(quay, job.pk, wire.JobResult.model_validate({"items": list(items), "refusal": refusal}))
    outcomes.take(job.pk)


def again(row: Download) -> Download:
    return Download.objects.select_related("host", "job").get(pk=row.pk)


MADE = {"path": "/srv/hf/hub/models--acme--tiny/snapshots/abc", "root": "/srv/hf/hub", "format": "hf", "name": "acme/tiny",
        "size_bytes": 5000, "files": 3}  # fmt: skip
