"""Every code that a host or a hub's answer may end with has a sentence and a next step, in the page and in the API.

The codes are read from the source, with the parameters that each is raised with: what a sentence names is there.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import translation

import panel.fleet.agent
from models_catalog import wording as catalog_wording
from models_catalog.downloads import asking, contexts, wording
from models_catalog.downloads.asking import HubTrouble
from models_catalog.downloads.hubs import HubAt
from models_catalog.downloads.models import Source
from panel.accounts.actor import Actor
from panel.core.wording import Words
from tests.api.conftest import program
from tests.deployments import builders
from tests.models_catalog.downloads.conftest import person

AGENT = Path(panel.fleet.agent.__file__).parent
PANEL = Path(asking.__file__).parent
ANY_JOB = (  # what ends any job of a host, see agent/jobs.py, job.py, orders.py, task.py
    "stopped", "stop_all", "not_wanted", "tombstone", "host_restarted", "task_failed", "exit_unknown", "cannot_execute",
    "spawn_failed", "order_unreadable", "not_supported_here", "too_many_jobs", "environment_not_allowed", "host_forgotten",
)  # fmt: skip
Raised = tuple[str, dict[str, Any]]


def texts(node: ast.expr, within: ast.AST) -> list[str]:
    """What an expression may be, as far as the source says: a text, one of two, or a name that is set to such."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.IfExp):
        return texts(node.body, within) + texts(node.orelse, within)
    if isinstance(node, ast.Name):
        set_to = [n.value for n in ast.walk(within) if isinstance(n, ast.Assign) and ast.dump(n.targets[0]) == ast.dump(
            ast.Name(node.id, ast.Store()))]  # fmt: skip
        return [text for value in set_to for text in texts(value, within)]
    return []


def raised(path: Path, name: str, prefix: str) -> Iterator[Raised]:
    """(code, parameters) of each call of `name` in a file; a parameter is its text where the source has one."""
    for function in [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]:
        for call in ast.walk(function):
            if not (
                isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name and call.args
            ):
                continue
            given = {key.arg: key.value for key in call.keywords if key.arg not in (None, "fatal", "wait_s")}
            params: dict[str, Any] = {str(key): (texts(value, function) or ["7"])[0] for key, value in given.items()}
            whats = texts(given["what"], function) if "what" in given else [""]
            for code in texts(call.args[0], function):
                for what in whats:
                    for token in (True, False) if "token" in given else (False,):
                        more = {"what": what} if what else {}
                        yield f"{prefix}{code}", {**params, **more, **({"token": token} if "token" in given else {})}


def of_hosts() -> list[Raised]:
    found: list[Raised] = []
    for path in sorted(AGENT.glob("download*.py")):
        found += raised(path, "Trouble", "download.")
        found += raised(path, "Refused", "")
    for code, params in found:  # what is given beside the names: agent/download.py and download_pool.py
        if code == "download.system":
            params["error"] = "x"
        if code.startswith("download.not_found"):
            params["file"] = "a.json"
        if code == "download.wrong_hash":
            params |= {"file": "a.json", "expected": "x", "found": "y"}
        if code == "download.address_not_allowed":
            params["why"] = "link_local"
    more: dict[str, Any] = {"limit": 8, "name": "X", "path": "/m"}
    killed: Raised = ("task_failed", {"exit_code": None, "signal": 9})
    return [*found, killed, *((code, more) for code in ANY_JOB)]


def of_the_panel() -> list[Raised]:
    found: list[Raised] = []
    for name in ("asking.py", "catalogue.py"):
        found += raised(PANEL / name, "HubTrouble", "download.")
    return [(code, {**params, **({"why": "loopback"} if "why" in params else {})}) for code, params in found]


def assert_said(words: Words, code: str, params: dict[str, Any]) -> None:
    about = f"{code} {params}: {words}"
    assert words.code == code, about
    assert words.text and words.hint, about
    assert "—" not in words.text + words.hint, f"a parameter is missing: {about}"
    assert "no words" not in words.text and "%(" not in words.text + words.hint, about


def test_the_source_is_read() -> None:
    hosts, panel_ = {code for code, _params in of_hosts()}, {code for code, _params in of_the_panel()}
    assert {"download.dns", "download.offline", "download.gated", "download.unauthorized", "download.proxy"} <= hosts
    assert len(hosts) > 35 and len(panel_) > 10
    assert {"download.not_found", "download.tls", "download.rate_limited"} <= hosts & panel_


def test_whatever_a_host_says_is_a_sentence_with_a_next_step() -> None:
    for code, params in of_hosts():
        assert_said(wording.failure({"code": code, "params": params}), code, params)


def test_whatever_a_hub_says_to_the_panel_is_a_sentence_and_nothing_is_to_be_resumed() -> None:
    for code, params in of_the_panel():
        words = wording.asked({"code": code, "params": params})
        assert_said(words, code, params)
        assert "resume" not in words.hint.lower() and "host's network" not in words.hint, words


def test_whatever_a_host_says_of_a_deletion_is_a_sentence_with_a_next_step() -> None:
    found = [*raised(AGENT / "delete.py", "Refused", "")]
    found = [(code, {**params, "path": "/m", "error": "x", "program": "it"}) for code, params in found]
    assert {"delete.in_use", "delete.failed", "too_many_files"} <= {code for code, _params in found}
    more = [code for code in ANY_JOB if code in catalog_wording.DELETES]
    assert {"stopped", "task_failed", "too_many_jobs"} <= set(more)
    for code, params in [*found, *((code, {}) for code in more)]:
        assert_said(catalog_wording.of_deletion({"code": code, "params": params}), code, params)


@pytest.mark.django_db
def test_the_page_and_the_api_say_the_same(host: Any, otto: Actor) -> None:
    """Each code once: the words stand on the page, and the API has them with the code."""
    row = builders.make_download(host, state="failed", refusal={"code": "task_failed", "params": {}})
    browser, api = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"}), program(otto.user)
    browser.force_login(person("viewer").user)  # type: ignore[arg-type]  # a person
    for code, params in dict(of_hosts()).items():
        type(row).objects.filter(pk=row.pk).update(refusal={"code": code, "params": params})
        words = wording.failure({"code": code, "params": params})
        told = api.get(f"/api/v1/downloads/{row.pk}").json()["reason"]
        assert (told["code"], told["message"], told["hint"]) == (code, words.text, words.hint)
    row.refresh_from_db()
    shown = browser.get(f"/models/downloads/{row.pk}/").content.decode()
    assert code in shown and words.text.split(":")[0] in shown


def test_the_words_are_for_the_reader() -> None:
    with translation.override("en"):
        shown = contexts.trouble(HubTrouble("server_error", host="hub.example", what="json"))["words"]
    assert "json" not in shown.text and HubAt(Source.HUGGINGFACE, "https://mirror.example").mirror == "mirror.example"


@pytest.mark.parametrize("code", sorted(wording.NETWORK - {"download.tls", "download.proxy"}))
def test_a_hub_that_is_not_reached_leads_to_the_settings_of_either_hub(code: str) -> None:
    """Whoever asked ModelScope finds nothing at the setting of the other one."""
    for words in (wording.failure, wording.asked):
        hint = words({"code": code, "params": {"host": "hub.example", "silent_s": 60}}).hint
        assert "BERTH_MODELSCOPE_ENDPOINT" in hint and "HF_ENDPOINT" in hint
