"""A real GGUF file with real vLLM: described by vLLM's own Python, explained on a CPU, converted, and then it answers.

The file is the one that `make engine` prepared; it is copied, so that nothing is written beside it.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import Client

from deployments import services
from models_catalog import services as catalog
from models_catalog.models import Copy
from panel.accounts.models import User
from panel.accounts.services import create_token
from panel.fleet import logstore, wire
from panel.fleet import services as fleet
from panel.fleet.agent import flag_schema, sample_model
from panel.fleet.models import Job, Runtime
from tests.e2e.stack import Stack
from tests.waiting import until

pytestmark = pytest.mark.engine
START_S, WORK_S = 900, 600  # an idle machine of two cores needs 40 s and 25 s, a busy one ten times as long
READS = """
import json, sys
from transformers import AutoConfig, AutoTokenizer
folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder)
asked = [{"role": "user", "content": "What is the capital of France?"}]
print(json.dumps({"kind": AutoConfig.from_pretrained(folder).model_type, "words": len(tokenizer),
                  "text": tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)}))
"""


@pytest.fixture
def copy(berth: Stack, tmp_path: Path) -> Copy:
    """The GGUF in a folder of its own, found by the host."""
    source = sample_model.folders(berth.engines)[1]
    folder = tmp_path / "shelf"
    (folder / "gguf").mkdir(parents=True)
    place = Path(shutil.copy(source, folder / "gguf"))
    until(
        lambda: Runtime.objects.filter(present=True, refusal__isnull=True).exists(),
        timeout=200,
        why="the engine is known",
    )
    catalog.add_root(berth.host(), str(folder), actor=None)
    rows = Copy.objects.filter(path=str(place), present=True).select_related("host", "artifact__model")
    return until(rows.first, timeout=60, why="the file is in the catalog")


@pytest.fixture
def ask(berth: Stack) -> Iterator[Callable[..., Any]]:
    """The API as an operator's program calls it."""
    user, _made = User.objects.get_or_create(username="ben", defaults={"role": "operator"})
    _row, plain = create_token(user, "real", actor=user, scope="api:write")
    headers = {"Authorization": f"Bearer {plain}"}
    with httpx.Client(base_url=f"{berth.url}/api/v1", headers=headers, timeout=30) as client:

        def call(method: str, path: str, status: int, **body: Any) -> Any:
            answer = client.request(method, path, **({"json": body} if body else {}))
            assert answer.status_code == status, answer.text
            return answer.json()

        yield call


def page_of(berth: Stack, path: str) -> str:
    """A page of the running panel, as someone who is signed in sees it."""
    client = Client()
    client.force_login(User.objects.get(username="ben"))
    cookies = {name: morsel.value for name, morsel in client.cookies.items()}
    answer = httpx.get(f"{berth.url}{path}", cookies=cookies, timeout=30)
    assert answer.status_code == 200, answer.text[:500]
    return answer.text.replace("\u00a0", " ")


def log_of(job_id: Any) -> str:
    return b"".join(part.data for part in logstore.read_all(job_id)).decode(errors="replace")[-3000:]


def test_a_gguf_is_described_by_the_engines_python(berth: Stack, copy: Copy) -> None:
    runtime = Runtime.objects.filter(present=True, engine="vllm", refusal__isnull=True).first()
    before = Path(copy.path).stat()
    task = wire.SidecarTask(executable=runtime.executable, path=copy.path)

    def made() -> dict[str, Any]:
        job = fleet.order_job(host=copy.host, task=task)
        rows = Job.objects.filter(pk=job.pk, result__isnull=False)
        found = until(rows.first, timeout=WORK_S, why="the description is made").result
        assert found["refusal"] is None, (found, log_of(job.pk))
        return found["items"][0]

    first, again = made(), made()
    assert first["made"] and not again["made"] and first["folder"] == again["folder"], "once per file"
    folder = Path(first["folder"])
    assert folder.is_relative_to(berth.data / "agent" / "sidecars")
    assert (Path(copy.path).stat().st_mtime_ns, Path(copy.path).stat().st_size) == (before.st_mtime_ns, before.st_size)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and "auto_map" not in config
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2]
    python = flag_schema.runtime_python(Path(runtime.executable))
    argv = [str(python), "-I", "-c", READS, str(folder)]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=WORK_S, check=False, env=flag_schema.probe_env()
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["kind"] == "llama" and told["words"] == 49152
    assert told["text"].endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")


def test_on_a_cpu_it_is_explained_converted_and_answers(berth: Stack, copy: Copy, ask: Callable[..., Any]) -> None:
    spec = {"artifact_id": copy.artifact_id, "device": "cpu", "kv_cache_gib": 1}
    plan = json.dumps(ask("POST", "/deployments/plan", 200, spec=spec))
    assert "its kernels need a GPU" in plan
    page = page_of(berth, f"/models/{copy.artifact.model_id}/")
    assert ("its kernels need a GPU" in page or "vLLM needs a GPU" in page) and "≈ 257 MiB" in page
    assert f"/models/copies/{copy.pk}/convert" in page

    def is_whole(folder: str) -> bool:
        weights = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
        return abs(weights - row["size_bytes"]) < row["size_bytes"] * 0.01

    row = ask("POST", "/conversions", 201, copy_id=copy.pk, name="converted", folder=str(Path(copy.path).parents[1]))
    assert row["size_bytes"] == 134_515_008 * 2 and row["dtype"] == "float16"
    seen: set[str] = set()

    def ended() -> dict[str, Any] | None:
        now = ask("GET", f"/conversions/{row['id']}", 200)
        seen.add(now["phase"])
        assert not Path(row["path"]).exists() or is_whole(row["path"]), "it appears when it is whole"
        return now if now["state"] not in ("waiting", "running") else None

    row = until(ended, timeout=WORK_S, why="the conversion ended")
    job = Job.objects.filter(kind="convert").latest("created_at")
    assert row["state"] == "done", (row["reason"], log_of(job.pk))
    assert "reading" in seen or "writing" in seen, seen
    assert is_whole(row["made"]), "its size was told before"

    rows = Copy.objects.filter(path=row["made"], present=True, usable=True).select_related("artifact__model")
    found = until(rows.first, timeout=60, why="the folder is in the catalog")
    until(lambda: _told(found), timeout=30, why="the catalog knows what it was made of")
    assert found.artifact.model_id != copy.artifact.model_id and found.problems == []

    deployment = berth.deploy("converted", row["made"])
    try:
        berth.wait_for(deployment, "ready", "failed", timeout=START_S)
        run = deployment.run
        assert deployment.state == "ready", (deployment.reason, log_of(run.job_id))
        assert "Paris" in run.answer["answer"], run.answer
    finally:
        services.stop(deployment, actor=None)
        berth.wait_for(deployment, "stopped", timeout=180)


def _told(copy: Copy) -> bool:
    model = copy.artifact.model
    model.refresh_from_db()
    return model.added_from.get("how") == "converted" and model.added_by == "ben"
