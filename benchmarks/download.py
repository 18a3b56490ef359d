"""Fetching a model file from a hub on this machine: ours beside plain huggingface_hub, in turns, in the same run.

Run: `python -m benchmarks.download`. The hub is a process of its own; each download is one too. What is compared is the
time until all bytes are in the file: huggingface_hub compares no sums, ours does it afterwards, and both are told.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

SIZE_MIB, ROUNDS, RATIO = 768, 5, 0.95
REPO, FILE = "acme/bench", "model.safetensors"
ROOT = Path(__file__).resolve().parents[1]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """A hub with one model file; its address."""
    place = folder / "served" / REPO
    place.mkdir(parents=True)
    with (place / FILE).open("wb") as file:
        for _ in range(SIZE_MIB // 16):
            file.write(os.urandom(16 << 20))
    argv = [sys.executable, "-m", "tests.fakes.hub", str(folder / "served")]
    server = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stdin is not None
    try:
        yield str(json.loads(server.stdout.readline())["url"])
    finally:
        server.stdin.close()
        server.wait(10)


def ours(address: str, cache: Path) -> dict[str, float]:
    """Seconds of each phase."""
    import httpx

    from panel.fleet.agent.download import Download
    from panel.fleet.agent.download_http import Session
    from panel.fleet.agent.download_store import Store
    from panel.fleet.agent.download_sums import Checked
    from panel.fleet.wire import DownloadFile, DownloadTask
    from tests.agent.downloads import Told

    told = httpx.get(f"{address}/api/models/{REPO}/tree/main").json()
    (found,) = [entry for entry in told if entry["path"] == FILE]
    file = DownloadFile(path=FILE, size=found["size"], sha256=found["lfs"]["oid"])
    task = DownloadTask(endpoint=address, repo=REPO, revision="main", files=[file], folder=str(cache))
    times: dict[str, float] = {}

    class Clock(Told):
        def progress(self, phase: str, done: int = 0, total: int = 0, note: str = "", **more: object) -> None:
            times.setdefault(phase, time.perf_counter())

    begin = time.perf_counter()
    store = Store(task, [cache])
    Download(task, store, Session(address), Checked(cache / "checked.json"), Clock(), spare=0).run()
    end = time.perf_counter()
    return {
        "fetched": times["verifying"] - begin,
        "verified": times["placing"] - times["verifying"],
        "all": end - begin,
    }


def theirs(address: str, cache: Path) -> dict[str, float]:
    os.environ["HF_HUB_DISABLE_XET"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    import huggingface_hub

    begin = time.perf_counter()
    huggingface_hub.hf_hub_download(REPO, FILE, cache_dir=cache, endpoint=address)
    return {"fetched": time.perf_counter() - begin}


def apart(who: str, address: str, folder: Path) -> dict[str, float]:
    """One download in a process of its own, into an empty folder."""
    cache = folder / who
    cache.mkdir()
    argv = [sys.executable, "-m", "benchmarks.download", who, address, str(cache)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    shutil.rmtree(cache)
    os.sync()  # what one wrote is not the next one's to wait for
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> bool:
    """Print the figures; False when ours is too slow."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as name, hub(Path(name)) as address:
        folder = Path(name)
        rounds = [(apart("theirs", address, folder), apart("ours", address, folder)) for _ in range(ROUNDS)]
    their_s = median(them["fetched"] for them, _us in rounds)
    our_s = median(us["fetched"] for _them, us in rounds)
    verify = median(us["verified"] for _them, us in rounds)
    say(f"Download of {SIZE_MIB} MiB: {SIZE_MIB / our_s:.0f} MiB/s, huggingface_hub {SIZE_MIB / their_s:.0f} MiB/s, "
        f"{their_s / our_s:.2f} times as fast (at least {RATIO:g}); then compared with its sum in {verify:.1f} s, "
        f"{SIZE_MIB / verify:.0f} MiB/s")  # fmt: skip
    good = their_s / our_s >= RATIO
    if not good:
        say("  ✗ beyond its limit")
    return good


if __name__ == "__main__":
    if len(sys.argv) == 4:
        figures = {"ours": ours, "theirs": theirs}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
        sys.stdout.write(json.dumps(figures) + "\n")
        raise SystemExit(0)
    raise SystemExit(0 if main() else 1)
