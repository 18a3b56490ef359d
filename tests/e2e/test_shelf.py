"""Copies are deleted, and a model's own code is compared, by the living agent: pages, panel, host and disk agree."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import Client

from deployments import services as deployments
from models_catalog import services, shelf
from models_catalog.models import CatalogModel, Copy
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet import services as fleet
from panel.fleet import wire
from panel.fleet.models import Job
from tests.e2e.stack import Stack
from tests.fakes.make_engine import make_fake_model
from tests.models_catalog.builders import hf_cache
from tests.models_catalog.zoo.gguf_models import LLAMA, TINY, split
from tests.waiting import until

MIB = 1 << 20
NEVER = {"restart": {"policy": "never"}}


class Admin:
    """Someone with a browser who may delete and trust."""

    def __init__(self, stack: Stack) -> None:
        self.user, _made = User.objects.get_or_create(username="the admin", defaults={"role": "admin"})
        client = Client()
        client.force_login(self.user)
        cookies = {name: morsel.value for name, morsel in client.cookies.items()}
        self.http = httpx.Client(base_url=stack.url, cookies=cookies, timeout=30, headers={"Accept": "text/html"})
        self.stack = stack

    def see(self, path: str) -> str:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text[:500]
        return answer.text.replace("\u00a0", " ")

    def post(self, page: str, path: str, **values: Any) -> httpx.Response:
        token = self.see(page).split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        headers = {"Referer": f"{self.stack.url}{page}", "Sec-Fetch-Mode": "navigate"}
        return self.http.post(path, data={"csrfmiddlewaretoken": token, **values}, headers=headers)

    def delete(self, copy: Copy, **values: Any) -> httpx.Response:
        where = f"/models/copies/{copy.pk}/delete"
        return self.post(where, where, **values)


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Iterator[Admin]:
    found = Admin(stack)
    yield found
    found.http.close()


def copy_at(path: Path) -> Copy:
    return until(
        lambda: Copy.objects.filter(path=str(path), present=True).select_related("artifact__model").first(),
        why=f"{path} is in the catalog",
    )


def held(folder: Path) -> int:
    """Bytes of the disk below a folder."""
    return sum(Path(top, name).lstat().st_blocks * 512 for top, _folders, files in os.walk(folder) for name in files)


def gone(stack: Stack, copy: Copy) -> int:
    """Wait for the end of its deletion; the bytes that came back by the record."""
    try:
        until(lambda: not Copy.objects.get(pk=copy.pk).present, timeout=30, why="the copy is gone")
    except AssertionError as exc:
        row = Copy.objects.get(pk=copy.pk)
        raise AssertionError(f"{exc}; {row.delete_refusal} {row.delete_job}\n{stack.logs()}") from None
    event = Event.objects.filter(verb="model.deleted", facts__path=copy.path).get()
    return int(event.facts["freed_bytes"])


def test_a_folder_goes_when_nothing_runs_from_it(stack: Stack, admin: Admin) -> None:
    folder = make_fake_model(stack.models / "Small-Reader")
    (folder / "model-notes.bin").write_bytes(os.urandom(3 * MIB))
    stack.scan()
    copy = copy_at(folder)
    row = stack.deploy("reader", "Small-Reader", **NEVER)
    stack.wait_for(row, "ready")
    answer = admin.delete(copy, confirmed="1")
    assert answer.status_code == 422 and "reader runs from these files now." in answer.text
    # Also the host itself refuses, whatever a panel orders.
    job = fleet.order_job(host=stack.host(), task=wire.DeleteTask(paths=[copy.path]))
    until(lambda: Job.objects.get(pk=job.pk).state in ("refused", "ended"), timeout=20, why="the host answered")
    assert Job.objects.get(pk=job.pk).status["refusal"]["code"] == "delete.in_use"
    assert (folder / "config.json").exists() and stack.state(row) == "ready"

    deployments.stop(row, actor=None)
    stack.wait_for(row, "stopped")
    page = admin.see(f"/models/copies/{copy.pk}/delete")
    assert "This is the last copy for:" in page and "reader" in page
    assert admin.delete(copy).status_code == 422
    before = held(stack.models)
    assert admin.delete(copy, confirmed="1").status_code == 302
    freed = gone(stack, copy)
    assert not folder.exists() and freed >= 3 * MIB
    assert before - held(stack.models) == freed
    assert "Small-Reader" not in admin.see("/models/") and "Small-Reader" in admin.see("/models/?show=gone")
    assert "deleted" in admin.see(f"/models/{copy.artifact.model_id}/")
    verbs = Event.objects.filter(verb__startswith="model.delete").order_by("pk").values_list("verb", flat=True)
    assert list(verbs) == ["model.delete_asked", "model.deleted"]
    activity = admin.see("/activity")
    assert "had a copy of" in activity and "Small-Reader" in activity


def test_a_snapshot_goes_and_what_others_share_stays(stack: Stack, admin: Admin) -> None:
    old = hf_cache(stack.models, "org/shared", "a" * 40, ref="v1")
    new = hf_cache(stack.models, "org/shared", "b" * 40)
    own = new / "README.md"
    blob = old.parent.parent / "blobs" / "own"
    blob.write_bytes(os.urandom(2 * MIB))
    own.symlink_to(Path("..", "..", "blobs", "own"))
    (new / "config.json").unlink()
    (new / "config.json").write_text((old / "config.json").read_text().replace("2048", "4096"))
    stack.scan()
    kept, copy = copy_at(old), copy_at(new)
    admin.delete(copy)
    freed = gone(stack, copy)
    assert 2 * MIB <= freed < 2 * MIB + 64 * 1024
    assert not new.exists() and not blob.exists()
    assert (old / "model.safetensors").read_bytes(), "the other revision needs these"
    stack.scan()
    kept.refresh_from_db()
    assert kept.present and kept.usable


def test_all_parts_of_a_split_file_go_and_no_neighbour(stack: Stack, admin: Admin) -> None:
    folder = stack.models / "parts"
    folder.mkdir()
    split("big", 3, LLAMA, TINY)(folder)
    split("other", 2, LLAMA, [*TINY, ("blk.9.attn_q.weight", [256, 256], 8)])(folder)
    stack.scan()
    copy, other = copy_at(folder / "big-00001-of-00003.gguf"), copy_at(folder / "other-00001-of-00002.gguf")
    before = held(folder)
    admin.delete(copy)
    assert gone(stack, copy) == before - held(folder) > 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "other-00001-of-00002.gguf",
        "other-00002-of-00002.gguf",
    ]
    other.refresh_from_db()
    assert other.present


def test_own_code_runs_as_it_was_allowed_or_not_at_all(stack: Stack, admin: Admin) -> None:
    folder = make_fake_model(stack.models / "owncode")
    config = folder / "config.json"
    config.write_text(config.read_text().replace("{", '{"auto_map": {"AutoModel": "modeling.M"},', 1))
    (folder / "modeling.py").write_text("class M: pass\n")
    services.look_again(stack.host())
    model = copy_at(folder).artifact.model
    shelf.set_remote_code(model, True, actor=Actor.from_user(admin.user))
    row = stack.deploy("own-code", "owncode", **NEVER)
    stack.wait_for(row, "ready")
    assert "--trust-remote-code" in row.run.job.status["argv"]
    loaded = Path(row.run.job.status["argv"][2])
    assert loaded != folder and (loaded / "modeling.py").read_text() == "class M: pass\n"
    job = fleet.order_job(host=stack.host(), task=wire.DeleteTask(paths=[str(folder)]))
    until(lambda: Job.objects.get(pk=job.pk).state == "refused", timeout=20, why="what it reads stays")

    (folder / "modeling.py").write_text("import os\n")  # no look at the folders comes in between
    assert (loaded / "modeling.py").read_text() == "class M: pass\n", "what runs is what was allowed"
    deployments.restart(row, actor=None)
    stack.wait_for(row, "failed")
    assert row.reason["code"] == "code_changed" and row.run.job.status.get("pid") is None
    assert "not what an admin allowed: modeling.py" in admin.see(f"/deployments/{row.pk}/")
    until(lambda: not CatalogModel.objects.get(pk=model.pk).allow_remote_code, timeout=20, why="the trust ended")
    event = Event.objects.get(verb="model.code_withdrawn")
    assert event.facts["files"] == ["modeling.py"] and event.facts["at_start"]
    page = admin.see(f"/models/{model.pk}/")
    assert "Its code changed, so it may not run any more." in page
    wanted = [["modeling.py", hashlib.sha256(b"import os\n").hexdigest()]]
    until(lambda: shelf.code_of(shelf.copies_of(model)) == wanted, timeout=20, why="the new files are listed")
    shelf.set_remote_code(model, True, actor=Actor.from_user(admin.user))
    deployments.start(row, actor=None)
    stack.wait_for(row, "ready")
