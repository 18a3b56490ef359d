"""The exact command, the refusals and the translations of the vLLM adapter, on the schema of vLLM 0.32.0."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.engines.base import (
    EngineRefusal,
    Launch,
    LaunchContext,
    RuntimeFacts,
    command_preview,
    masked_env,
    version_key,
)
from deployments.engines.options import parse_schema
from deployments.engines.registry import adapter_for
from deployments.spec import DeploymentSpec
from panel.fleet.agent import guard
from panel.fleet.wire import EngineTask

ROWS = tuple(json.loads(Path("tests/fakes/flags.json").read_text(encoding="utf-8")))
CPU = RuntimeFacts("/opt/vllm/bin/vllm", "0.32.0+cpu", "cpu", (), ROWS)
GPU = RuntimeFacts("/opt/vllm/bin/vllm", "0.32.0", "cuda", ("gguf",), ROWS)
MODEL = "/models/smol"
ONE, TWO = ("GPU-aa",), ("GPU-aa", "GPU-bb")


def context(runtime: RuntimeFacts = CPU, gpus: tuple[str, ...] = (), facts: Any = None, **spec: Any) -> LaunchContext:
    return LaunchContext(
        spec=DeploymentSpec(artifact_id=1, **spec),
        runtime=runtime,
        served_name="smol",
        api_key="sk-secret",
        model_path=MODEL,
        model_facts=facts or {"format": "hf", "heads": 9},
        roots=("/models",),
        gpu_uuids=gpus,
        kv_cache_gib=2,
    )


def launch(*args: Any, **kwargs: Any) -> Launch:
    return adapter_for("vllm").launch(context(*args, **kwargs))


def refused(*args: Any, **kwargs: Any) -> dict[str, Any]:
    with pytest.raises(EngineRefusal) as caught:
        launch(*args, **kwargs)
    return {reason.code: dict(reason.params) for reason in caught.value.reasons}


def value_of(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_cpu_command_is_exact() -> None:
    done = launch()
    assert done.argv == [
        "/opt/vllm/bin/vllm", "serve", MODEL, "--host", "127.0.0.1", "--port", "{port}", "--served-model-name", "smol",
        "--max-num-seqs", "8", "--enforce-eager", "--max-model-len", "auto",
    ]  # fmt: skip
    assert done.env == {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "auto",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
    }
    assert done.secret_env == {"VLLM_API_KEY": "sk-secret"}
    assert done.needs_avx2
    assert [note.code for note in done.notes] == [
        "chosen.few_sequences",
        "chosen.no_compiling",
        "chosen.longest_context",
    ]


@pytest.mark.parametrize(
    ("facts", "flags", "options", "dtype"),
    [
        ({"dtype": "bfloat16"}, {"avx2", "amx_bf16"}, {}, "float16"),
        ({"dtype": "bfloat16", "model_type": "gemma3"}, {"amx_tile"}, {}, "float32"),
        ({"dtype": "float32"}, {"amx_bf16"}, {}, None),
        ({"dtype": "bfloat16"}, {"avx512f"}, {}, None),
        ({"dtype": "bfloat16"}, {"amx_bf16"}, {"dtype": "bfloat16"}, "bfloat16"),
    ],
)
def test_bfloat16_is_avoided_where_amx_makes_it_wrong(facts: Any, flags: Any, options: Any, dtype: str | None) -> None:
    given = replace(context(CPU, (), {"format": "hf", **facts}, options=options), cpu_flags=frozenset(flags))
    argv = adapter_for("vllm").launch(given).argv
    assert (value_of(argv, "--dtype") if "--dtype" in argv else None) == dtype


def test_a_cpu_compiles_only_when_someone_asks() -> None:
    assert "--enforce-eager" not in launch(extra_args=["-O1"]).argv
    assert "--no-enforce-eager" in launch(options={"enforce_eager": False}).argv
    assert "--enforce-eager" not in launch(GPU, ONE).argv


def test_gpu_command_reserves_and_splits() -> None:
    done = launch(GPU, TWO, {"heads": 32}, options={"max_model_len": 4096})
    assert value_of(done.argv, "--gpu-memory-utilization") == "0.9"
    assert value_of(done.argv, "--tensor-parallel-size") == "2"
    assert value_of(done.argv, "--max-model-len") == "4096"
    assert "VLLM_TARGET_DEVICE" not in done.env
    assert done.gpu_uuids == list(TWO)
    assert not done.needs_avx2


def test_the_agent_accepts_what_the_adapter_makes(tmp_path: Path) -> None:
    model = tmp_path / "smol"
    model.mkdir()
    extra = ["--compilation-config", '{"mode": 0}', "--limit-mm-per-prompt.image=0", "-O3", "--seed=-1"]
    made = replace(context(GPU, ONE, extra_args=extra, env={"OMP_NUM_THREADS": "2"}), model_path=str(model))
    done = adapter_for("vllm").launch(made)
    task = EngineTask(
        argv=done.argv, env=done.env, secret_env=done.secret_env, gpu_uuids=done.gpu_uuids, model_path=done.model_path
    )
    guard.check_engine(task, guard.Limits(roots=[tmp_path], executables=frozenset({"/opt/vllm/bin/vllm"})))


def test_every_flag_that_the_agent_denies_is_denied_here() -> None:
    limits = guard.Limits(roots=[], executables=frozenset())
    schema = parse_schema(ROWS)
    denied_there = {o.name for o in schema.options if guard.denied(o.flag, limits, remote_code=False)}
    assert denied_there
    assert denied_there - {o.name for o in schema.options if o.denied} == set()


@pytest.mark.parametrize(
    "extra",
    [
        ["--max-model-len", "512", "--enforce-eager"],
        ["--max-model-len=512", "--enforce_eager"],
        ["--max_model_len 512 --enforce-eager"],
        ["--max-model-len=512 \\\n  --enforce-eager"],
    ],
)
def test_further_flags_in_every_spelling(extra: list[str]) -> None:
    argv = launch(extra_args=extra).argv
    assert value_of(argv, "--max-model-len") == "512"
    assert "--enforce-eager" in argv
    assert "auto" not in argv


@pytest.mark.parametrize(
    "extra",
    [
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
        ['--speculative-config {"method": "ngram", "num_speculative_tokens": 3}'],
        ['--speculative-config=\'{"method": "ngram", "num_speculative_tokens": 3}\' --seed 1'],
        ['-sc={"method": "ngram", "num_speculative_tokens": 3}'],
    ],
)
def test_json_with_blanks_stays_one_value(extra: list[str]) -> None:
    given = json.loads(value_of(launch(extra_args=extra).argv, "--speculative-config"))
    assert given == {"method": "ngram", "num_speculative_tokens": 3}


def test_switches_lists_and_dotted_names() -> None:
    argv = launch(
        options={"enable_prefix_caching": False, "cudagraph_capture_sizes": [1, 2, 4]},
        extra_args=["--no-enable-chunked-prefill", "--compilation-config.mode", "0"],
    ).argv
    assert "--no-enable-prefix-caching" in argv
    assert "--no-enable-chunked-prefill" in argv
    at = argv.index("--cudagraph-capture-sizes")
    assert argv[at + 1 : at + 4] == ["1", "2", "4"]
    assert "--compilation-config.mode=0" in argv


@pytest.mark.parametrize(
    ("extra", "note", "argv_has"),
    [
        (["--swap-space", "4"], "flag.removed_no_effect", None),
        (["--disable-log-requests"], "flag.translated", "--no-enable-log-requests"),
        (["--device", "cpu"], "flag.device_by_runtime", None),
        (["--guided-decoding-backend", "xgrammar"], "flag.translated", "--structured-outputs-config"),
        (["--kv-cache-memory=1073741824"], "flag.translated", "--kv-cache-memory-bytes"),
        (["--disable-mm-preprocessor-cache"], "flag.translated", "--mm-processor-cache-gb"),
        (["--enable-reasoning", "--reasoning-parser", "qwen3"], "flag.removed_no_effect", "--reasoning-parser"),
        (["--num-scheduler-steps", "8"], "flag.removed_no_effect", None),
    ],
)
def test_gone_flags_are_translated_or_left_out(extra: list[str], note: str, argv_has: str | None) -> None:
    done = launch(extra_args=extra)
    assert note in [n.code for n in done.notes]
    assert extra[0].split("=")[0] not in done.argv
    if argv_has:
        assert argv_has in done.argv


def test_a_flag_that_the_parser_still_has_is_passed() -> None:
    old = replace(GPU, version="0.6.6", flags=(*ROWS, {"flags": ["--swap-space"], "dest": "swap_space", "type": "float",
                                                      "nargs": None, "choices": None, "default": 4}))  # fmt: skip
    done = launch(old, ONE, extra_args=["--swap-space", "4"])
    assert value_of(done.argv, "--swap-space") == "4.0"


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"options": {"max_model_len": "many"}}, "option.not_a_size"),
        ({"options": {"max_num_seqs": 0}}, "option.out_of_range"),
        ({"options": {"gpu_memory_utilization": 1.5}}, "option.out_of_range"),
        ({"options": {"gpu_memory_utilization": float("nan")}}, "option.out_of_range"),
        ({"options": {"dtype": "bf32"}}, "option.not_a_choice"),
        ({"options": {"enforce_eager": "yes"}}, "option.not_a_switch"),
        ({"extra_args": ["--compilation-config", "{mode: 0}"]}, "option.bad_json"),
        ({"extra_args": ["--max-model-len"]}, "option.missing_value"),
        ({"extra_args": ["--max-model-lenght", "5"]}, "flag.unknown"),
        ({"extra_args": ["; rm -rf /"]}, "args.stray"),
        ({"extra_args": ["--seed 'x"]}, "args.open_quote"),
        ({"extra_args": ["--device", "cuda"]}, "flag.device_other"),
        ({"extra_args": ["--seed", "1"], "options": {"seed": 2}}, "option.twice"),
        ({"extra_args": ["--host", "0.0.0.0"]}, "option.denied_house"),
        ({"extra_args": ["--port=80"]}, "option.denied_house"),
        ({"extra_args": ["--api-key", "x"]}, "option.denied_secret"),
        ({"extra_args": ["--uds", "/tmp/x"]}, "option.denied_house"),
        ({"extra_args": ["--ssl-keyfile", "x"]}, "option.denied_house"),
        ({"extra_args": ["--middleware", "os.system"]}, "option.denied_code"),
        ({"extra_args": ["--tool-parser-plugin=/tmp/x.py"]}, "option.denied_code"),
        ({"extra_args": ["--trust-remote-code"]}, "option.denied_house"),
        ({"extra_args": ["--config", "x.yaml"]}, "option.denied_house"),
        ({"extra_args": ["--distributed-executor-backend", "my.Executor"]}, "option.denied_code"),
        ({"extra_args": ["--distributed-executor-backend", "ray"]}, "option.not_a_choice"),
        ({"options": {"structured_outputs_config": {"reasoning_parser_plugin": "/x.py"}}}, "option.denied_code"),
        ({"extra_args": ["--compilation-config.backend=os.system"]}, "option.denied_code"),
        ({"options": {"compilation_config": {"inductor_passes": {"a": "b"}}}}, "option.denied_code"),
        ({"extra_args": ["--chat-template", "/etc/passwd"]}, "option.path_outside"),
        ({"extra_args": ["--lora-modules", "a=/models/../etc"]}, "option.path_outside"),
        ({"options": {"speculative_config": {"model": "/etc/x"}}}, "option.path_outside"),
        ({"options": {"tool_call_parser": "{port}"}}, "option.bad_text"),
        ({"options": {"chat_template": "a\x00b"}}, "option.bad_text"),
        ({"env": {"LD_PRELOAD": "/x.so"}}, "env.denied"),
        ({"env": {"VLLM_PLUGINS": "x"}}, "env.denied"),
        ({"env": {"VLLM_API_KEY": "x"}}, "env.denied_house"),
        ({"env": {"HF_TOKEN": "x"}}, "env.denied"),
        ({"options": {"tensor_parallel_size": 2}}, "parallel.not_the_gpus"),
        ({"options": {"runner": "pooling"}}, "task.other_runner"),
    ],
)
def test_bad_input_is_refused_by_code(spec: dict[str, Any], code: str) -> None:
    assert code in refused(**spec)


def test_all_reasons_come_at_once_with_their_option() -> None:
    with pytest.raises(EngineRefusal) as caught:
        launch(options={"dtype": "x", "max_num_seqs": "y"}, extra_args=["--middleware", "z"])
    assert [r.option for r in caught.value.reasons] == ["dtype", "max_num_seqs", "middleware"]


def test_an_unknown_flag_names_the_near_one() -> None:
    assert refused(extra_args=["--max-num-seq", "4"])["flag.unknown"]["near"] == "--max-num-seqs"


def test_old_parsers_are_understood() -> None:
    def row(name: str, kind: str, nargs: Any = None, text: str = "") -> dict[str, Any]:
        flag = "--" + name.replace("_", "-")
        return {
            "flags": [flag],
            "dest": name,
            "type": kind,
            "nargs": nargs,
            "choices": None,
            "default": None,
            "help": text,
        }

    rows = (
        row("enable_chunked_prefill", "None", "?"),
        row("num_gpu_blocks_override", "optional_int"),
        row("mm_processor_kwargs", "_optional_type", text="so long that its end is cut"),
        row("max_model_len", "human_readable_int"),
    )
    old = replace(GPU, version="0.8.5", flags=rows)
    extra = ["--enable-chunked-prefill", "--num-gpu-blocks-override=7", "--mm-processor-kwargs={}"]
    argv = launch(old, ONE, extra_args=extra).argv
    assert value_of(argv, "--enable-chunked-prefill") == "true"
    assert value_of(argv, "--mm-processor-kwargs") == "{}"
    assert "auto" not in argv
    assert "option.not_an_int" in refused(old, ONE, extra_args=["--num-gpu-blocks-override", "x"])
    assert "option.bad_json" in refused(old, ONE, extra_args=["--mm-processor-kwargs", "{x"])


def test_heads_must_divide() -> None:
    assert refused(GPU, TWO, {"heads": 9})["parallel.heads"] == {"heads": 9, "parts": 2}


def test_pooling_tasks_ask_for_the_pooling_runner() -> None:
    assert value_of(launch(task="embed").argv, "--runner") == "pooling"
    old = {"flags": ["--task"], "dest": "task", "type": "str", "nargs": None, "choices": None, "default": "auto"}
    rows = (*(row for row in ROWS if row["dest"] not in ("runner", "convert")), old)
    assert value_of(launch(replace(CPU, flags=rows), task="embed").argv, "--task") == "embed"


def test_gguf_is_the_file_with_its_tokenizer() -> None:
    facts = {"format": "gguf", "config_beside": True}
    file = replace(context(GPU, ONE, facts), model_path="/models/g/a.gguf")
    done = adapter_for("vllm").launch(file)
    assert done.argv[2] == "/models/g/a.gguf"
    assert value_of(done.argv, "--tokenizer") == "/models/g"
    assert "gguf.not_a_file" in refused(GPU, ONE, {"format": "gguf"})
    assert "gguf.plugin_missing" in refused(replace(GPU, plugins=()), ONE, {"format": "gguf"})
    assert "gguf.no_cpu_kernels" in refused(replace(CPU, plugins=("gguf",)), (), {"format": "gguf"})
    older = replace(file, runtime=replace(GPU, plugins=(), version="0.22.1"))
    assert adapter_for("vllm").launch(older).argv[2] == "/models/g/a.gguf"


def test_remote_code_only_when_an_admin_allowed_it() -> None:
    facts = {"format": "hf", "needs_remote_code": True, "code_files": ["modeling_x.py"]}
    assert refused(CPU, (), facts)["model.remote_code"] == {"files": ["modeling_x.py"]}
    allowed = adapter_for("vllm").launch(replace(context(CPU, (), facts), allow_remote_code=True))
    assert "--trust-remote-code" in allowed.argv
    assert allowed.allow_remote_code


def test_a_runtime_for_the_wrong_device_is_refused() -> None:
    assert "runtime.not_for_gpu" in refused(CPU, ONE)
    assert "runtime.not_for_cpu" in refused(GPU)


def test_without_a_schema_only_the_house_flags_are_used() -> None:
    bare = replace(CPU, flags=())
    assert launch(bare).argv[-2:] == ["--max-num-seqs", "8"]
    assert "runtime.no_schema" in refused(bare, options={"seed": 1})


def test_preview_can_be_pasted_and_hides_the_key() -> None:
    done = launch(GPU, ONE, options={"hf_overrides": {"a": "it's"}})
    text = command_preview(done, port=8001)
    assert "sk-secret" not in text
    assert 'VLLM_API_KEY="$VLLM_API_KEY"' in text
    words = shlex.split(text)
    assert words[-len(done.argv) :] == ["8001" if w == "{port}" else w for w in done.argv]
    assert "sk-secret" not in masked_env(done).values()


def test_versions_in_order() -> None:
    order = ["0.6.3.post1", "0.9.2", "0.11.0rc1", "0.11.0", "0.32.0+cpu", "1.0"]
    assert sorted(order, key=version_key) == order
    assert version_key("unknown") == ()


@pytest.mark.parametrize(
    ("version", "facts", "needs"),
    [
        ("0.32.0", {"format": "gguf"}, True),
        ("0.32.0", {"format": "gguf", "config_beside": True}, False),
        ("0.32.0", {"format": "hf"}, False),
        ("0.25.1", {"format": "gguf"}, False),
        ("", {"format": "gguf"}, False),
    ],
    ids=["alone", "files beside it", "a folder", "reads it by itself", "unknown version"],
)
def test_which_models_need_a_description(version: str, facts: dict, needs: bool) -> None:
    assert adapter_for("vllm").needs_sidecar(RuntimeFacts("/x/vllm", version=version), facts) is needs


def test_on_a_cpu_the_plugin_would_not_help() -> None:
    runtime = RuntimeFacts("/x/vllm", version="0.32.0", device="cpu")
    (reason,) = adapter_for("vllm").runtime_reasons(runtime, {"format": "gguf"}, "cpu")
    assert reason.code == "gguf.no_cpu_kernels"


def test_what_the_host_asks_leaves_no_lines_in_the_engines_log() -> None:
    asked = adapter_for("vllm").launch(replace(context(), asked_paths=("/health", "/metrics"))).argv
    assert value_of(asked, "--disable-access-log-for-endpoints") == "/health,/metrics"
    assert "--disable-access-log-for-endpoints" not in launch().argv, "an older agent refuses the value"
