"""The way without a network: fetch on a connected machine, copy the folder to the host, look for models. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from posixpath import join


def commands(source: str, endpoint: str, usual: str, repo: str, revision: str, files: Iterable[str], where: str,
             host: str, *, cache: bool) -> list[str]:  # fmt: skip
    """Lines to paste: on a connected machine, then from there to the host. `files` empty: all of the repository."""
    wanted = list(files)
    base = where.rstrip("/")
    local = "models--" + repo.replace("/", "--") if cache else repo.rsplit("/", 1)[-1]
    target = base if cache else join(base, repo.rsplit("/", 1)[0])
    if source == "modelscope":
        fetch = [
            "modelscope",
            "download",
            "--model",
            repo,
            "--revision",
            revision,
            "--local_dir",
            f"./{local}",
            *wanted,
        ]
    else:
        fetch = ["hf", "download", repo, *wanted, "--revision", revision]
        fetch += ["--cache-dir", "."] if cache else ["--local-dir", f"./{local}"]
    first = shlex.join(fetch)
    if source == "huggingface" and endpoint != usual:
        first = f"HF_ENDPOINT={shlex.quote(endpoint)} {first}"
    return [
        first,
        # rsync makes the last folder of a path only, and a fresh host has none of the cache's
        shlex.join(["ssh", host, f"mkdir -p {shlex.quote(target)}"]),
        shlex.join(["rsync", "-a", "--partial", f"./{local}", f"{host}:{target}/"]),
    ]
