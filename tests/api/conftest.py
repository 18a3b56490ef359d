"""Programs with tokens of every kind, and a world with one row of everything."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from panel.accounts import links
from panel.accounts.models import ApiToken, Secret, User
from panel.accounts.services import create_token
from panel.fleet.models import RuntimeInstall
from tests.deployments import builders


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


def person(role: str, name: str = "") -> User:
    user, _made = User.objects.get_or_create(username=name or f"{role}-1", defaults={"role": role})
    return user


def program(user: User, scope: str = "api:write", **more: Any) -> Client:
    """A client with a token of this person; CSRF is checked as in real life."""
    _row, plain = create_token(user, f"{scope} token", actor=user, scope=scope, **more)
    return Client(enforce_csrf_checks=True, headers={"Authorization": f"Bearer {plain}"})


@pytest.fixture
def as_(db: None) -> Callable[..., Client]:
    def make(role: str, scope: str = "api:write", **more: Any) -> Client:
        return program(person(role), scope, **more)

    return make


@pytest.fixture
def world(db: None) -> dict[str, Any]:
    host = builders.make_host(gpus=1)
    copy = builders.make_copy(host)
    row = builders.make_deployment(copy, state="ready")
    run = builders.make_run(row, copy)
    builders.ready(row, run)
    return {"host": host, "copy": copy, "row": row, "run": run}


@pytest.fixture
def places(world: dict[str, Any]) -> dict[str, str]:
    """What stands for each parameter of an address: rows that are there."""
    host = world["host"]
    runtime = host.runtimes.create(engine="vllm", executable="/engines/vllm-cpu-1/bin/vllm", origin="managed")
    install = RuntimeInstall.objects.create(host=host, variant="cpu", name="vllm-cpu-1", state="failed", runtime=runtime,
                                            refusal={"code": "install.no_space", "params": {}})  # fmt: skip
    invitation, _url = links.invite(label="Mina", role="viewer", actor=person("admin", "inviting"))
    token = ApiToken.objects.create(user=person("viewer"), name="t", token_hash="x", prefix="berth_")
    rows = {
        "deployment_id": world["row"], "run_id": world["run"], "model_id": world["copy"].artifact.model, "host_id": host,
        "runtime_id": runtime, "install_id": install, "token_id": token, "user_id": person("viewer"),
        "invitation_id": invitation, "download_id": builders.make_download(host), "conversion_id": builders.make_conversion(world["copy"]), "copy_id": builders.make_copy(host, "Unused-1B"), "artifact_id": world["copy"].artifact,
    }  # fmt: skip
    Secret.objects.create(name="hf-token", value=b"", given_by="ada")
    return {**{name: str(row.pk) for name, row in rows.items()}, "fix_id": "0a1b2c3d4e5f", "name": "hf-token"}
