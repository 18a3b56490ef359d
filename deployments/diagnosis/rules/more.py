"""Where more is said about a class: the engine's own documentation; and what a failure comes from, where that may be
several things that the class does not name itself. Pure.
"""

from __future__ import annotations

from deployments.diagnosis.rule import gettext_noop as _

_VLLM, _SGLANG = "https://docs.vllm.ai/en/stable/", "https://docs.sglang.io/docs/advanced_features/"
# By how a code begins; the longest beginning counts. Others have the address of their engine (`Rule.doc`).
DOCS: dict[str, str] = {
    "mem.": f"{_VLLM}configuration/conserving_memory/",
    "args.": f"{_VLLM}cli/serve/",
    "args.tool_parser": f"{_VLLM}features/tool_calling/",
    "args.reasoning_parser": f"{_VLLM}features/reasoning_outputs/",
    "args.chat_template": f"{_VLLM}serving/openai_compatible_server/",
    "config.": f"{_VLLM}cli/serve/",
    "arch.": f"{_VLLM}models/supported_models/",
    "quant.": f"{_VLLM}features/quantization/",
    "dtype.fp8": f"{_VLLM}features/quantization/",
    "gguf.": f"{_VLLM}features/quantization/gguf/",
    "lora.": f"{_VLLM}features/lora/",
    "mm.": f"{_VLLM}features/multimodal_inputs/",
    "tp.": f"{_VLLM}serving/parallelism_scaling/",
    "dp.": f"{_VLLM}serving/parallelism_scaling/",
    "ray.": f"{_VLLM}serving/parallelism_scaling/",
    "env.": f"{_VLLM}getting_started/installation/",
    "tok.chat_template": f"{_VLLM}serving/openai_compatible_server/",
    "sglang.": f"{_SGLANG}server_arguments",
    "sglang.oom": f"{_SGLANG}hyperparameter_tuning",
    "sglang.kv_none": f"{_SGLANG}hyperparameter_tuning",
    "sglang.graph_oom": f"{_SGLANG}hyperparameter_tuning",
    "sglang.quant_mismatch": f"{_SGLANG}quantization",
}

_UNFINISHED = _("A download that did not finish.")
_OTHER_ENGINE = _("Another engine of this panel, or one that somebody started by hand.")
_CABLE = _("A network card or an address that the other side cannot reach.")
_FIREWALL = _("A firewall between the machines.")
_SHM = _("Too little shared memory (/dev/shm), above all in a container.")
_NO_P2P = _("GPUs that cannot reach each other's memory directly.")
_MIXED = _("Packages that were updated one by one, so that they do not fit each other any more.")

CAUSES: dict[str, tuple[str, ...]] = {
    "mem.gpu_busy": (
        _OTHER_ENGINE,
        _("A process of an earlier start that has not ended."),
        _("A screen or another program that uses the same GPU."),
    ),
    "mem.host_oom_killed": (
        _("Weights that pass through main memory while they load."),
        _("A limit of the container or the service that is lower than the machine's memory."),
        _("Other programs on the machine that grew meanwhile."),
    ),
    "load.missing_shard": (_UNFINISHED, _("Files that were moved or deleted one by one.")),
    "env.abi_mismatch": (_MIXED, _("A package that was built for another version of PyTorch.")),
    "env.ext_mismatch": (_MIXED, _("A folder of an older version that Python finds first.")),
    "env.cuda_lib_missing": (
        _("A container that was started without its GPUs."),
        _("A build of the engine for another version of CUDA."),
    ),
    "env.disk_full": (
        _("The disk of the model's folder, of the temporary folder or of the engine's caches."),
        _("Shared memory (/dev/shm), which counts as a disk."),
        _("A limit (quota) of the user."),
    ),
    "env.sigill": (
        _("A processor older than the engine was built for."),
        _("A virtual machine that hides instructions of its processor."),
    ),
    "dist.store_timeout": (_FIREWALL, _CABLE, _("A worker that failed before it could join; its own log says why.")),
    "dist.peer_gone": (
        _("The system ended the other process for lack of memory."),
        _("The other process crashed, or was stopped."),
        _CABLE,
    ),
    "nccl.system_error": (_SHM, _CABLE, _FIREWALL),
    "nccl.cuda_error": (_NO_P2P, _("A GPU that failed, or whose memory was full."), _SHM),
    "nccl.timeout": (_NO_P2P, _("A worker that failed or hangs."), _CABLE),
    "http.port_in_use": (_OTHER_ENGINE, _("A process of an earlier start that has not ended.")),
    "run.worker_died": (
        _("The system ended it for lack of memory."),
        _("An error in compiled code, which prints nothing in Python."),
        _("Somebody or a service that ended it."),
    ),
    "run.segfault": (_MIXED, _("A driver that does not fit the engine."), _("A fault of the memory or the GPU.")),
}
