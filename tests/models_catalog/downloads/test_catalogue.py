"""What hubs tell, asked over HTTP of a local one: a search, files with their sums, and every way to be refused."""

from collections.abc import Iterator
from typing import Any

import pytest

from models_catalog.downloads import hubs
from models_catalog.downloads.asking import Asker, HubTrouble
from models_catalog.downloads.catalogue import _from_hub, repository, search
from models_catalog.downloads.models import Source
from tests.fakes.hub import Hub

FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"w" * 500, "tokenizer.json": b"{}"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        running.add("acme/tiny", FILES, license="apache-2.0", downloads=1200, likes=3)
        running.add("acme/tiny-gguf", {"tiny-Q8_0.gguf": b"g" * 300}, license="mit", downloads=90)
        yield running


@pytest.fixture(params=["huggingface", "modelscope"])
def source(request: Any) -> Source:
    return Source(request.param)


def asker(hub: Hub, source: str = "huggingface", token: str = "", **more: Any) -> Asker:
    return Asker(hubs.HubAt(Source(source), hub.url), token, **more)


def test_a_search(hub: Hub, source: Source) -> None:
    found = search(asker(hub, source), "tiny")
    assert [(row.repo, row.licence, row.downloads) for row in found] == [
        ("acme/tiny", "apache-2.0", 1200),
        ("acme/tiny-gguf", "mit", 90),
    ]
    assert search(asker(hub, source), "nothing of that kind") == []


def test_a_repository_with_sums(hub: Hub, source: Source) -> None:
    found = repository(asker(hub, source), "acme/tiny")
    stored = hub.repos["acme/tiny"].files
    by_path = {file.path: file for file in found.files}
    assert set(by_path) == set(FILES)
    assert by_path["model.safetensors"].sha256 == stored["model.safetensors"].sha256
    assert by_path["model.safetensors"].size == 500
    assert all(file.sha256 or file.etag for file in found.files)
    assert found.config == {"model_type": "llama"}
    assert "main" in found.refs or "master" in found.refs


def test_the_hub_names_the_commit_and_a_tree_comes_in_parts(hub: Hub) -> None:
    hub.page = 1
    found = repository(asker(hub), "acme/tiny", "main")
    assert found.commit == hub.repos["acme/tiny"].commit and len(found.files) == 3


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ({"gated": "auto"}, ""),  # what it is made of may be seen
        ({"private": True}, "download.not_found"),
    ],
)
def test_what_is_not_open(hub: Hub, kind: dict[str, Any], code: str) -> None:
    hub.add("acme/closed", FILES, **kind)
    if not code:
        found = repository(asker(hub), "acme/closed")
        assert found.found.gated and found.config == {}
        return
    with pytest.raises(HubTrouble) as caught:
        repository(asker(hub), "acme/closed")
    assert caught.value.code == code


def test_a_wrong_token_and_a_wrong_branch(hub: Hub) -> None:
    with pytest.raises(HubTrouble) as caught:
        repository(asker(hub, token="hf_wrong"), "acme/none")
    assert caught.value.code == "download.unauthorized"
    with pytest.raises(HubTrouble) as caught:
        repository(asker(hub), "acme/tiny", "no-such-branch")
    assert caught.value.as_dict() == {"code": "download.not_found", "params": {"what": "revision", "token": False}}


def test_nobody_there(hub: Hub) -> None:
    away = Asker(hubs.HubAt(Source.HUGGINGFACE, "http://127.0.0.1:1"))
    with pytest.raises(HubTrouble) as caught:
        search(away, "x")
    assert caught.value.code == "download.offline"


def test_a_hub_is_not_where_clouds_keep_their_keys() -> None:
    with pytest.raises(HubTrouble) as caught:
        search(Asker(hubs.HubAt(Source.HUGGINGFACE, "http://169.254.169.254")), "x")
    assert caught.value.as_dict()["params"] == {"host": "169.254.169.254", "why": "link_local"}


def test_a_token_is_not_sent_without_encryption() -> None:
    with pytest.raises(HubTrouble) as caught:
        search(Asker(hubs.HubAt(Source.HUGGINGFACE, "http://10.0.0.9"), "hf_secret"), "x")
    assert caught.value.code == "download.plain_http"


def test_the_size_is_that_of_the_weights() -> None:
    told = {"id": "acme/sized", "safetensors": {"parameters": {"BF16": 1000, "F32": 10}}, "usedStorage": 9}
    assert _from_hub(told).size == 2040
    assert _from_hub({"id": "acme/sized", "usedStorage": 9, "safetensors": {"parameters": "x"}}).size == 9


def test_no_question_lasts_for_ever(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = Asker(hubs.HubAt(Source.HUGGINGFACE, f"http://127.0.0.1:{silent.getsockname()[1]}"), deadline_s=0.3)
        with pytest.raises(HubTrouble) as caught:
            search(mute, "x")
    assert caught.value.code == "download.silent"


def test_a_redirect_to_another_server_is_not_followed_and_the_token_stays(hub: Hub) -> None:
    hub.tokens["hf_good"] = "ada"
    with pytest.raises(HubTrouble) as caught:  # an LFS file lies on another port
        asker(hub, token="hf_good").text("/acme/tiny/resolve/main/model.safetensors")
    assert caught.value.params["what"] == "redirect"
    assert not any(ask.token for ask in hub.asked if ask.where == "cdn")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("acme/tiny", ("", "acme/tiny")),
        ("https://huggingface.co/acme/tiny/tree/main", ("huggingface", "acme/tiny")),
        ("hf.co/acme/tiny", ("huggingface", "acme/tiny")),
        ("https://www.modelscope.cn/models/acme/tiny/summary", ("modelscope", "acme/tiny")),
        ("tiny llama", ("", "")),
        ("https://evil.example/acme/tiny", ("", "")),
        ("../../etc/passwd", ("", "")),
        ("https://[", ("", "")),
    ],
)
def test_what_people_paste(text: str, meant: tuple[str, str]) -> None:
    assert hubs.pasted(text) == meant


def test_a_mirror_is_named(settings: Any) -> None:
    settings.HF_ENDPOINT = "https://huggingface.co"
    assert hubs.at("huggingface").mirror == ""
    settings.HF_ENDPOINT = "https://mirror.example"
    assert hubs.at("huggingface").mirror == "mirror.example"
