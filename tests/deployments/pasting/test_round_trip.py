"""What is exported can be read back: the same settings, and the same command of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines.base import EngineRefusal, Launch, LaunchContext, RuntimeFacts
from deployments.engines.vllm import VLLM
from deployments.exporting.forms import FORMS, Exported, export
from deployments.pasting.read import Pasted, findings_of
from deployments.spec import DeploymentSpec

FLAGS = json.loads((Path(__file__).parents[2] / "fakes" / "flags.json").read_text())
CUDA = RuntimeFacts("/opt/vllm 0.32/bin/vllm", version="0.32.0", device="cuda", flags=tuple(FLAGS))
CPU = RuntimeFacts("/opt/vllm/bin/vllm", version="0.32.0+cpu", device="cpu", flags=tuple(FLAGS))
UUIDS = ("GPU-1a", "GPU-2b", "GPU-3c", "GPU-4d")
KEY = "the-key-of-this-run"

WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters="\x85\u2028\u2029"),
    min_size=1,
    max_size=20,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_model_len": st.integers(16, 200_000),
        "max_num_seqs": st.integers(1, 4096),
        "gpu_memory_utilization": st.sampled_from([0.5, 0.85, 0.9, 0.95]),
        "dtype": st.sampled_from(["bfloat16", "float16", "float32"]),
    },
)
FURTHER = {
    "enable_prefix_caching": st.booleans(),
    "enforce_eager": st.just(True),
    "seed": st.integers(-5, 10_000),
    "max_num_batched_tokens": st.integers(1, 100_000),
    "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
    "hf_overrides": st.dictionaries(
        st.sampled_from(["a", "b c"]), st.integers() | WORDS.filter(lambda w: w[0] not in "/~.f"), min_size=1
    ),
    "chat_template": st.just('/models/it\'s a "t" $HOME %d.jinja'),
    "tool_call_parser": st.sampled_from(["hermes", "llama3_json"]),
    "limit_mm_per_prompt": st.just({"image": 2}),
}
ENV = st.dictionaries(
    st.sampled_from(["VLLM_USE_V1", "OMP_NUM_THREADS", "NCCL_DEBUG", "TZ"]),
    st.sampled_from(["1", "a b", "it's", "x$y", "100%", 'q"q']),
)
RESTART = st.fixed_dictionaries({"policy": st.sampled_from(["never", "on_failure"]), "max_attempts": st.integers(1, 5)})


def launch(spec: DeploymentSpec, uuids: tuple[str, ...]) -> Launch:
    runtime = CUDA if uuids else CPU
    facts = {"heads": 16, "dtype": "bfloat16"}
    return VLLM().launch(
        LaunchContext(spec=spec, runtime=runtime, served_name="team-chat", api_key=KEY, model_path="/models/a b/Qwen",
                      model_facts=facts, roots=("/models",), gpu_uuids=uuids, kv_cache_gib=spec.kv_cache_gib or 4)
    )  # fmt: skip


def read_back(text: str, uuids: tuple[str, ...]) -> DeploymentSpec:
    draft = Pasted(text).draft(CUDA if uuids else CPU, ("/models",))
    assert draft is not None and draft.model == "/models/a b/Qwen" and draft.name == "team-chat"
    return DeploymentSpec(artifact_id=7, **{"gpu_uuids": draft.gpus, **draft.values()})


@st.composite
def specs(draw: st.DrawFn) -> DeploymentSpec:
    """As the form makes them: four options of its own, everything else as flags."""
    further = draw(st.fixed_dictionaries({}, optional=FURTHER))
    count = draw(st.sampled_from([0, 1, 2, 4]))
    args: list[str] = []
    for name, value in further.items():
        flag = "--" + name.replace("_", "-")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if isinstance(value, bool):
            args.append(flag if value else flag.replace("--", "--no-"))
        else:
            args += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    values: dict[str, Any] = {
        "options": draw(OPTIONS), "extra_args": args, "env": draw(ENV), "grace_s": draw(st.sampled_from([0.0, 12.5, 30.0, 600.0])),
        "restart": draw(RESTART), "start_deadline_s": draw(st.sampled_from([5.0, 3600.0, 7200.0])),
        "task": draw(st.sampled_from(["generate", "embed", "score"])), "gpu_count": max(1, count),
        "device": draw(st.sampled_from(["auto", "gpu"] if count else ["auto", "cpu"])),
    }  # fmt: skip
    if count:
        values["gpu_uuids"] = draw(st.sampled_from([[], list(UUIDS[:count])]))
    else:
        values["kv_cache_gib"] = draw(st.none() | st.integers(1, 64))
    return DeploymentSpec(artifact_id=7, **values)


def forms_of(spec: DeploymentSpec) -> tuple[list[str], tuple[str, ...], Launch]:
    on_gpu = spec.device == "gpu" or bool(spec.gpu_uuids) or spec.gpu_count > 1
    uuids = tuple(spec.gpu_uuids) or (UUIDS[: spec.gpu_count] if on_gpu else ())
    made = launch(spec, uuids)
    what = Exported(
        "team-chat", spec, made, CUDA if uuids else CPU, "Deployment team-chat, settings 3", folders=("/models",)
    )
    return [export(what, form) for form in FORMS], uuids, made


@settings(max_examples=120, deadline=None)
@given(specs())
def test_the_same_settings_come_back(spec: DeploymentSpec) -> None:
    texts, uuids, made = forms_of(spec)
    for text in texts:
        again = read_back(text, uuids)
        assert again == spec, text
        assert launch(again, uuids) == made
        assert KEY not in text


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({}, optional=FURTHER), OPTIONS, st.sampled_from([(), UUIDS[:1], UUIDS[:2]]))
def test_whatever_the_settings_look_like_the_command_is_the_same(
    further: dict[str, Any], options: dict[str, Any], uuids: tuple[str, ...]
) -> None:
    """Typed options become flags on the way; what starts is equal."""
    spec = DeploymentSpec(
        artifact_id=7, options={**options, **further}, gpu_count=max(1, len(uuids)), device="gpu" if uuids else "cpu"
    )
    texts, _uuids, _made = forms_of(spec) if uuids or spec.device == "cpu" else ([], (), None)
    before = launch(spec, uuids)
    for text in texts:
        after = launch(read_back(text, uuids), uuids)
        assert sorted(after.argv) == sorted(before.argv)
        assert (after.env, after.gpu_uuids) == (before.env, before.gpu_uuids)


@pytest.mark.parametrize("form", FORMS)
def test_what_a_person_changes_in_the_text_counts(form: Any) -> None:
    spec = DeploymentSpec(artifact_id=7, options={"max_model_len": 4096}, gpu_count=2, device="gpu")
    texts, uuids, _made = forms_of(spec)
    lines = texts[FORMS.index(form)].splitlines()
    changed = [one if one.startswith("#") else one.replace("4096", "8192").replace("0.9", "0.8") for one in lines]
    text = "\n".join(changed)
    again = read_back(text, uuids)
    assert again.options == {"max_model_len": 8192, "gpu_memory_utilization": 0.8}


@pytest.mark.parametrize("form", FORMS)
def test_without_its_comment_the_command_is_read_as_any_other(form: Any) -> None:
    spec = DeploymentSpec(artifact_id=7, options={"max_model_len": 4096}, gpu_uuids=list(UUIDS[:2]), gpu_count=2)
    texts, uuids, _made = forms_of(spec)
    bare = "\n".join(line for line in texts[FORMS.index(form)].splitlines() if not line.startswith("# berth"))
    again = read_back(bare, uuids)
    assert again.gpu_uuids == list(UUIDS[:2])
    assert again.options["max_model_len"] == 4096


@pytest.mark.parametrize("form", FORMS)
def test_what_berth_sets_and_people_may_not_says_nothing(form: Any) -> None:
    """A model with code of its own that was allowed, and a lone GGUF with its description."""
    spec = DeploymentSpec(artifact_id=7, gpu_uuids=["GPU-1a"])
    runtime = replace(CUDA, plugins=("gguf",))
    facts = {"format": "gguf", "heads": 16}
    made = VLLM().launch(
        LaunchContext(spec=spec, runtime=runtime, served_name="team-chat", api_key=KEY, model_path="/models/x.gguf",
                      model_facts=facts, roots=("/models",), gpu_uuids=("GPU-1a",), sidecar="/var/described",
                      allow_remote_code=True)
    )  # fmt: skip
    assert "--trust-remote-code" in made.argv and "--hf-config-path" in made.argv
    pasted = Pasted(export(Exported("team-chat", spec, made, runtime), form))
    draft = pasted.draft(runtime, ("/models",))
    assert draft is not None and draft.extra_args() == [] and draft.model == "/models/x.gguf"
    assert not [finding.code for finding in findings_of(pasted, draft) if finding.level != "note"]


def test_what_the_engine_refuses_is_not_exported() -> None:
    with pytest.raises(EngineRefusal):
        forms_of(DeploymentSpec(artifact_id=7, extra_args=["--middleware", "x.Y"]))
