"""SGLang: what it says in words of its own. Everything else it shares with vLLM's rules."""

from deployments.diagnosis.rule import SGLANG_DOC, Remedy, Rule, drop, env, host, model, newer, package, put, runtime
from deployments.diagnosis.rule import gettext_noop as _
from deployments.diagnosis.rules import vllm_env, vllm_host, vllm_memory, vllm_parallel, vllm_quant, vllm_run

NEWER = _("Start with a newer version of the engine.")


def shared(
    code: str, phase: str, others: tuple[Rule, ...], name: str, remedies: tuple[Remedy, ...], *more: str
) -> Rule:
    """SGLang's own code for a failure that it has in common with vLLM."""
    rule = next(rule for rule in others if rule.code == name)
    return Rule(code, phase, rule.title, rule.why, rule.patterns + more, rule.examples, rule.near, remedies,
                doc=SGLANG_DOC, role=rule.role, curable=rule.curable)  # fmt: skip


RULES = (
    Rule(
        "sglang.child_failed",
        "",
        _("A process of the engine failed"),
        _("The parent only reports that a child failed. Why stands further up, if anywhere."),
        (r"Received sigquit from a child process?", r"SIGQUIT received", r"Rank \d+ scheduler is dead|scheduler died"),
        (
            "[2025-06-24 08:54:27] Received sigquit from a child process. It usually means the child failed.",
            "[2025-06-24 08:54:27] Rank 0 scheduler is dead. Please check if there are relevant logs.",
        ),
        ("[2025-06-24 08:54:27] child process started",),
        doc=SGLANG_DOC,
        role="echo",
    ),
    Rule(
        "sglang.load_barrier",
        "load",
        _("Another part of the engine did not finish loading the model"),
        _("This part was ready and waited in vain: the other one failed, was ended for lack of memory, or reads from a slow disk. Its own part of the log tells, if anything does."),
        (
            r"could finish the model loading, but there are other ranks that didn't finish loading",
            r"successfully reached monitoredBarrier, but received errors",
        ),
        (
            "ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading. It is likely",
            "[rank3]:[E421 04:13:43.4 ProcessGroupGloo.cpp:143] Rank 3 successfully reached monitoredBarrier, but received errors while waiting",
        ),
        ("[2025-01-01 10:00:00 TP1] Load weight end. type=LlamaForCausalLM, avail mem=37.1 GB",),
        (
            host(_("Free memory of the machine, or allow the container more."), "free -g; dmesg | grep -i oom", 55, about="ram"),
            put("watchdog_timeout", "3600", 30, "time"),
        ),
        doc=SGLANG_DOC,
        role="weak",
        curable=True,
    ),
    Rule(
        "sglang.graph_oom",
        "graph",
        _("Recording the GPU's work needed more memory than was left"),
        _("Everything was loaded. Then the engine recorded its work for speed (CUDA graphs), and that did not fit any more."),
        (
            r"Capture (?:cuda|CUDA) graph failed(?!.*(?:NVCC|nvcc|ninja|attribute|argument|No module|kernel image|not (?:implemented|supported)))",
        ),
        (
            "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1.2 GiB.",
            "Exception: Capture CUDA graph failed: x. Capture cuda graph failed: HIP out of memory",
        ),
        ("[2025-01-01 10:00:00] Capture cuda graph begin. avail mem=3.2 GB",),
        (
            put("mem_fraction_static", "=fraction_down", 75, "context"),
            put("cuda_graph_max_bs", "8", 60, "speed"),
            put("disable_cuda_graph", "true", 70, "speed"),
        ),
        doc=SGLANG_DOC,
    ),
    Rule(
        "sglang.kv_none",
        "kvcache",
        _("No memory is left for requests"),
        _("The weights and the reserve take everything that the engine may use."),
        (r"Not enought? memory\. Please try to increase --mem-fraction-static", r"increase --mem-fraction-static"),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.74",
            "RuntimeError: Not enought memory. Please try to increase --mem-fraction-static.",
        ),
        ("[2025-01-01 10:00:00] mem_fraction_static=0.88",),
        (
            put("mem_fraction_static", "=fraction_up", 65),
            put("context_length", "=half_len", 40, "context"),
            model(_("Use a quantised file of this model."), 60, about="smaller"),
        ),
        doc=SGLANG_DOC,
    ),
    Rule(
        "sglang.ctx_gt_derived",
        "config",
        _("The context asked for is longer than the model was made for"),
        _("The context is the longest conversation, in tokens (pieces of words). The model was trained for fewer; beyond that its answers would fall apart."),
        (r"User-specified context_length \((?P<asked>\d+)\) is greater than the derived context_length \((?P<derived>\d+)\)",),
        (
            "ValueError: User-specified context_length (131072) is greater than the derived context_length (40960).",
            "ValueError: User-specified context_length (8192) is greater than the derived context_length (4096). This may lead",
        ),
        ("[2025-01-01 10:00:00] context_length=40960",),
        (put("context_length", "=derived", 90, "context"),),
        doc=SGLANG_DOC,
    ),
    Rule(
        "sglang.arch_unsupported",
        "load",
        _("This version of the engine cannot run this kind of model"),
        _("config.json names the kind of model (its architecture), and it is not among those that this version can run."),
        (r"Unsupported architectures?:", r"Model architectures .* are not supported"),
        (
            "ValueError: Unsupported architectures: Phi3ForCausalLM. Supported list: ['LlamaForCausalLM']",
            "ValueError: Model architectures ['DeciLMForCausalLM'] are not supported for now. Supported architectures: x",
        ),
        ("[2025-01-01 10:00:00] architectures: ['LlamaForCausalLM']",),
        (newer(NEWER, 65), runtime(_("Try another engine."), 50, about="other_engine")),
        doc=SGLANG_DOC,
    ),
    Rule(
        "sglang.deepgemm",
        "graph",
        _("DeepGEMM cannot calculate this layer on this GPU"),
        _("The library for FP8 does not know this combination of sizes and GPU."),
        (r"Unknown cases: sf\.dtype", r"(?:DeepGEMM|deep_gemm).*(?:[Ee]rror|fail|assert)", r"Assertion error \(.*deep_gemm"),
        (
            "AssertionError: Unknown cases: sf.dtype=torch.int32, gran=(1, 128), arch=90a",
            "RuntimeError: deep_gemm compile failed",
        ),
        ("[2025-01-01 10:00:00] Entering DeepGEMM JIT Pre-Compile session.",),
        (env("SGLANG_ENABLE_JIT_DEEPGEMM", "0", 75, "speed"), newer(NEWER, 50)),
        doc=SGLANG_DOC,
    ),
    Rule(
        "sglang.port_in_use",
        "http",
        _("The port is taken"),
        _("Another program already listens on the port that the engine was given."),
        (
            r"[Tt]he port (?P<port>\d+) is in use|port (?P<other>\d+) is (?:already )?in use",
            r"error while attempting to bind on address",
            r"\[Errno 98\].*[Aa]ddress already in use",
        ),
        (
            "[Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
            "ValueError: The port 30000 is in use. Please choose another one.",
        ),
        ("[2025-01-01 10:00:00] port=30000",),
        (put("port", "=free_port", 90), host(_("End the program that holds the port."), "ss -ltnp", 60, about="port")),
        doc=SGLANG_DOC,
        curable=True,
    ),
    Rule(
        "sglang.abi_mismatch",
        "import",
        _("A compiled part was built for another PyTorch or CUDA"),
        _("sgl-kernel and PyTorch come from different versions, so one does not find the other's functions."),
        (r"undefined symbol: \S+", r"sgl_kernel.*(?:ImportError|cannot open|[Ff]ailed)", r"Failed to load sgl_kernel|Could not load any common_ops library"),
        (
            "ImportError: /venv/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb",
            "ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!",
        ),
        ("[2025-01-01 10:00:00] sgl_kernel 0.3 is used",),
        (package("--upgrade sgl-kernel", 75), runtime(vllm_env.REINSTALL, 70)),
        doc=SGLANG_DOC,
    ),
    shared("sglang.shm", "dist", vllm_host.RULES, "env.shm",
           (host(_("Give the container more shared memory."), "docker run --shm-size 32g …", 85),)),
    shared("sglang.nccl_system_error", "dist", vllm_parallel.RULES, "nccl.system_error",
           (host(_("Give the container more shared memory."), "docker run --shm-size 32g …", 60),
            env("NCCL_SOCKET_IFNAME", "=interface", 50))),
    shared("sglang.cuda_lib_missing", "import", vllm_env.RULES, "env.cuda_lib_missing",
           (host(_("Give the container the GPUs."), "docker run --gpus all …", 60),
            runtime(_("Install the engine's build for the CUDA version of this driver."), 70))),
    shared("sglang.cuda_fork", "device", vllm_env.RULES, "env.cuda_fork",
           (runtime(_("Start the engine by its own command, not from a program that already used the GPU."), 70),)),
    shared("sglang.invalid_device", "device", vllm_env.RULES, "env.invalid_device",
           (put("tp_size", "=gpus", 80, "speed"), put("base_gpu_id", "0", 40))),
    shared("sglang.tp_quant_shard", "load", vllm_parallel.RULES, "tp.quant_shard",
           (put("tp_size", "=half_tp", 75, "speed"),)),
    shared("sglang.quant_mismatch", "config", vllm_quant.RULES, "quant.mismatch", (drop("quantization", 90),)),
    shared("sglang.no_kernel_image", "serving", vllm_run.RULES, "gpu.no_kernel_image",
           (put("attention_backend", "triton", 65), put("sampling_backend", "pytorch", 60))),
    shared("sglang.triton_smem", "load", vllm_run.RULES, "gpu.triton_smem",
           (put("attention_backend", "flashinfer", 65),)),
    shared("sglang.oom", "load", vllm_memory.RULES, "mem.oom_profile",
           (model(vllm_memory.QUANTISED, 70, about="smaller"), put("tp_size", "=double_tp", 65),
            put("mem_fraction_static", "=fraction_down", 40, "context"))),
    shared("sglang.missing_dep", "import", vllm_env.RULES, "env.missing_dep", (package("=package", 80),),
           r"Form data requires"),
)  # fmt: skip
