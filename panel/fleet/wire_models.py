"""Orders about model files on a host: fetch, describe, convert, delete them. Part of the wire, see wire.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from panel.fleet.wire_base import Message

MAX_FILES = 5000  # of one download
MAX_SIZE = 1 << 50  # bytes of one file
Name = Annotated[str, Field(max_length=1000)]


class DownloadFile(Message):
    """One file of a repository: its path there, its size in bytes, and what its content must be.

    `sha256` (64 hex digits) is that of an LFS file, `etag` the hub's name of the content: a git blob's SHA-1 (40 hex
    digits) for small files. One of the two is needed; nothing is taken that cannot be compared.
    """

    path: Name
    size: int = Field(ge=0, le=MAX_SIZE)
    sha256: str = Field(default="", max_length=64)
    etag: str = Field(default="", max_length=64)

    @property
    def sum(self) -> str:
        """Names the content, and its file in the Hugging Face cache."""
        return self.sha256 or self.etag


class DownloadTask(Message):
    """Fetch files of a repository into a model folder of the host, and compare each with its sum.

    `revision` is a commit (for the cache also a branch whose commit the hub tells), `ref` the branch or tag that the
    cache should know it by. `folder` is the Hugging Face cache (layout hf_cache) or a folder of models (layout
    folder; there the files go to `name`). What was fetched stays when the job is stopped or killed: a job with the same
    files goes on from there. `discard`: delete what unfinished downloads of these files left, and fetch nothing.
    `replace`: files of another content at the places of these (in layout folder) are replaced; without it they are kept
    and nothing is fetched. `stall_s`: give up when no byte has come for so long. `limit_mib_s` 0: no limit.
    Secrets travel in `secret_env`: HF_TOKEN or MODELSCOPE_API_TOKEN, and BERTH_DOWNLOAD_PROXY for a proxy with a login.
    Result: one ScannedModel dict for each model that lies there now.
    """

    kind: Literal["download"] = "download"
    source: Literal["huggingface", "modelscope"] = "huggingface"
    endpoint: Name
    repo: Name
    revision: Name
    ref: Name = ""
    files: list[DownloadFile] = Field(min_length=1, max_length=MAX_FILES)
    folder: Name
    layout: Literal["hf_cache", "folder"] = "hf_cache"
    name: Name = ""
    proxy: Name = ""
    limit_mib_s: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    connections: int = Field(default=4, ge=1, le=16)
    stall_s: float = Field(default=900.0, ge=10, le=86400, allow_inf_nan=False)
    replace: bool = False
    discard: bool = False
    secret_env: dict[str, str] = {}


class DeleteTask(Message):
    """Delete copies of models below the host's model folders: `paths` as a scan names them (a folder, or a file).

    Of the Hugging Face cache a snapshot goes with the blobs that no other snapshot needs; of a GGUF in several parts
    all parts. What a run uses stays. Result: one dict per path with `path`, `freed_bytes` and `refusal` (or None).
    """

    kind: Literal["delete"] = "delete"
    paths: list[Name] = Field(min_length=1, max_length=500)


class SidecarTask(Message):
    """Describe a GGUF file for vLLM, which cannot read one alone: config.json, tokenizer and chat template.

    Made from the file's own metadata by the Python of the engine `executable`, in a folder of the agent's own; once per
    file, which is never touched. Phases: checking, describing. Result: one dict with `folder`, `model_type`, `made`
    (False: it was there).
    """

    kind: Literal["sidecar"] = "sidecar"
    executable: Name
    path: Name


DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}  # of one parameter; the number formats of a conversion
BESIDE_WEIGHTS_MIB = 64  # what tokenizer and configuration of a converted model take at most


class ConvertTask(Message):
    """Make a Hugging Face folder with plain weights of a GGUF file: `<folder>/<name>`, in the number format `dtype`.

    By the Python of the engine `executable`. The folder appears when it is whole, never before; what a stopped or
    killed job left is removed. Phases: checking, reading (tensors), writing (bytes), placing. Result: one ScannedModel
    dict for the model that lies there now.
    """

    kind: Literal["convert"] = "convert"
    executable: Name
    path: Name
    folder: Name
    name: Name
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"


class PackageTask(Message):
    """Add a package to an engine that an install made, without what it depends on. Result: one FoundRuntime dict.

    Addresses, proxy, folder of wheels and `secret_env` as in InstallTask. Phases: checking, downloading, verifying.
    """

    kind: Literal["package"] = "package"
    executable: Name
    package: Literal["vllm-gguf-plugin"] = "vllm-gguf-plugin"
    index_url: Name = ""
    extra_index_urls: list[Name] = Field(default=[], max_length=50)
    find_links: list[Name] = Field(default=[], max_length=50)
    proxy: Name = ""
    wheel_folder: Name = ""
    secret_env: dict[str, str] = {}
