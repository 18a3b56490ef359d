"""What the panel and the hosts read of a hub is what huggingface_hub reads of the same one, answer by answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from models_catalog.downloads import catalogue, hubs
from models_catalog.downloads.asking import Asker, HubTrouble
from models_catalog.downloads.models import Source
from panel.fleet.agent.download_http import Trouble
from tests.agent.downloads import loader, order
from tests.fakes.hub import Fault, Hub

REPO = "acme/tiny"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model-00001-of-00002.safetensors": b"w" * 700,
    "model-00002-of-00002.safetensors": b"v" * 300,
    "sub/folder/tokenizer.json": b"{}",
    "empty.txt": b"",
    "a name with blanks & ümlaut.json": b"[1]",
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    assert not constants.HF_HUB_OFFLINE, "huggingface_hub would answer from its cache"
    with Hub() as running:
        running.tokens["hf_reads"] = "ann"
        running.add(REPO, FILES, license="apache-2.0", downloads=1200, likes=3, tags=["safetensors"])
        running.add("acme/tiny-gguf", {"tiny-Q8_0.gguf": b"g" * 300}, license="mit", downloads=90)
        running.add("acme/tiny-closed", {"config.json": b"{}"}, gated="manual", allowed={"hf_reads"}, downloads=4000)
        running.add("acme/own", {"config.json": b"{}"}, private=True, allowed={"hf_reads"})
        yield running


def theirs(hub: Hub, token: str = "") -> HfApi:
    return HfApi(endpoint=hub.url, token=token or False)


def ours(hub: Hub, token: str = "") -> Asker:
    return Asker(hubs.HubAt(Source.HUGGINGFACE, hub.url), token)


# --- search -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["tiny", "TINY-GGUF", "acme", "own", "nothing of that kind"])
def test_a_search_finds_the_same_models(hub: Hub, words: str) -> None:
    found = list(theirs(hub).list_models(search=words, sort="downloads", limit=catalogue.FOUND, cardData=True))
    mine = catalogue.search(ours(hub), words)
    assert [row.repo for row in mine] == [info.id for info in found]
    for row, info in zip(mine, found, strict=True):
        told = (info.downloads, info.likes, bool(info.gated), info.pipeline_tag)
        assert (row.downloads, row.likes, row.gated, row.task) == told
        assert row.licence == (info.card_data.license if info.card_data else "")
        assert row.updated == (info.last_modified.date().isoformat() if info.last_modified else "")
        assert list(row.tags) == info.tags


# --- one repository ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("repo", "token"), [(REPO, ""), ("acme/tiny-closed", ""), ("acme/own", "hf_reads")])
def test_a_repository_is_the_same_at_the_same_commit(hub: Hub, repo: str, token: str) -> None:
    info = theirs(hub, token).model_info(repo, files_metadata=True)
    mine = catalogue.repository(ours(hub, token), repo)
    assert (mine.found.repo, mine.commit, mine.found.gated) == (info.id, info.sha, bool(info.gated))
    assert {file.path: (file.size, file.sha256, file.etag) for file in mine.files} == {
        one.rfilename: (one.size, one.lfs.sha256 if one.lfs else "", one.blob_id) for one in info.siblings or []
    }
    refs = theirs(hub, token).list_repo_refs(repo)
    assert set(mine.refs) == {ref.name for ref in [*refs.branches, *refs.tags]}


@pytest.mark.parametrize("entries", [1, 2, 1000])
def test_a_tree_that_comes_in_parts_is_the_same(hub: Hub, entries: int) -> None:
    hub.page = entries
    tree = theirs(hub).list_repo_tree(REPO, recursive=True, revision="main")
    found = {
        one.path: (one.size, one.lfs.sha256 if one.lfs else "", one.blob_id)
        for one in tree
        if isinstance(one, RepoFile)
    }
    mine = catalogue.repository(ours(hub), REPO, "main")
    assert {file.path: (file.size, file.sha256, file.etag) for file in mine.files} == found and len(found) == len(FILES)


def test_what_a_host_compares_with_is_what_huggingface_hub_calls_the_content(hub: Hub) -> None:
    for file in catalogue.repository(ours(hub), REPO).files:
        address = hf_hub_url(REPO, file.path, endpoint=hub.url)
        meta = get_hf_file_metadata(address, token=False, endpoint=hub.url)
        assert (meta.etag, meta.size, meta.commit_hash) == (file.sha256 or file.etag, file.size, hub.repos[REPO].commit)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repo", "ref", "token", "error", "code", "what"),
    [
        ("acme/none", "main", "", RepositoryNotFoundError, "not_found", "repo"),
        ("acme/none", "main", "hf_reads", RepositoryNotFoundError, "not_found", "repo"),
        ("acme/own", "main", "", RepositoryNotFoundError, "not_found", "repo"),
        (REPO, "no-branch", "", RevisionNotFoundError, "not_found", "revision"),
        (REPO, "main", "hf_wrong", HfHubHTTPError, "unauthorized", None),
    ],
)
def test_a_refusal_means_the_same(
    hub: Hub, repo: str, ref: str, token: str, error: type[Exception], code: str, what: str | None
) -> None:
    with pytest.raises(error):
        theirs(hub, token).model_info(repo, revision=ref)
    with pytest.raises(HubTrouble) as caught:
        catalogue.repository(ours(hub, token), repo, ref)
    assert (caught.value.code, caught.value.params.get("what")) == (f"download.{code}", what)


@pytest.mark.parametrize(
    ("repo", "path", "token", "error", "code"),
    [
        ("acme/tiny-closed", "config.json", "", GatedRepoError, "gated"),
        ("acme/own", "config.json", "", RepositoryNotFoundError, "not_found"),
        (REPO, "none.json", "", EntryNotFoundError, "not_found"),
    ],
)
def test_a_file_that_is_refused_is_refused_for_the_same_reason(
    hub: Hub, tmp_path: Path, repo: str, path: str, token: str, error: type[Exception], code: str
) -> None:
    with pytest.raises(error):
        hf_hub_download(repo, path, endpoint=hub.url, cache_dir=tmp_path / "theirs", token=token or False)
    task = order(hub, tmp_path / "ours", repo)
    task = task.model_copy(update={"files": [task.files[0].model_copy(update={"path": path})]})
    (tmp_path / "ours").mkdir()
    with pytest.raises(Trouble) as caught:
        loader(task, tmp_path, token=token).run()
    assert caught.value.code == code


# --- the cache --------------------------------------------------------------------------------------------------------


def cached(folder: Path) -> dict[str, Any]:
    """The cache of a repository: contents, links and branches, without what either keeps for itself."""
    base = folder / "models--acme--tiny"
    links = {
        path.relative_to(base).as_posix(): path.resolve().name
        for path in (base / "snapshots").rglob("*")
        if path.is_symlink()
    }
    refs = {path.name: path.read_text() for path in (base / "refs").iterdir()}
    return {
        "links": links,
        "refs": refs,
        "blobs": {path.name: path.read_bytes() for path in (base / "blobs").iterdir()},
    }


def test_the_cache_is_laid_out_as_huggingface_hub_lays_it_out(hub: Hub, tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    snapshot_download(REPO, endpoint=hub.url, cache_dir=tmp_path / "theirs", token=False)
    made = loader(order(hub, tmp_path / "ours"), tmp_path).run()
    assert cached(tmp_path / "ours") == cached(tmp_path / "theirs")
    found = snapshot_download(REPO, cache_dir=tmp_path / "ours", local_files_only=True)
    assert Path(found) == made


def test_a_cache_that_huggingface_hub_began_is_gone_on_with_and_the_other_way_round(hub: Hub, tmp_path: Path) -> None:
    first, second = list(FILES)[:3], list(FILES)[3:]
    hf_hub_download(REPO, first[1], endpoint=hub.url, cache_dir=tmp_path, token=False)
    sent = hub.sent
    loader(order(hub, tmp_path, REPO, *first), tmp_path).run()
    assert hub.sent - sent == len(FILES[first[0]]) + len(FILES[first[2]]), "what lay there was fetched again"
    sent = hub.sent
    snapshot_download(REPO, endpoint=hub.url, cache_dir=tmp_path, token=False)
    assert hub.sent - sent == sum(len(FILES[name]) for name in second), "what lay there was fetched again"


def test_an_unfinished_download_is_nothing_to_huggingface_hub(hub: Hub, tmp_path: Path) -> None:
    hub.chance = lambda ask: Fault("status", status=403) if ask.path.startswith("model-00002") else None
    with pytest.raises(Trouble):
        loader(order(hub, tmp_path), tmp_path).run()
    with pytest.raises(LocalEntryNotFoundError):
        hf_hub_download(REPO, "config.json", cache_dir=tmp_path, local_files_only=True)
