"""What a host refuses to run, whoever orders it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from panel.fleet.agent import guard
from panel.fleet.wire import EngineTask

ENGINE = "/opt/engines/vllm"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    (root / "m").mkdir(parents=True)
    (root / "m" / "config.json").write_text("{}")
    return root


def limits(root: Path, **more: Any) -> guard.Limits:
    fields = {"executables": frozenset([ENGINE]), "cpu_flags": frozenset(["avx2"]), **more}
    return guard.Limits(roots=[root], **fields)


def task(root: Path, *flags: str, **more: Any) -> EngineTask:
    model = str(more.pop("model_path", root / "m"))
    argv = [ENGINE, "serve", model, "--host", "127.0.0.1", "--port", "{port}", *flags]
    return EngineTask(**{"argv": argv, "model_path": model, **more})


def refusal(what: EngineTask, allowed: guard.Limits) -> tuple[str, dict[str, Any]]:
    with pytest.raises(guard.Refused) as caught:
        guard.check_engine(what, allowed)
    return caught.value.refusal.code, caught.value.refusal.params


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--dtype", "bfloat16", "--max-model-len", "4096", "--served-model-name", "my-model"],
        ["--gpu-memory-utilization", "0.9", "-tp", "2", "-O2", "--seed", "-1", "-q", "awq"],
        ["--hf-overrides", '{"architectures": ["XForSequenceClassification"]}'],
        ["--compilation-config", '{"cudagraph_mode": "NONE"}'],
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
        ["--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}"],
        ["--root-path", "/berth"],
        ["--disable-access-log-for-endpoints", "/health,/metrics"],
        ["--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice"],
        ["--load-format", "safetensors", "--tokenizer", "org/name", "--no-trust-remote-code"],
    ],
)
def test_ordinary_commands_pass(root: Path, flags: list[str]) -> None:
    guard.check_engine(task(root, *flags), limits(root))


@pytest.mark.parametrize(
    "flags",
    [
        ["--trust-remote-code"],
        ["--trust_remote_code"],
        ["--trust-remote"],  # argparse takes abbreviations
        ["--Trust-Remote-Code"],
        ["--tool-parser-plugin", "x.py"],
        ["--tool_parser_plugin=x.py"],
        ["--reasoning-parser-plugin", "x.py"],
        ["--middleware", "os.system"],
        ["--middle=os.system"],
        ["--worker-cls", "a.b"],
        ["--worker", "a.b"],
        ["--worker-extension-cls", "a.b"],
        ["--logits-processors", "a.b"],
        ["--logits-proc", "a.b"],
        ["--scheduler-cls", "a.b"],
        ["--config", "x.yaml"],
        ["--conf", "x.yaml"],
        ["--kv-transfer-config", "{}"],
        ["--kv-transfer-config.kv_connector_module_path", "a.b"],
        ["--compilation-config.inductor_passes.x", "a.b"],
        ["--compilation-config.backend", "a.b"],
        ["-cc.backend=a.b"],
        ['-cc={"backend": "a.b"}'],
        ["-O.backend=a.b"],
        ["-n2"],
        ["-dpa", "10.0.0.1"],
        ["--api-key", "secret"],
        ["--uds", "/tmp/x.sock"],
        ["--grpc"],
        ["--allowed-local-media-path", "/"],
        ["--"],
    ],
)
def test_flags_that_load_code_or_open_doors_are_refused(root: Path, flags: list[str]) -> None:
    code, params = refusal(task(root, *flags), limits(root))
    assert code == "flag_not_allowed"
    assert params["flag"]


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--compilation-config", '{"backend": "evil.module.run"}'], "flag_value_not_allowed"),
        (["--compilation-config", '{"inductor_passes": {"a": "evil.run"}}'], "flag_value_not_allowed"),
        (["--compilation-config", '{"deep": [{"backend": "evil.run"}]}'], "flag_value_not_allowed"),
        (["--hf-overrides", '{"auto_map": {"AutoModel": "evil.Model"}}'], "flag_value_not_allowed"),
        (["--speculative-config", '{"model": "/etc"}'], "path_not_allowed"),
        (["--speculative-config", "{broken"], "flag_value_not_allowed"),
        (["--distributed-executor-backend", "evil.Executor"], "flag_value_not_allowed"),
        (["--chat-template", "/etc/passwd"], "path_not_allowed"),
        (["--chat-template=/etc/passwd"], "path_not_allowed"),
        (["--chat-template", "../../../etc/passwd"], "path_not_allowed"),
        (["--chat-template", "~/x"], "path_not_allowed"),
        (["--lora-modules", "a=/etc"], "path_not_allowed"),
        (["--tokenizer", "file:///etc"], "path_not_allowed"),
        (["--seed", "1\0002"], "argument_size"),
        (["--seed", "1" * (1 << 17)], "argument_size"),
    ],
)
def test_values_that_name_code_or_foreign_paths_are_refused(root: Path, flags: list[str], code: str) -> None:
    assert refusal(task(root, *flags), limits(root))[0] == code


@pytest.mark.parametrize(
    "argv",
    [
        ["--port", "{port}"],
        ["--host", "0.0.0.0", "--port", "{port}"],
        ["--host=0.0.0.0", "--port", "{port}"],
        ["--host", "127.0.0.1", "--host", "0.0.0.0", "--port", "{port}"],
        ["--host", "127.0.0.1", "--hos=0.0.0.0", "--port", "{port}"],
        ["--host", "127.0.0.1.evil.example", "--port", "{port}"],
        ["--host", "--port", "{port}"],
    ],
)
def test_only_loopback_is_listened_on(root: Path, argv: list[str]) -> None:
    what = EngineTask(argv=[ENGINE, "serve", str(root / "m"), *argv], model_path=str(root / "m"))
    assert refusal(what, limits(root))[0] == "host_not_loopback"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--port", "8000"],
        ["--port={port}"],
        ["--port", "{port}", "--port", "8000"],
        ["--port", "{port}", "--por=8000"],
        ["--port", "{port}", "--seed", "{port}"],
    ],
)
def test_the_port_is_the_agents(root: Path, argv: list[str]) -> None:
    what = EngineTask(argv=[ENGINE, "serve", str(root / "m"), "--host", "localhost", *argv], model_path=str(root / "m"))
    assert refusal(what, limits(root))[0] == "port_not_ours"


def test_a_stranger_of_an_executable_is_refused(root: Path) -> None:
    what = EngineTask(argv=["/bin/sh", "-c", "id", str(root / "m")], model_path=str(root / "m"))
    assert refusal(what, limits(root)) == ("runtime_unknown", {"executable": "/bin/sh"})


def test_vllm_only_serves(root: Path) -> None:
    what = EngineTask(argv=[ENGINE, "run-batch", str(root / "m")], model_path=str(root / "m"))
    assert refusal(what, limits(root))[0] == "command_not_allowed"


@pytest.mark.parametrize("path", ["/etc", "relative", "{root}/../outside", "{root}/out", "{root}/loop", "{root}/m\0x"])
def test_models_outside_the_roots_are_refused(root: Path, path: str) -> None:
    (root.parent / "outside").mkdir()
    (root / "out").symlink_to(root.parent / "outside")
    (root / "loop").symlink_to(root / "loop")
    what = task(root, model_path=path.replace("{root}", str(root)))
    assert refusal(what, limits(root))[0] == "path_not_allowed"


def test_a_missing_model_says_so(root: Path) -> None:
    assert refusal(task(root, model_path=root / "none"), limits(root))[0] == "path_missing"
    assert refusal(task(root), guard.Limits(roots=[], executables=frozenset([ENGINE])))[0] == "path_not_allowed"


def test_the_command_runs_the_model_that_was_checked(root: Path) -> None:
    what = EngineTask(
        argv=[ENGINE, "serve", "org/name", "--host", "::1", "--port", "{port}"], model_path=str(root / "m")
    )
    assert refusal(what, limits(root))[0] == "model_not_in_command"


def test_links_stay_below_the_roots_as_a_hugging_face_cache_needs(root: Path) -> None:
    blobs, snapshot = root / "repo" / "blobs", root / "repo" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "abc").write_text("weights")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    guard.check_engine(task(root, model_path=snapshot), limits(root))
    (snapshot / "config.json").symlink_to("/etc/hostname")
    assert refusal(task(root, model_path=snapshot), limits(root))[0] == "path_not_allowed"


def test_remote_code_needs_both_sides(root: Path) -> None:
    what = task(root, "--trust-remote-code", allow_remote_code=True)
    guard.check_engine(what, limits(root))
    assert refusal(what, limits(root, remote_code=False))[0] == "flag_not_allowed"


def test_the_owner_of_the_host_may_allow_single_entries(root: Path) -> None:
    what = task(root, "--scheduler-cls", "ours.Scheduler", env={"VLLM_PLUGINS": "ours"})
    allowed = limits(root, allow_flags=frozenset(["--scheduler-cls"]), allow_env=frozenset(["VLLM_PLUGINS"]))
    guard.check_engine(what, allowed)
    assert refusal(task(root, "--worker-cls", "a.b"), allowed)[0] == "flag_not_allowed"


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_TARGET_DEVICE",
        "HF_HUB_OFFLINE",
        "OMP_NUM_THREADS",
        "VLLM_LOGGING_LEVEL",
        "PYTORCH_CUDA_ALLOC_CONF",
        "NCCL_P2P_DISABLE",
        "TOKENIZERS_PARALLELISM",
        "VLLM_API_KEY",
        "HF_TOKEN",
        "VLLM_ATTENTION_BACKEND",
        "VLLM_NO_USAGE_STATS",
    ],
)
def test_settings_of_engines_pass(root: Path, name: str) -> None:
    guard.check_engine(task(root, env={name: "1"}), limits(root))


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PYTHONHOME",
        "PATH",
        "HOME",
        "BASH_ENV",
        "VLLM_PLUGINS",
        "VLLM_NCCL_SO_PATH",
        "VLLM_SERVER_DEV_MODE",
        "VLLM_ALLOW_INSECURE_SERIALIZATION",
        "VLLM_LOGGING_CONFIG_PATH",
        "VLLM_CACHE_ROOT",
        "NCCL_NET_PLUGIN",
        "OMP_TOOL_LIBRARIES",
        "HF_MODULES_CACHE",
        "HF_ENDPOINT",  # the host's own hub token would go there
        "GGML_BACKEND_PATH",
        "CUDA_INJECTION64_PATH",
        "BERTH_JOB",
        "SPT_NOENV",
        "vllm_x",
        "VLLM_X;id",
        "VLLM_A=B",
        "",
    ],
)
@pytest.mark.parametrize("where", ["env", "secret_env"])
def test_environment_that_loads_code_is_refused(root: Path, name: str, where: str) -> None:
    assert refusal(task(root, **{where: {name: "1"}}), limits(root))[0] == "environment_not_allowed"


@pytest.mark.parametrize("name", ["VLLM_LOGGING_LEVEL", "HF_HOME"])
def test_a_refused_secret_is_named_and_not_told(root: Path, name: str) -> None:
    what = task(root, secret_env={name: "/Zq8fW2kLmN4pR7tV0xYb"})
    assert refusal(what, limits(root)) == ("environment_not_allowed", {"name": name})
    assert refusal(task(root, env={name: "/not/allowed"}), limits(root))[1] == {"path": "/not/allowed"}


def test_environment_bounds(root: Path) -> None:
    many = {f"VLLM_X{i}": "1" for i in range(300)}
    assert refusal(task(root, env=many), limits(root))[0] == "environment_size"
    assert refusal(task(root, env={"VLLM_X": "1\0"}), limits(root))[0] == "environment_size"
    assert refusal(task(root, env={"HF_HOME": "/etc"}), limits(root))[0] == "path_not_allowed"
    guard.check_engine(task(root, env={"HF_HOME": str(root)}), limits(root))


def test_cpu_and_gpus(root: Path) -> None:
    assert refusal(task(root, needs_avx2=True), limits(root, cpu_flags=frozenset()))[0] == "cpu_without_avx2"
    guard.check_engine(task(root, needs_avx2=True), limits(root))
    assert refusal(task(root, gpu_uuids=["0"]), limits(root))[0] == "gpu_uuid"
    guard.check_engine(task(root, gpu_uuids=["GPU-8f6d2c1a-0000-1111-2222-333344445555"]), limits(root))


def test_the_engines_environment_is_ours_alone(root: Path) -> None:
    what = task(root, env={"VLLM_X": "1"}, secret_env={"HF_TOKEN": "s"}, gpu_uuids=["GPU-a", "GPU-b"])
    own = {
        "PATH": "/bin",
        "HOME": "/home/x",
        "DATABASE_URL": "secret",
        "LD_PRELOAD": "x.so",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    env = guard.engine_env(what, "job", own)
    assert env == {
        "PATH": "/opt/engines:/bin",
        "HOME": "/home/x",
        "VLLM_X": "1",
        "HF_TOKEN": "s",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",
        "BERTH_JOB": "job",
    }
    assert guard.engine_env(task(root), "job", own)["CUDA_VISIBLE_DEVICES"] == ""
