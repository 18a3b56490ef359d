"""From the result of a scan to rows: same bytes on two hosts, moved and vanished copies, bad items, flat queries."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from models_catalog import queries
from models_catalog.inspect.scan import scan_roots
from models_catalog.models import Artifact, CatalogModel, Copy, ScannedRoot
from models_catalog.services import record_scan
from panel.fleet.models import Host
from tests.models_catalog.builders import gguf_bytes, hf_cache, hf_folder, safetensors_bytes

pytestmark = pytest.mark.django_db


def make_host(name: str = "atlas") -> Host:
    return Host.objects.create(name=name, token_hash=name)


def scan(*roots: Path) -> list[dict[str, Any]]:
    return list(scan_roots(list(roots)))


def item(n: int, **changes: Any) -> dict[str, Any]:
    facts = {"format": "hf", "fingerprint": f"{n:064x}", "label": "bfloat16", "tasks": ["generate"]}
    base = {"path": f"/m/{n}", "root": "/m", "format": "hf", "name": f"model-{n}", "size_bytes": n, "files": 1}
    return {**base, "facts": facts, "problems": [], **changes}


def folder(path: str = "/m", *codes: str) -> dict[str, Any]:
    base = {"path": path, "root": path, "format": "folder", "name": "m", "size_bytes": 0, "files": 0, "facts": {}}
    return {**base, "problems": [{"code": code, "params": {}} for code in codes]}


def test_a_real_scan_becomes_rows(tmp_path: Path) -> None:
    hf_folder(tmp_path / "千问")
    (tmp_path / "Tiny-Q4_0.gguf").write_bytes(gguf_bytes())
    (tmp_path / "empty.gguf").write_bytes(b"")
    host = make_host()
    outcome = record_scan(host, scan(tmp_path))
    assert (outcome.seen, outcome.gone, outcome.unreadable) == (3, 0, 0)
    assert set(CatalogModel.objects.values_list("name", flat=True)) == {"千问", "Tiny", "empty"}
    whole, broken = Copy.objects.get(path=str(tmp_path / "千问")), Copy.objects.get(path=str(tmp_path / "empty.gguf"))
    assert (whole.usable, whole.problems, whole.facts.tasks) == (True, [], ["generate"])
    assert (broken.usable, broken.problems[0]["code"]) == (False, "zero_bytes")
    assert ScannedRoot.objects.get(path=str(tmp_path)).problems == []


def test_the_same_result_twice_changes_nothing(tmp_path: Path) -> None:
    hf_folder(tmp_path / "m")
    host = make_host()
    record_scan(host, scan(tmp_path))
    before = [list(model.objects.order_by("pk").values()) for model in (CatalogModel, Artifact)]
    record_scan(host, scan(tmp_path))
    assert [list(model.objects.order_by("pk").values()) for model in (CatalogModel, Artifact)] == before
    assert Copy.objects.count() == 1


def test_equal_models_on_two_hosts_are_one_artifact(tmp_path: Path) -> None:
    hf_folder(tmp_path / "one" / "Qwen3")
    hf_cache(tmp_path / "two", "Qwen/Qwen3")
    record_scan(make_host("atlas"), scan(tmp_path / "one"))
    record_scan(make_host("borealis"), scan(tmp_path / "two"))
    artifact = Artifact.objects.get()
    assert artifact.model.name == "Qwen3"
    assert sorted(copy.host.name for copy in artifact.copies.all()) == ["atlas", "borealis"]
    assert artifact.copies.get(host__name="borealis").facts.refs == ["main"]
    assert artifact.copies.get(host__name="atlas").facts.refs == []


def test_an_edited_folder_stays_the_same_artifact(tmp_path: Path) -> None:
    host = make_host()
    path = hf_folder(tmp_path / "m")
    record_scan(host, scan(tmp_path))
    artifact = Artifact.objects.get()
    (path / "model.safetensors").write_bytes(safetensors_bytes({"a": ("F32", [7])}))
    record_scan(host, scan(tmp_path))
    again = Artifact.objects.get()
    assert again.pk == artifact.pk
    assert again.fingerprint != artifact.fingerprint
    assert again.facts["parameters"] == 7


def test_a_half_copy_that_becomes_whole_joins_the_known_artifact(tmp_path: Path) -> None:
    record_scan(make_host("atlas"), scan(hf_folder(tmp_path / "a" / "m").parent))
    other = make_host("borealis")
    path = hf_folder(tmp_path / "b" / "m", model__safetensors=None)
    record_scan(other, scan(path.parent))
    assert Artifact.objects.count() == 2
    hf_folder(path)
    record_scan(other, scan(path.parent))
    assert Artifact.objects.get().copies.count() == 2
    assert CatalogModel.objects.count() == 1


def test_what_is_not_seen_any_more_is_kept_as_gone_and_comes_back() -> None:
    host, other = make_host(), make_host("borealis")
    record_scan(host, [item(1), item(2), folder()])
    record_scan(other, [item(2), folder()])
    assert record_scan(host, [item(1), folder()]).gone == 1
    assert not Copy.objects.get(host=host, path="/m/2").present
    assert Copy.objects.get(host=other, path="/m/2").present
    record_scan(host, [item(1), item(2), folder()])
    assert Copy.objects.get(host=host, path="/m/2").present


@pytest.mark.parametrize("code", ["too_many_entries", "not_scanned"])
def test_an_unfinished_scan_says_nothing_about_what_it_did_not_see(code: str) -> None:
    host = make_host()
    record_scan(host, [item(1), folder()])
    record_scan(host, [folder("/m", code)])
    assert Copy.objects.get().present


def test_a_folder_that_could_not_be_entered_keeps_its_models() -> None:
    host = make_host()
    record_scan(host, [item(1, path="/m/locked/x"), item(2), folder()])
    locked = {"code": "no_permission", "params": {"folder": "/m/locked"}}
    record_scan(host, [{**folder(), "problems": [locked]}])
    assert {copy.path: copy.present for copy in Copy.objects.all()} == {"/m/locked/x": True, "/m/2": False}


def test_a_root_that_was_not_scanned_keeps_its_models_and_a_missing_one_loses_them() -> None:
    host = make_host()
    record_scan(host, [item(1), item(2, path="/n/2", root="/n"), item(3, path="/mm/3", root="/mm"), folder("/m")])
    record_scan(host, [folder("/m", "root_missing")])
    assert {copy.path: copy.present for copy in Copy.objects.all()} == {"/m/1": False, "/n/2": True, "/mm/3": True}


def test_an_older_result_that_comes_late_is_left_out() -> None:
    host, now = make_host(), timezone.now()
    record_scan(host, [item(1), folder()], seen_at=now)
    record_scan(host, [folder()], seen_at=now - timedelta(minutes=1))
    assert Copy.objects.get().present


def test_unreadable_items_are_counted_and_the_rest_is_taken() -> None:
    host = make_host()
    bad = [item(1, format="zip"), {"nonsense": True}, item(2, facts={"layers": "many"})]
    outcome = record_scan(host, [*bad, item(3), folder()])
    assert (outcome.seen, outcome.unreadable) == (1, 3)
    assert ScannedRoot.objects.get(path="").problems == [{"code": "unreadable_items", "params": {"n": 3}}]


def test_names_that_try_something_are_only_names() -> None:
    names = ["<script>alert(1)</script>", "'; DROP TABLE fleet_host; --", "../../etc/passwd", "千问 三", "x" * 500]
    record_scan(make_host(), [*(item(n, name=name) for n, name in enumerate(names)), folder()])
    assert set(CatalogModel.objects.values_list("name", flat=True)) == {*names[:4], "x" * 200}


def _writing(host: Host, items: Callable[[], list[dict[str, Any]]]) -> int:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        record_scan(host, items())
    return len(queries)


def test_the_number_of_statements_does_not_grow_with_the_models() -> None:
    host = make_host()
    few = _writing(host, lambda: [*(item(n) for n in range(5)), folder()])
    many = _writing(make_host("borealis"), lambda: [*(item(n + 10_000) for n in range(1000)), folder()])
    assert many == few
    again = _writing(host, lambda: [*(item(n) for n in range(5)), folder()])
    again_many = _writing(
        Host.objects.get(name="borealis"), lambda: [*(item(n + 10_000) for n in range(1000)), folder()]
    )
    assert again_many == again < 20
    # All of them change under their path at once.
    changed = _writing(
        host, lambda: [*(item(n, facts={"fingerprint": f"{n + 70_000:064x}"}) for n in range(5)), folder()]
    )
    changed_many = _writing(
        Host.objects.get(name="borealis"),
        lambda: [*(item(n + 10_000, facts={"fingerprint": f"{n + 80_000:064x}"}) for n in range(1000)), folder()],
    )
    assert changed_many == changed


def test_a_hosts_sum_counts_shared_files_once(tmp_path: Path) -> None:
    hf_cache(tmp_path, "org/m", "a" * 40)
    hf_cache(tmp_path, "org/m", "b" * 40)
    host = make_host()
    record_scan(host, scan(tmp_path))
    (view,) = queries.hosts()
    assert view.models == 2
    assert view.bytes == Artifact.objects.first().size_bytes
