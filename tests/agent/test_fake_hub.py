"""The fake hub speaks as the real ones do: huggingface_hub's own client understands it."""

from __future__ import annotations

import httpx
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from tests.fakes.hub import Hub

FILES = {"config.json": b"{}", "a/model.safetensors": b"weights" * 100, "a/b/more.json": b"[]"}


def test_the_client_of_the_hub_understands_it() -> None:
    with Hub() as hub:
        hub.page = 2
        hub.add("acme/tiny", FILES, license="mit", downloads=7)
        hub.add("acme/closed", FILES, gated="manual", allowed={"hf_ann"})
        hub.add("acme/hidden", FILES, private=True)
        hub.tokens |= {"hf_ann": "ann", "hf_bob": "bob"}
        api = HfApi(endpoint=hub.url)
        assert [model.id for model in api.list_models(search="tiny")] == ["acme/tiny"]
        info = api.model_info("acme/tiny", files_metadata=True)
        assert (info.sha, info.downloads, info.card_data and info.card_data.license) == (
            hub.repos["acme/tiny"].commit,
            7,
            "mit",
        )
        sizes = {one.rfilename: (one.size, one.lfs.sha256 if one.lfs else one.blob_id) for one in info.siblings or []}
        assert sizes == {path: (file.size, file.etag) for path, file in hub.repos["acme/tiny"].files.items()}
        tree = list(api.list_repo_tree("acme/tiny", recursive=True))
        assert {entry.path for entry in tree} == set(FILES)  # over several pages
        assert api.list_repo_refs("acme/tiny").branches[0].target_commit == info.sha
        assert api.model_info("acme/closed").gated == "manual"
        for name, problem in (("acme/hidden", RepositoryNotFoundError), ("acme/none", RepositoryNotFoundError)):
            with pytest.raises(problem):
                api.model_info(name)
        with pytest.raises(RevisionNotFoundError):
            api.model_info("acme/tiny", revision="none")
        with pytest.raises(GatedRepoError):
            api.get_hf_file_metadata(url=f"{hub.url}/acme/closed/resolve/main/config.json", token="hf_bob")
        assert api.whoami(token="hf_ann")["name"] == "ann"


def test_modelscope() -> None:
    with Hub() as hub:
        hub.add("acme/tiny", FILES, license="mit")
        base = f"{hub.url}/api/v1"
        files = httpx.get(f"{base}/models/acme/tiny/repo/files", params={"Recursive": "True"}).json()["Data"]["Files"]
        assert {file["Path"]: file["Size"] for file in files} == {path: len(data) for path, data in FILES.items()}
        assert httpx.get(f"{base}/models/acme/tiny").json()["Data"]["License"] == "mit"
        found = httpx.put(f"{base}/dolphin/models", json={"Name": "TINY", "PageNumber": 1, "PageSize": 5}).json()
        assert [model["Name"] for model in found["Data"]["Model"]["Models"]] == ["tiny"]
        assert httpx.get(f"{base}/models/acme/none").json()["Success"] is False
