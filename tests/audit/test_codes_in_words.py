"""No page shows a code: each that a record can hold is said in words, and so is each verb and each fact."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.utils import timezone, translation

from deployments import codes as of_deployments
from deployments import codes_classes, codes_fixes, setting_words
from deployments.diagnosis.rules import BY_CODE
from deployments.pages import failed
from deployments.spec import DeploymentSpec, diff
from models_catalog import wording as of_models
from models_catalog.conversions import wording as of_conversions
from models_catalog.downloads import wording as of_downloads
from panel.audit import codes
from panel.audit.models import Event
from panel.audit.names import NAMES
from panel.audit.views import days
from panel.audit.wording import REFUSED, SENTENCES
from panel.fleet.runtimes import wording as of_engines
from tests.audit.test_wording import ROOT, _calls, _is_record

RAW = re.compile(r"\b[a-z]+\.[a-z]+(?:_[a-z]+)*\b|\b[a-z]{3,}(?:_[a-z]+)+\b")
# What looks like a code and is the name of a file, a program, or a word that people type.
NO_CODE = re.compile(
    r"\.(json|cpp|py|safetensors|gguf|jinja|txt|index|model|bin|cfg|so|co|cn|com|org|exe|md|log|sh|service)$"
)
TYPED = {"trust_remote_code", "allow_env", "allow_install"}
# verb → the codes that its room may keep with it, by the name of the fact
KEPT: dict[str, tuple[str, Any]] = {
    "run.failed": ("reason", {**of_deployments.CODES, **codes_classes.CLASSES, **BY_CODE, **of_models.FILES}),
    "run.judged": ("reason", BY_CODE),
    "deployment.started_despite": ("warnings", of_deployments.CODES),
    "deployment.fixed": ("fix", codes_fixes.FIXES),
    "deployment.mended": ("class", BY_CODE),
    "runtime.install_failed": ("code", of_engines.ALL),
    "download.failed": ("code", of_downloads.FAILURES),
    "conversion.failed": ("code", of_conversions.FAILURES),
    "model.delete_failed": ("code", of_models.DELETES),
    "host.join_refused": ("reason", ("used", "revoked", "expired")),
}


def raw_in(text: str) -> list[str]:
    """What looks like a code in what people read."""
    plain = re.sub(r"<[^>]*>", " ", text)
    return [found for found in RAW.findall(plain) if not NO_CODE.search(found) and found not in TYPED]


def page_of(events: list[Event]) -> str:
    return render_to_string("audit/activity.html#older", {"days": days(events), "filters": {"on": ""}, "older": None})


def an_event(verb: str, **facts: Any) -> Event:
    outcome = "denied" if verb in REFUSED else "done"
    return Event(verb=verb, at=timezone.now(), actor="ada", target="chat", outcome=outcome, facts=facts)


def all_kept() -> Iterator[tuple[str, str, str]]:
    for verb, (fact, table) in KEPT.items():
        for code in table:
            if not code.endswith((".", "_")):
                yield verb, fact, code.partition(":")[0]


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_the_page_shows_each_verb_in_words(language: str) -> None:
    with translation.override(language):
        assert raw_in(page_of([an_event(verb) for verb in (*SENTENCES, *REFUSED)])) == []


@pytest.mark.parametrize("language", ["en", "zh-hans"])
@pytest.mark.parametrize("verb", sorted(KEPT))
def test_the_page_shows_each_kept_code_in_words(verb: str, language: str) -> None:
    with translation.override(language):
        made = [(code, page_of([an_event(v, **{fact: code})])) for v, fact, code in all_kept() if v == verb]
        assert made
        assert {code: raw for code, text in made if (raw := raw_in(text))} == {}


def test_a_code_without_words_is_found_by_these_tests() -> None:
    assert raw_in(page_of([an_event("run.failed", reason="kettle.boiled_over")])) == ["kettle.boiled_over"]
    assert raw_in(page_of([an_event("kettle.boiled")])) == ["kettle.boiled"]


def test_a_start_without_its_numbers_still_has_a_whole_sentence() -> None:
    """A list counts many starts, and a record keeps no numbers of one."""
    told = {code: failed.title_of(code) for code in of_deployments.CODES}
    assert {code: text for code, text in told.items() if "—" in text} == {}


def test_a_refusal_keeps_the_numbers_of_its_sentence() -> None:
    refusal = {"code": "install.no_such_version", "params": {"package": "vllm 0.99"}}
    text = codes.sentence_of("runtime.install_failed", "code", refusal["code"], codes.facts_of(refusal)["params"])
    assert "0.99" in page_of([an_event("runtime.install_failed", **codes.facts_of(refusal))]) and "0.99" in text
    assert codes.facts_of({"code": "stopped"}) == {"code": "stopped"}


def test_every_fact_has_a_name() -> None:
    own = {"actor", "address", "story", "before", "after", "outcome", "via", codes.PARAMS}
    found: set[str] = set()
    for room in ("panel", "models_catalog", "deployments"):
        for path in (ROOT / room).rglob("*.py"):
            for call in _calls(ast.parse(path.read_text(encoding="utf-8"))):
                if _is_record(call.func):
                    found |= {word.arg for word in call.keywords if word.arg}
    assert found > {"host", "revision"}
    assert found - own - set(NAMES) == set()


def test_every_setting_is_called_as_in_the_form() -> None:
    old = DeploymentSpec(artifact_id=1)
    new = DeploymentSpec(
        artifact_id=2, host_id=1, device="cpu", gpu_uuids=["GPU-1"], gpu_count=2, task="embed", people=4,
        priority="speed", options={"max_model_len": 9, "swap_space": 4, "kv_cache_dtype": "fp8"}, extra_args=["--x"],
        env={"OMP_NUM_THREADS": "4"}, env_secrets={"HF_TOKEN": "hub"}, kv_cache_gib=3, grace_s=1, start_deadline_s=9,
        restart={"policy": "never", "max_attempts": 1}, fix_once=True,
    )  # fmt: skip
    changes = diff(old, new)
    assert len(changes) > 18
    for name in changes:
        assert raw_in(setting_words.named(name).label) == []
    assert setting_words.named("options.max_model_len") == setting_words.Named(
        "Longest conversation", "--max-model-len"
    )
    assert setting_words.named("options.swap_space").label == "--swap-space"
    assert setting_words.value("restart.policy", "never") == "Never start again by itself"
    edited = an_event("deployment.edited")
    edited.before, edited.after = ({name: pair[side] for name, pair in changes.items()} for side in (0, 1))
    assert raw_in(page_of([edited])) == []
