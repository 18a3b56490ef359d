"""Downloads of model files: both layouts, resuming, every kind of trouble, what is refused."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from panel.fleet.agent import download_part
from panel.fleet.agent.download_http import Trouble
from panel.fleet.agent.download_part import MAP, PART
from tests.agent.downloads import MIB, QUICK, REPO, Told, loader, noise, order
from tests.fakes.hub import Fault, Hub
from tests.waiting import until

SIZE = 5 * MIB  # in pieces of 1 MiB
KIB = 1 << 10
CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_part, "PIECE", MIB)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as made:
        files = {"config.json": CONFIG, "model.safetensors": noise(SIZE), "sub/empty.txt": b""}
        made.add(REPO, files, license="mit")
        yield made


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "hub"
    folder.mkdir()
    return folder


def left(folder: Path) -> list[str]:
    """Names of unfinished files."""
    return sorted(path.name for path in folder.rglob("*") if path.name.endswith((PART, MAP)))


def test_the_cache_is_one_that_huggingface_hub_reads_offline(hub: Hub, cache: Path, tmp_path: Path) -> None:
    made = loader(order(hub, cache), tmp_path)
    folder = made.run()
    repo = hub.repos[REPO]
    assert folder == cache / "models--acme--tiny" / "snapshots" / repo.commit and not left(cache)
    assert isinstance(made.teller, Told) and made.teller.phases == ["checking", "downloading", "verifying", "placing"]
    import huggingface_hub

    found = huggingface_hub.snapshot_download(REPO, cache_dir=cache, local_files_only=True)
    assert Path(found) == folder
    for path, file in repo.files.items():
        one = huggingface_hub.hf_hub_download(REPO, path, cache_dir=cache, local_files_only=True)
        assert Path(one).read_bytes() == file.bytes and os.readlink(one).startswith("../")  # noqa: PTH115
    scanned = huggingface_hub.scan_cache_dir(cache)
    (known,) = scanned.repos
    assert known.repo_id == REPO and not scanned.warnings and set(known.refs) == {"main"}
    assert known.size_on_disk == sum(file.size for file in repo.files.values())


def test_what_huggingface_hub_would_fetch_is_there_already(hub: Hub, cache: Path, tmp_path: Path) -> None:
    loader(order(hub, cache), tmp_path).run()
    sent = hub.sent
    import huggingface_hub

    asked = len(hub.api)
    huggingface_hub.snapshot_download(REPO, cache_dir=cache, endpoint=hub.url)
    assert hub.sent == sent and len(hub.api) > asked, "it asked, and fetched nothing"


def test_a_plain_folder(hub: Hub, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    task = order(hub, models, layout="folder", name="acme/tiny")
    folder = loader(task, tmp_path).run()
    assert folder == models / "acme" / "tiny"
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert files == {path: file.bytes for path, file in hub.repos[REPO].files.items()}
    sent = hub.sent
    loader(task, tmp_path).run()
    assert hub.sent == sent  # nothing is fetched twice


@pytest.mark.parametrize("layout", ["hf_cache", "folder"])
def test_names_of_full_length(hub: Hub, tmp_path: Path, layout: str) -> None:
    for number, name in enumerate(("m" * 246 + ".txt", "\u6a21" * 82 + ".txt")):
        hub.add(f"acme/long{number}", {"config.json": b"{}", name: b"a"})
        into = {"layout": layout, "name": "" if layout == "hf_cache" else f"long{number}"}
        made = loader(order(hub, tmp_path, f"acme/long{number}", **into), tmp_path).run()
        assert (made / name).read_bytes() == b"a" and len(list(made.iterdir())) == 2


def test_modelscope(hub: Hub, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    task = order(hub, models, layout="folder", name="tiny", source="modelscope", revision="master")
    folder = loader(task, tmp_path).run()
    assert (folder / "model.safetensors").read_bytes() == hub.repos[REPO].files["model.safetensors"].bytes


def test_contents_that_are_there_are_not_fetched_again_and_damaged_ones_are(
    hub: Hub, cache: Path, tmp_path: Path
) -> None:
    loader(order(hub, cache), tmp_path).run()
    blob = cache / "models--acme--tiny" / "blobs" / hub.repos[REPO].files["model.safetensors"].sha256
    data = bytearray(blob.read_bytes())
    data[12345] ^= 1
    blob.write_bytes(data)
    sent = hub.sent
    loader(order(hub, cache), tmp_path).run()
    assert blob.read_bytes() == hub.repos[REPO].files["model.safetensors"].bytes
    assert hub.sent - sent == SIZE
    blob.write_bytes(blob.read_bytes()[:-1])  # a copy that broke off
    loader(order(hub, cache), tmp_path).run()
    assert blob.stat().st_size == SIZE


def test_another_file_at_the_place_stays_unless_it_is_to_be_replaced(hub: Hub, tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "tiny").mkdir(parents=True)
    (models / "tiny" / "config.json").write_bytes(b"mine")
    with pytest.raises(Trouble) as caught:
        loader(order(hub, models, layout="folder", name="tiny"), tmp_path).run()
    assert caught.value.code == "folder_taken" and not hub.sent
    assert (models / "tiny" / "config.json").read_bytes() == b"mine"
    loader(order(hub, models, layout="folder", name="tiny", replace=True), tmp_path).run()
    assert (models / "tiny" / "config.json").read_bytes() == CONFIG


# --- trouble that is got over -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault("drop", after=300 * KIB),
        Fault("drop", after=0),
        Fault("short", after=500 * KIB + 17),
        Fault("status", status=503),
        Fault("status", status=429, headers={"Retry-After": "0"}),
        Fault("status", status=429, headers={"Retry-After": "1"}, where="hub"),
        Fault("status", status=403, where="cdn"),  # the signature ran out
        Fault("drop", where="hub"),
        Fault("stall", after=300 * KIB),
        Fault("silent"),
        Fault("whole"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status if fault.kind == 'status' else fault.after}-{fault.where}",
)
def test_it_ends_whole_in_spite_of(hub: Hub, cache: Path, tmp_path: Path, fault: Fault) -> None:
    hub.fail(fault, times=3)
    folder = loader(order(hub, cache, REPO, "model.safetensors"), tmp_path).run()
    assert (folder / "model.safetensors").read_bytes() == hub.repos[REPO].files["model.safetensors"].bytes
    assert not hub.queue and not left(cache)
    if fault.kind in ("drop", "short"):  # what came before the break is kept
        assert hub.sent <= SIZE + 3 * MIB


def test_the_token_goes_to_the_hub_alone(hub: Hub, cache: Path, tmp_path: Path) -> None:
    hub.tokens["hf_secret"] = "ann"
    hub.repos[REPO].gated, hub.repos[REPO].allowed = "manual", {"hf_secret"}
    made = loader(order(hub, cache), tmp_path, token="hf_secret")
    made.run()
    by_place = {(ask.where, ask.token) for ask in hub.asked}
    assert by_place == {("hub", "hf_secret"), ("cdn", "")}
    assert isinstance(made.teller, Told) and "hf_secret" not in "".join(made.teller.lines)


# --- trouble that ends it ---------------------------------------------------------------------------------------------


def failure(hub: Hub, cache: Path, tmp_path: Path, **more: object) -> Trouble:
    token = str(more.pop("token", ""))
    with pytest.raises(Trouble) as caught:
        loader(order(hub, cache, **more), tmp_path, token=token).run()  # type: ignore[arg-type]  # fields of the order
    assert not list(cache.glob("models--*/snapshots/*/*"))
    return caught.value


def test_wrong_content_is_never_shown_and_the_next_try_fetches_it_anew(hub: Hub, cache: Path, tmp_path: Path) -> None:
    hub.fail(Fault("wrong", path=".safetensors", where="cdn"))
    found = failure(hub, cache, tmp_path)
    assert found.code == "wrong_hash" and found.params["file"] == "model.safetensors" and not left(cache)
    sent = hub.sent
    loader(order(hub, cache), tmp_path).run()
    assert hub.sent - sent == SIZE  # and nothing but it


def unknown(*args: object, **more: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize(
    ("change", "code", "params"),
    [
        ({"gated": "auto"}, "gated", {"status": 401}),
        ({"private": True}, "not_found", {"what": "repo"}),
        ({"revision": "nobranch"}, "not_found", {"what": "revision"}),
        ({"token": "hf_wrong"}, "unauthorized", {"status": 401, "token": True}),
        ({"endpoint": "http://127.0.0.1:9"}, "offline", {"host": "127.0.0.1"}),
        ({"endpoint": "http://hub.invalid"}, "dns", {"host": "hub.invalid"}),
        ({"endpoint": "http://169.254.169.254"}, "address_not_allowed", {"why": "link_local"}),
        ({"proxy": "http://127.0.0.1:9"}, "proxy", {}),
    ],
)
def test_each_cause_has_its_code(
    hub: Hub,
    cache: Path,
    tmp_path: Path,
    change: dict[str, object],
    code: str,
    params: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if code == "dns":
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for name in ("gated", "private"):
        if name in change:
            setattr(hub.repos[REPO], name, change.pop(name))
    found = failure(hub, cache, tmp_path, **change)
    assert found.refusal.code == f"download.{code}" and found.params.items() >= params.items()


@pytest.mark.slow
def test_a_certificate_that_nobody_knows(hub: Hub, cache: Path, tmp_path: Path) -> None:
    assert failure(hub, cache, tmp_path, endpoint=hub.url.replace("http:", "https:")).code == "tls"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault("status", status=429, headers={"Retry-After": "3600"}), "rate_limited"),
        (Fault("status", status=429), "rate_limited"),
        (Fault("status", status=500), "server_error"),
        (Fault("status", status=404, where="hub"), "not_found"),
        (Fault("other_size"), "changed"),
        (Fault("stall", after=300 * KIB), "stalled"),
        (Fault("drop", after=0, where="cdn"), "connection_lost"),
    ],
)
def test_what_goes_on_for_too_long_ends_it(hub: Hub, cache: Path, tmp_path: Path, fault: Fault, code: str) -> None:
    if fault.kind == "stall":
        stuck(hub)
    else:
        hub.chance = lambda ask: fault
    assert failure(hub, cache, tmp_path).code == code


def stuck(hub: Hub, after: int = 300 * KIB) -> None:
    """The first requests give something, and then nothing more comes."""
    hub.chance = lambda ask: Fault("stall", after=after) if hub.sent < 2 * after else Fault("silent")


def test_no_room_is_said_before_a_byte_comes(hub: Hub, cache: Path, tmp_path: Path) -> None:
    made = loader(order(hub, cache), tmp_path, disk_free=lambda folder: 3 * MIB)
    with pytest.raises(Trouble) as caught:
        made.run()
    assert (caught.value.code, caught.value.params["free_mib"]) == ("no_space", 3) and not hub.sent


def test_a_disk_that_runs_full_meanwhile_stops_it_and_keeps_what_came(hub: Hub, cache: Path, tmp_path: Path) -> None:
    free = iter([1 << 40])
    hub.chance = lambda ask: Fault("slow", rate=MIB)
    made = loader(order(hub, cache), tmp_path, disk_free=lambda folder: next(free, 0))
    with pytest.raises(Trouble) as caught:
        made.run()
    assert caught.value.code == "disk_full" and left(cache)


# --- going on ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_process_goes_on_where_one_stopped(hub: Hub, cache: Path, tmp_path: Path) -> None:
    stuck(hub, after=900 * KIB)
    failure(hub, cache, tmp_path)
    there = [path for path in cache.rglob(f"*{PART}") if path.stat().st_size == SIZE]
    assert len(there) == 1
    hub.chance, before = lambda ask: None, hub.sent
    loader(order(hub, cache), tmp_path).run()
    assert before >= 1800 * KIB and hub.sent in (SIZE, SIZE + len(CONFIG))


@pytest.mark.slow
def test_a_second_download_of_the_same_waits_for_the_first(hub: Hub, cache: Path, tmp_path: Path) -> None:
    hub.chance = lambda ask: Fault("slow", rate=5 * MIB)
    first, second = (loader(order(hub, cache), tmp_path) for _ in range(2))
    threads = [threading.Thread(target=one.run, daemon=True) for one in (first, second)]
    threads[0].start()
    until(lambda: hub.sent > 0)
    threads[1].start()
    assert isinstance(second.teller, Told)
    until(lambda: second.teller.phases == ["waiting"])  # type: ignore[attr-defined]  # Told, as above
    for thread in threads:
        thread.join(30)
    assert hub.sent == SIZE + len(CONFIG)


@pytest.mark.slow
def test_what_is_discarded_is_gone(hub: Hub, cache: Path, tmp_path: Path) -> None:
    stuck(hub)
    failure(hub, cache, tmp_path)
    assert left(cache)
    assert loader(order(hub, cache, discard=True), tmp_path).discard() > 0
    assert not list(cache.glob("models--*"))


@pytest.mark.slow
def test_the_speed_limit_holds(hub: Hub, cache: Path, tmp_path: Path) -> None:
    begun = time.monotonic()
    loader(order(hub, cache, limit_mib_s=2.5), tmp_path).run()
    assert time.monotonic() - begun > 1.5
    assert QUICK.read_s < 1.5  # and no pause of it was taken for silence
