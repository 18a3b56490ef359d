"""Any text at all: nothing fails, nothing is run or looked up, and the time grows with the length alone."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.engines.base import RuntimeFacts
from deployments.pasting.match import Form, match
from deployments.pasting.read import Pasted, findings_of
from tests.deployments.pasting.commands import CASES, SECRETS

FLAGS = json.loads((Path(__file__).parents[2] / "fakes" / "flags.json").read_text())
VLLM = RuntimeFacts("/opt/vllm/bin/vllm", version="0.32.0", device="cuda", flags=tuple(FLAGS))
LENGTH = 40_000
# Seconds of processor time for the longest text. It takes well under one; what grows by the square takes minutes.
MOST_S = 6.0

BITS = [
    '"', "'", "`", "\\", "\\\n", "\n", " ", "$", "$(", "${", "}", ")", "(", "{", "[", "]", ";", "&", "|", "<", ">", "<<E",
    "#", "# ", "--", "—", "–", "“", "”", "‘", "=", "\0", "\ue000", "\u00a0", "^", "\ud800", "%", "~", "/", "$env:X=",
    "vllm serve", "docker run", "-v /a:/b", "-e A=b", "--model", "a/b", "-tp", "2", "bash -c", "sudo", "env", "export A=1",
    "python -m vllm.entrypoints.openai.api_server", "llama-server", "-hf", "ollama run", "services:", "ExecStart=",
    "\n  x:\n    image: vllm", "--max-model-len", "32k", '{"a": 1}', "CUDA_VISIBLE_DEVICES=0,1", "berth: {", "# berth: ",
    '# berth: {"v":1,"added":{"x":[]},"env":[1],"restart":{"policy":3},"grace_s":true,"host":5}', "PS C:\\>", "9" * 400,
]  # fmt: skip


def look(text: str) -> None:
    pasted = Pasted(text)
    pasted.secrets()
    for runtime in (VLLM, RuntimeFacts("")):
        draft = pasted.draft(runtime)
        findings = findings_of(pasted, draft)
        json.dumps([finding.as_dict() for finding in findings])
        if draft is not None:
            json.dumps(draft.values())
            match(draft.model, draft.quant, [Form(1, "a/b", "x", "hf", "/a/b", 1, "h")])
        else:
            assert findings


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(BITS), max_size=60).map(lambda bits: " ".join(bits))
    | st.lists(st.sampled_from(BITS), max_size=60).map("".join)
)
def test_mixtures_of_signs_never_fail(text: str) -> None:
    look(text)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=400))
def test_any_text_never_fails(text: str) -> None:
    look(text)
    look(f"vllm serve {text}")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([case[1] for case in CASES] + [case[0] for case in SECRETS]), st.data())
def test_real_commands_with_a_piece_cut_out_never_fail(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    look(text[:start] + data.draw(st.sampled_from(["", *BITS])) + text[end:])


@pytest.mark.parametrize("piece", range(len(BITS)))
def test_the_time_grows_with_the_length_alone(piece: int) -> None:
    for text in (BITS[piece], f"\n{BITS[piece]} a"):
        many = (text * (LENGTH // len(text)))[:LENGTH]
        start = time.process_time()
        for whole in (many, f"vllm serve a/b {many}"):
            pasted = Pasted(whole)
            findings_of(pasted, pasted.draft(VLLM))
        assert time.process_time() - start < MOST_S


def test_thousands_of_unknown_flags_end_early() -> None:
    text = "vllm serve a/b " + " ".join(f"--max-modle-len{n} 5" for n in range(3000))
    start = time.process_time()
    pasted = Pasted(text)
    findings = findings_of(pasted, pasted.draft(VLLM))
    assert time.process_time() - start < MOST_S
    assert "paste.too_many" in {finding.code for finding in findings}


def test_nothing_is_run_expanded_or_looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("the machine was asked")

    monkeypatch.setenv("BERTH_TEST_VALUE", "a-value-of-this-machine")
    monkeypatch.setenv("HOME", "/a-value-of-this-machine")
    witness = tmp_path / "was-run"
    text = (
        f"vllm serve $BERTH_TEST_VALUE/x --seed $(touch {witness}) --revision `touch {witness}` --chat-template ~/t.jinja"
        f" --tokenizer $HOME/x; touch {witness}; docker run -v $PWD:/m -e BERTH_TEST_VALUE vllm/vllm-openai --model /m/x"
    )
    for module, name in (
        (os, "system"),
        (os, "popen"),
        (os.path, "expandvars"),
        (os.path, "expanduser"),
        (subprocess, "Popen"),
    ):
        monkeypatch.setattr(module, name, forbidden)
    pasted = Pasted(text)
    draft = pasted.draft(VLLM)
    assert draft is not None
    assert "a-value-of-this-machine" not in json.dumps(
        [draft.values(), draft.model, [f.as_dict() for f in draft.findings]]
    )
    assert draft.extra_args() == []
    assert not witness.exists()


def test_a_text_that_is_too_long_is_cut_and_says_so() -> None:
    pasted = Pasted("vllm serve a/b " + "x" * 200_000)
    assert "paste.too_long" in {finding.code for finding in pasted.findings}
