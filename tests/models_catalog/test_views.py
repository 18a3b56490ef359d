"""The catalog's pages: who may see and do what, what they say, and that nothing in a name or path becomes markup."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

from models_catalog.contexts_fit import _cell
from models_catalog.estimate.table import Cell
from models_catalog.inspect.scan import scan_roots
from models_catalog.models import Artifact, CatalogModel, Copy, ScannedRoot
from models_catalog.services import record_scan
from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet.models import Host, Job, Runtime
from tests.models_catalog.builders import gguf_bytes, hf_folder

pytestmark = pytest.mark.django_db

HTMX = {"HTTP_HX_REQUEST": "true"}
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def host() -> Host:
    return Host.objects.create(name="atlas", token_hash="t", facts={"model_roots": ["/home/me/models"]})


@pytest.fixture
def engine(host: Host) -> Runtime:
    return Runtime.objects.create(host=host, engine="vllm", executable="/opt/vllm", version="0.32.0", device="cpu")


def client_of(role: str) -> Client:
    client = Client()
    client.force_login(User.objects.create_user(f"a-{role}", password="not used here", role=role))
    return client


def make(host: Host, name: str = "SmolLM2", **changes: Any) -> Artifact:
    facts = {"format": "hf", "tasks": ["generate"], "parameters": 134_515_008, "context_length": 8192}
    facts |= changes.pop("facts", {})
    model = CatalogModel.objects.create(name=name)
    artifact = model.artifacts.create(
        format=facts["format"], label="bfloat16", fingerprint=name, size_bytes=1 << 30, facts=facts
    )
    Copy.objects.create(artifact=artifact, host=host, path=f"/home/me/models/{name}", seen_at=timezone.now(), **changes)
    return artifact


def get(client: Client, name: str, *args: Any, **query: str) -> str:
    response = client.get(reverse(name, args=args), query)
    assert response.status_code == 200, response.content
    return response.content.decode()


# --- who may ------------------------------------------------------------------------------------------------------------

POSTS = [("models-scan", [], "operator"), ("models-add-folder", [], "admin"), ("models-remove-folder", [1], "admin")]


@pytest.mark.parametrize("name", ["models", "models-live"])
def test_a_stranger_is_led_to_the_sign_in(name: str) -> None:
    response = Client().get(reverse(name), headers={"accept": "text/html"})
    assert response.status_code == 302
    assert reverse("login") in response["Location"]


@pytest.mark.parametrize(("name", "args", "least"), [*POSTS, ("model-code", [1], "admin")])
@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_changes_need_their_role_and_refusals_are_recorded(
    host: Host, name: str, args: list[int], least: str, role: str
) -> None:
    ranks = ["viewer", "operator", "admin"]
    response = client_of(role).post(reverse(name, args=args))
    refused = Event.objects.filter(outcome="denied")
    if ranks.index(role) < ranks.index(least):
        assert response.status_code == 403
        assert refused.count() == 1
    else:
        assert response.status_code != 403
        assert not refused.exists()
    assert Client().post(reverse(name, args=args)).status_code in (302, 401)


@pytest.mark.parametrize("name", [name for name, _, _ in POSTS])
def test_changes_are_posts_with_a_token(host: Host, name: str) -> None:
    args = next(args for known, args, _ in POSTS if known == name)
    assert client_of("admin").get(reverse(name, args=args)).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="a-admin"))
    assert strict.post(reverse(name, args=args)).status_code == 403


def test_each_role_sees_only_what_it_can_do(host: Host, engine: Runtime) -> None:
    artifact = make(host)
    Host.objects.filter(pk=host.pk).update(model_roots=["/data"])
    seen = {role: get(client_of(role), "models") for role in ("viewer", "operator", "admin")}
    link = f"{reverse('deployment-new')}?artifact={artifact.pk}"
    assert [link in seen[role] for role in seen] == [False, True, True]
    assert [reverse("models-scan") in seen[role] for role in seen] == [False, True, True]
    assert [reverse("models-add-folder") in seen[role] for role in seen] == [False, False, True]
    assert [reverse("models-remove-folder", args=[host.pk]) in seen[role] for role in seen] == [False, False, True]


# --- what the list says ------------------------------------------------------------------------------------------------


def test_the_empty_catalog_says_what_to_do(host: Host) -> None:
    client = client_of("operator")
    text = get(client, "models")
    assert "No model yet" in text
    assert "/home/me/models" in text
    assert "Put a Hugging Face folder or a GGUF file" in text
    client.post(reverse("models-scan"))
    assert "are being looked through" in get(client, "models")
    Job.objects.all().delete()
    Host.objects.all().delete()
    assert "As soon as a host is connected" in get(client, "models")


def test_a_row_shows_facts_size_and_copies(host: Host, engine: Runtime) -> None:
    make(host)
    text = get(client_of("viewer"), "models")
    for part in ("SmolLM2", "134.5\xa0M", "8K context", "1.0\xa0GiB", "atlas", "Can be deployed"):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "engine_there", "said"),
    [
        ({"usable": False, "problems": [{"code": "truncated", "params": {"file": "m.safetensors"}}]}, True, "cut off"),
        ({"usable": False, "problems": [{"code": "zero_bytes", "params": {"file": "m.gguf"}}]}, True, "0 bytes"),
        ({"facts": {"tasks": [], "architectures": ["Odd"]}}, True, "(Odd)"),
        ({"facts": {"needs_remote_code": True}}, True, "its own program code"),
        ({}, False, "No working engine was found on atlas"),
        ({"facts": {"format": "gguf"}}, True, "can serve a GGUF file"),
        ({"facts": {"format": "gguf"}, "extra": {"config_beside": True}}, True, "can serve a GGUF file"),
        ({"usable": False, "problems": [{"code": "from_the_future", "params": {}}]}, True, "Not usable"),
    ],
)
def test_a_model_that_cannot_be_served_says_why_and_has_no_button(
    host: Host, changes: dict[str, Any], engine_there: bool, said: str
) -> None:
    artifact = make(host, **changes)
    if engine_there:
        Runtime.objects.create(host=host, engine="vllm", executable="/opt/vllm", device="cpu")
    client = client_of("admin")
    for text in (get(client, "models"), get(client, "model", artifact.model_id)):
        assert said in text
        assert f"?artifact={artifact.pk}" not in text


def test_a_gguf_with_all_beside_and_a_gpu_engine_with_the_plugin_can_be_deployed(host: Host) -> None:
    artifact = make(host, facts={"format": "gguf"}, extra={"config_beside": True})
    Runtime.objects.create(
        host=host, engine="vllm", executable="/opt/vllm", device="cuda", plugins=["vllm-gguf-plugin 0.2"]
    )
    assert f"?artifact={artifact.pk}" in get(client_of("operator"), "models")


def test_filters_search_and_order(host: Host, engine: Runtime) -> None:
    make(host, "Alpha", facts={"architectures": ["LlamaForCausalLM"]})
    make(host, "Beta", usable=False, problems=[{"code": "truncated", "params": {}}])
    make(host, "千问三", facts={"format": "gguf"})
    make(host, "Embedder", facts={"tasks": ["embed"]})
    make(host, "Old", present=False)
    Artifact.objects.filter(model__name="Beta").update(size_bytes=9 << 40)
    client = client_of("viewer")

    def names(**query: str) -> list[str]:
        return re.findall(r'class="nm plain"[^>]*>([^<]+)<', get(client, "models", **query))

    assert names() == ["Alpha", "Beta", "Embedder", "千问三"]
    assert names(show="whole") == ["Alpha", "Embedder", "千问三"]
    assert names(show="problems") == ["Beta"]
    assert names(show="gguf") == ["千问三"]
    assert names(show="embed") == ["Embedder"]
    assert names(show="gone") == ["Old"]
    assert names(q="llama") == ["Alpha"]
    assert names(q="问") == ["千问三"]
    assert names(q="atlas models/Al") == ["Alpha"]
    assert names(q="%") == names(q="_") == names(q="' OR 1=1 --") == []
    assert names(sort="size")[0] == "Beta"
    assert names(host="nowhere") == []
    assert names(show="nonsense", sort="nonsense", page="-1") == names()
    assert "No model matches" in get(client, "models", q="zzz")


def test_names_paths_and_facts_are_only_text(host: Host, engine: Runtime) -> None:
    artifact = make(
        host,
        EVIL,
        facts={"architectures": [EVIL], "tokenizer": EVIL, "code_files": [EVIL], "needs_remote_code": True},
        problems=[{"code": "link_outside", "params": {"file": EVIL}}],
    )
    Artifact.objects.update(label=EVIL)
    ScannedRoot.objects.create(
        host=host, path=EVIL, scanned_at=timezone.now(), problems=[{"code": "vanished", "params": {"folder": EVIL}}]
    )
    client = client_of("admin")
    for text in (get(client, "models", q=EVIL), get(client, "model", artifact.model_id)):
        assert EVIL not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_folders_and_disks_of_many_hosts_come_when_someone_gets_there(host: Host) -> None:
    client = client_of("viewer")
    make(host, "a-model")
    facts = {**host.facts, "disks": [{"path": "/", "total_mib": 9000, "free_mib": 4000}]}
    for n in range(5):
        Host.objects.create(name=f"atlas-{n}", token_hash=f"t{n}", facts=facts)
    text = get(client, "models")
    assert "/home/me/models" not in text and "<meter" not in text
    assert "<meter" in client.get(reverse("models"), {"part": "disks"}, **HTMX).content.decode()
    assert "<meter" in get(client, "models", hosts="1")
    part = client.get(reverse("models"), {"part": "folders"}, **HTMX).content.decode()
    assert part.count("/home/me/models") >= 6 and "<html" not in part
    assert "/home/me/models" in get(client, "models", hosts="1"), "the way without a script"


def test_the_number_of_queries_does_not_grow_with_the_models(
    host: Host, engine: Runtime, django_assert_num_queries: Any
) -> None:
    client = client_of("admin")
    for n in range(3):
        make(host, f"m{n}")
    get(client, "models")
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as few:
        get(client, "models")
    items = [
        {
            "path": f"/home/me/models/x{n}", "root": "/home/me/models", "format": "hf", "name": f"x{n}",
            "size_bytes": n, "files": 1, "facts": {"fingerprint": f"{n:064x}", "tasks": ["generate"]}, "problems": [],
        }
        for n in range(1000)
    ]  # fmt: skip
    record_scan(host, items)
    with django_assert_num_queries(len(few)):
        text = get(client, "models")
    assert text.count('class="nm plain"') == 30
    assert 'rel="next"' in text
    with django_assert_num_queries(len(few)):
        get(client, "models", page="2")


def test_partials_for_live_parts(host: Host, engine: Runtime) -> None:
    artifact = make(host)
    client = client_of("viewer")
    rows = client.get(reverse("models"), {"part": "rows", "q": "smol"}, **HTMX).content.decode()
    assert rows.lstrip().startswith('<div id="catalog"')
    assert "?part=rows&amp;q=smol" in rows or "?q=smol&amp;part=rows" in rows
    assert client.get(reverse("models"), {"part": "folders"}, **HTMX).content.decode().lstrip().startswith("<div")
    body = client.get(reverse("model", args=[artifact.model_id]), {"part": "body"}, **HTMX)
    assert b"<h1" not in body.content
    assert client.get(reverse("models"), {"part": "nonsense"}, **HTMX).status_code == 404


# --- folders and scans ----------------------------------------------------------------------------------------------------


def test_looking_for_models_shows_at_the_host(host: Host) -> None:
    client = client_of("operator")
    response = client.post(reverse("models-scan"), follow=True)
    text = response.content.decode()
    assert Job.objects.get().kind == "scan"
    assert "Looking for models on atlas." in text
    assert "Waits for the host" in text
    Job.objects.update(state="running")
    assert "Looking for models" in get(client, "models")
    Host.objects.update(lost_at=timezone.now())
    assert "no contact with the panel" in client.post(reverse("models-scan"), follow=True).content.decode()
    assert "No contact" in get(client, "models")


def test_adding_and_removing_a_folder(host: Host) -> None:
    client = client_of("admin")
    bad = client.post(reverse("models-add-folder"), {"host": host.pk, "path": "../x"})
    assert bad.status_code == 422
    assert "Give the full path" in bad.content.decode()
    assert 'aria-invalid="true"' in bad.content.decode()
    for nothing in (
        {},
        {"host": "999", "path": "/x"},
        {"host": "x'", "path": "/x"},
        {"host": host.pk, "path": "/\x00"},
    ):
        assert client.post(reverse("models-add-folder"), nothing).status_code == 422
    client.post(reverse("models-add-folder"), {"host": host.pk, "path": "/data/模型"})
    text = get(client, "models")
    assert "/data/模型" in text
    assert "not looked at yet" in text
    again = client.post(reverse("models-add-folder"), {"host": host.pk, "path": "/data/模型/"})
    assert again.status_code == 422
    gone = client.post(reverse("models-remove-folder", args=[host.pk]), {"path": "/data/模型"}, follow=True)
    assert "is no longer searched" in gone.content.decode()
    assert client.post(reverse("models-remove-folder", args=[host.pk]), {"path": "/nope"}).status_code == 404
    assert client.post(reverse("models-remove-folder", args=[99]), {"path": "/nope"}).status_code == 404


def test_what_the_agent_refused_is_said_at_the_folder(host: Host) -> None:
    refused = {"code": "root_not_allowed", "params": {"path": "/data"}}
    ScannedRoot.objects.create(host=host, path="/data", scanned_at=timezone.now(), problems=[refused])
    text = get(client_of("admin"), "models")
    assert "settings do not allow this folder" in text
    assert "model_roots" in text


# --- one model --------------------------------------------------------------------------------------------------------


def test_the_page_of_a_real_model_names_sources(host: Host, engine: Runtime, tmp_path: Path) -> None:
    hf_folder(tmp_path / "m")
    (tmp_path / "m" / "m-Q4_0.gguf").write_bytes(gguf_bytes())
    record_scan(host, list(scan_roots([tmp_path])))
    model = CatalogModel.objects.get()
    assert model.artifacts.count() == 2  # two forms of one name
    text = get(client_of("operator"), "model", model.pk)
    for part in (
        "bfloat16 · Hugging Face",
        "Q4_0 · GGUF",
        "528, counted in the file headers",
        "config.json: max_position_embeddings",
        "llama.context_length",
        "tokenizer_config.json",
        str(tmp_path / "m"),
        "model.safetensors",
    ):
        assert part in text, part


def test_yes_and_no_mean_what_they_answer_in_chinese_too(host: Host, engine: Runtime) -> None:
    """One English word, two Chinese ones: what is so or not, and what fits or not."""
    written = {"chat_template": True, "template_text": "{{ messages }}", "template_source": "chat_template.jinja"}
    artifact, client = make(host, facts=written), client_of("viewer")
    assert "Marks such as &lt;bos&gt; stand for" in get(client, "model-template", artifact.pk)
    with translation.override("zh-hans"):
        client.cookies["django_language"] = "zh-hans"
        assert "<dt>思考</dt><dd>否</dd>" in get(client, "model-template", artifact.pk)
        assert "<dt>已批准</dt><dd>否</dd>" in get(client, "model", artifact.model_id)
        numbers = [_cell(Cell(8192, verdict, None))["number"] for verdict in ("fits", "does_not_fit")]
    assert numbers == ["放得下", "放不下"]


def test_an_unknown_model_is_a_404() -> None:
    assert client_of("viewer").get(reverse("model", args=[404])).status_code == 404


def test_an_admin_allows_the_models_own_code(host: Host, engine: Runtime) -> None:
    code = {"code": [["modeling_x.py", "ab" * 32]]}
    artifact = make(host, facts={"needs_remote_code": True, "code_files": ["modeling_x.py"]}, extra=code)
    admin, operator = client_of("admin"), client_of("operator")
    assert "Only an admin can allow it" in get(operator, "model", artifact.model_id)
    assert "modeling_x.py" in get(operator, "model", artifact.model_id)
    assert "ab" * 32 in get(operator, "model", artifact.model_id)
    seen = re.findall(r'name="seen" value="([0-9a-f]+)"', get(admin, "model", artifact.model_id))[0]
    for other in ("", "0" * 32):  # not what is there now
        admin.post(reverse("model-code", args=[artifact.model_id]), {"allow": "1", "seen": other})
        assert f"?artifact={artifact.pk}" not in get(operator, "model", artifact.model_id)
    admin.post(reverse("model-code", args=[artifact.model_id]), {"allow": "1", "seen": seen})
    assert f"?artifact={artifact.pk}" in get(operator, "model", artifact.model_id)
    admin.post(reverse("model-code", args=[artifact.model_id]), {"allow": "0"})
    assert f"?artifact={artifact.pk}" not in get(operator, "model", artifact.model_id)
    verbs = list(Event.objects.filter(verb__startswith="model.").order_by("pk").values_list("verb", flat=True))
    assert verbs == ["model.code_allowed", "model.code_forbidden"]
