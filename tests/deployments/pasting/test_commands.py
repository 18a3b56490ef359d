"""Commands of many kinds become the settings that they mean, and every finding has its sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.engines.base import RuntimeFacts
from deployments.pasting.draft import Draft
from deployments.pasting.read import Pasted, findings_of
from tests.deployments.pasting.commands import CASES, NOTHING, SECRETS

FLAGS = json.loads((Path(__file__).parents[2] / "fakes" / "flags.json").read_text())
VLLM = RuntimeFacts("/opt/vllm/bin/vllm", version="0.32.0", device="cuda", flags=tuple(FLAGS))


def read(text: str, runtime: RuntimeFacts = VLLM) -> tuple[Draft | None, list[Any]]:
    pasted = Pasted(text)
    draft = pasted.draft(runtime)
    return draft, findings_of(pasted, draft)


@pytest.mark.parametrize(("text", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_a_command_means(text: str, wanted: dict[str, Any]) -> None:
    draft, findings = read(text)
    assert draft is not None
    have = {
        "engine": draft.start.engine, "model": draft.model, "quant": draft.quant, "name": draft.name,
        "device": draft.device, "task": draft.task, "gpus": draft.gpus, "count": draft.gpu_count, "opt": draft.options,
        "args": draft.extra_args(), "env": draft.env, "kv": draft.kv_cache_gib, "restart": draft.restart,
    }  # fmt: skip
    codes = {finding.code for finding in findings}
    expected = {key: value for key, value in wanted.items() if key != "codes"}
    assert {key: have[key] for key in expected} == expected
    assert codes >= set(wanted.get("codes", ())), codes
    json.dumps([finding.as_dict() for finding in findings])


@pytest.mark.parametrize(("text", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_without_an_engine_nothing_fails_and_the_model_is_the_same(text: str, wanted: dict[str, Any]) -> None:
    draft, _findings = read(text, RuntimeFacts(""))
    assert draft is not None
    if "model" in wanted:
        assert draft.model == wanted["model"]
    assert draft.options == wanted.get("opt", draft.options)


@pytest.mark.parametrize("text", NOTHING)
def test_what_starts_no_engine(text: str) -> None:
    draft, findings = read(text)
    assert draft is None
    assert findings[0].code == "paste.nothing"


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_secrets_are_named_and_never_kept(text: str, secret: str) -> None:
    pasted = Pasted(text)
    draft = pasted.draft(VLLM)
    assert draft is not None
    kept = json.dumps([draft.values(), draft.model, draft.name, [f.as_dict() for f in findings_of(pasted, draft)]])
    assert secret not in kept
    assert any(finding.code.startswith(("paste.secret", "option.denied")) for finding in draft.findings)


def test_paths_outside_the_model_folders_are_left_out() -> None:
    pasted = Pasted("vllm serve /models/a --chat-template /etc/passwd --lora-modules x=/models/l")
    draft = pasted.draft(VLLM, ("/models",))
    assert draft is not None
    assert draft.extra_args() == ["--lora-modules", "x=/models/l"]
    assert "option.path_outside" in {finding.code for finding in draft.findings}


def test_an_older_engine_keeps_the_flags_that_it_has() -> None:
    older = replace(
        VLLM, flags=(*FLAGS, {"flags": ["--swap-space"], "dest": "swap_space", "type": "float", "nargs": None})
    )
    draft, findings = read("vllm serve a/b --swap-space 4", older)
    assert draft is not None and draft.extra_args() == ["--swap-space", "4.0"]
    assert "flag.removed_no_effect" not in {finding.code for finding in findings}


@pytest.mark.parametrize(
    ("image", "written"),
    [("vllm/vllm-openai:v0.8.5", "0.8.5"), ("vllm/vllm-openai:v0.8.5.post1@sha256:ab", "0.8.5"),
     ("registry.example/x/vllm-cpu-release-repo:v0.10.0", "0.10.0"), ("vllm/vllm-openai:0.9.2-cu128", "0.9.2"),
     ("vllm/vllm-openai:v0.32.0", None), ("vllm/vllm-openai:latest", None), ("vllm/vllm-openai", None),
     ("localhost:5000/vllm", None), ("acme/serve:v1.2.0", None)],
)  # fmt: skip
def test_a_command_for_another_version_says_so(image: str, written: str | None) -> None:
    compose = f"services:\n  llm:\n    image: {image}\n    command: vllm serve a/b\n"
    for text in (f"docker run --gpus all {image} vllm serve a/b", compose):
        _draft, findings = read(text)
        told = [one.params for one in findings if one.code == "paste.other_version"]
        assert told == ([{"written": written, "read": "0.32.0"}] if written else [])


def test_every_finding_has_a_sentence() -> None:
    import re

    from deployments.codes_paste import PASTE
    from deployments.pasted import say
    from deployments.pasting.start import Finding

    made = set()
    for folder in ("deployments/pasting", "deployments/pasted.py", "deployments/pasted_secrets.py"):
        place = Path(__file__).parents[3] / folder
        for path in place.glob("*.py") if place.is_dir() else [place]:
            made |= set(re.findall(r'"(paste\.[a-z_]+)"', path.read_text()))
    assert made - {"paste.too_old", "paste.not_offered"} == set(PASTE)  # these are refusals, with their own words
    for code in PASTE:
        words = say(Finding("note", code))
        assert words.text and "%(" not in words.text + words.hint
