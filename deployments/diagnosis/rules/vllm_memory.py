"""vLLM: memory of the GPU and of the machine; the files of the weights."""

from deployments.diagnosis.rule import Rule, drop, env, host, model, newer, put, repair
from deployments.diagnosis.rule import gettext_noop as _

QUANTISED = _("Use a quantised file of this model.")
WAKE = _("End the process that took the memory, then wake the model again.")
FREE = _("Free memory of the machine, or allow the container more.")
OOM = r"(?:CUDA|Cuda|HIP|XPU|NPU) out of memory"
OOM_2 = r"OutOfMemoryError: (?!.*warming up)|CUDA error: out of memory|HIP error: out of memory|cublasCreate.*ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|NVML_SUCCESS == r INTERNAL ASSERT FAILED at .*CUDACachingAllocator"

RULES = (
    Rule(
        "mem.gpu_busy",
        "device",
        _("Something else already holds memory of this GPU"),
        _("Less memory is free than the share that the engine was told to take."),
        (
            r"Free memory on device (?:\S+ )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
            r"(?:desired GPU memory utilization|the engine's budget[^(]*) \((?P<util>[\d.]+), (?P<want>[\d.]+) GiB\)",
            r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired "
            r"CPU memory utilization \((?P<util>[\d.]+), (?P<want>[\d.]+) GiB\)",
            r"on startup is less than (?:desired|the engine's)|memory capacity is unbalanced",
        ),
        (
            "ValueError: Free memory on device cuda:0 (5.92/79.19 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 71.27 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
            "ValueError: Available memory on node 0 (21.12/23.21 GiB) on startup is less than desired CPU memory utilization "
            "(0.99, 22.98 GiB).",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Free memory on device 77.66 GiB",),
        (
            put("gpu_memory_utilization", "=free_util", 75, "context"),
            host(_("End the process that holds the memory."), "nvidia-smi", 70, about="gpu_memory"),
        ),
        curable=True,
    ),
    Rule(
        "mem.kv_lt_len",
        "kvcache",
        _("One request of full length does not fit into the memory for conversations"),
        _("The memory left for conversations (KV cache) is smaller than one request of the asked length needs."),
        (
            r"max seq len \((?P<length>\d+)\), \(?(?P<need>[\d.]+) Gi?B KV cache is needed.*available KV cache memory "
            r"\((?P<have>[\d.]+) Gi?B\)(?:.*estimated maximum model length is (?P<estimate>\d+))?",
            r"max seq len \((?P<length>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache "
            r"\((?P<estimate>\d+)\)",
            r"To serve at least one request with",
            r"maximum number of tokens that can be stored in KV",
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (32768), (18.35 GiB KV cache is needed, "
            "which is larger than the available KV cache memory (10.1 GiB). Based on the available memory, the estimated "
            "maximum model length is 17984.",
            "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (23968).",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] GPU KV cache size: 23,968 tokens",),
        (
            put("max_model_len", "=estimate", 90, "context"),
            put("kv_cache_dtype", "fp8", 60, "quality"),
            put("gpu_memory_utilization", "=util_up", 50),
        ),
    ),
    Rule(
        "mem.auto_fit",
        "kvcache",
        _("No memory is left for even one token"),
        _("The model's weights and the room to calculate take everything that the engine may use."),
        (r"Cannot auto-fit max_model_len",),
        (
            "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token.",
            "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try x",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Auto-fit max_model_len: reduced from 40960 to 12288",),
        (
            put("gpu_memory_utilization", "=util_up", 60),
            model(QUANTISED, 60, about="smaller"),
            put("tensor_parallel_size", "=double_tp", 50),
        ),
    ),
    Rule(
        "mem.kv_none",
        "kvcache",
        _("No memory is left for requests"),
        _("The model's weights and the room to calculate take everything that the engine may use."),
        (r"No available memory for the cache blocks",),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
            "RuntimeError: No available memory for the cache blocks.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Available KV cache memory: 3.2 GiB",),
        (
            put("gpu_memory_utilization", "=util_up", 65),
            put("max_num_batched_tokens", "=half_batched", 50, "speed"),
            model(QUANTISED, 60, about="smaller"),
            put("tensor_parallel_size", "=double_tp", 50),
        ),
    ),
    Rule(
        "mem.mamba_blocks",
        "graph",
        _("More requests at once than this model has room for"),
        _("This kind of model keeps a state per request, and the memory holds fewer of them."),
        (r"max_num_seqs \((?P<seqs>\d+)\) exceeds available Mamba cache blocks \((?P<blocks>\d+)\)",),
        (
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (320).",
            "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (75). Each decode request requires one",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Mamba cache blocks: 320",),
        (put("max_num_seqs", "=blocks", 95, "speed"),),
    ),
    Rule(
        "mem.profile_changed",
        "profile",
        _("Another process changed the GPU's memory while it was measured"),
        _("The engine measures how much memory it needs, and someone freed or took memory meanwhile."),
        (r"Error in memory profiling",),
        (
            "AssertionError: Error in memory profiling. Initial free memory 43.37 GiB, current free memory 43.94 GiB.",
            "AssertionError: Error in memory profiling. Initial free memory 2, current free memory 3.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Memory profiling takes 5.2 seconds",),
        (host(_("Start again when nothing else starts or stops on this GPU."), chance=85),),
        curable=True,
    ),
    Rule(
        "mem.oom_sampler",
        "graph",
        _("Too many requests at once for the memory of this GPU"),
        _("Everything was loaded, but choosing the next word for that many requests needs more memory than is left."),
        (
            r"out of memory occurred when warming up (?:sampler|pooler).*?with (?P<seqs>\d+) dummy requests",
            r"when warming up (?:sampler|pooler)",
        ),
        (
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering",
            "RuntimeError: CUDA out of memory occurred when warming up pooler (task='embed') with 256 dummy requests.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] warming up the model",),
        (put("max_num_seqs", "=quarter_seqs", 80, "speed"), put("gpu_memory_utilization", "=util_down", 70, "context")),
    ),
    Rule(
        "mem.oom_compile",
        "compile",
        _("The GPU ran out of memory while programs were built"),
        _("Building and trying out the programs for this GPU needs work space, and none was left."),
        (
            r"InductorError: .*out of memory|InductorError: .*OutOfMemory",
            r"Failed to run autotuning code block: (?:CUDA|HIP) out of memory",
        ),
        (
            "torch._inductor.exc.InductorError: OutOfMemoryError: HIP out of memory. Tried to allocate 80.00 MiB.",
            "torch._inductor.exc.InductorError: RuntimeError: Failed to run autotuning code block: CUDA out of memory.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Compiling a graph for dynamic shape takes 4 s",),
        (
            put("gpu_memory_utilization", "=util_down", 50, "context"),
            put("enforce_eager", "true", 60, "speed"),
            model(QUANTISED, 60, about="smaller"),
        ),
    ),
    Rule(
        "mem.wake_up_oom",
        "serving",
        _("The GPU's memory was taken while the model slept"),
        _("The model gave its memory away to sleep, and another process took it."),
        (r"CUDA Error: out of memory at .*cumem_allocator", r"cumem_allocator.*out of memory"),
        (
            "RuntimeError: CUDA Error: out of memory at /src/csrc/cumem_allocator.cpp:139",
            "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] It took 0.2 seconds to wake up.",),
        (host(WAKE, "nvidia-smi", 80, about="gpu_memory"),),
        curable=True,
    ),
    Rule(
        "mem.oom_load",
        "load",
        _("The model's weights do not fit into the GPU's memory"),
        _("The GPU was full before all weights were in."),
        (r"Failed to load model - not enough GPU memory",),
        (
            "ERROR 01-01 10:00:00 [gpu_model_runner.py:1] Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization",
            "RuntimeError: Failed to load model - not enough GPU memory",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",),
        (
            model(QUANTISED, 75, about="smaller"),
            put("tensor_parallel_size", "=double_tp", 65),
            put("cpu_offload_gb", "=offload", 40, "speed"),
        ),
    ),
    Rule(
        "mem.oom_profile",
        "profile",
        _("The work space for one step does not fit into the GPU's memory"),
        _("The weights were in. Then the largest possible step was tried, and it needs more memory than is left."),
        (OOM, OOM_2),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 1 has a total capacity of 22.09 GiB",
            "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 214.00 MiB.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] memory: 3 GiB",),
        (
            put("max_num_batched_tokens", "=half_batched", 65, "speed"),
            put("max_num_seqs", "=quarter_seqs", 60, "speed"),
            put("max_model_len", "=half_len", 50, "context"),
        ),
    ),
    Rule(
        "mem.oom_graph",
        "graph",
        _("Recording the GPU's work needed more memory than was left"),
        _(
            "Everything was loaded. Then the engine recorded its work for speed (CUDA graphs), and that did not fit any more."
        ),
        (r"(?:CUDA|HIP) out of memory.*[Cc]aptur", r"[Cc]aptur.*(?:CUDA|HIP) out of memory"),
        (
            "RuntimeError: Capturing graphs failed: CUDA out of memory",
            "RuntimeError: CUDA out of memory while capturing graphs",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Graph capturing finished in 1 secs",),
        (
            put("gpu_memory_utilization", "=util_down", 75, "context"),
            put("max_num_seqs", "=quarter_seqs", 60, "speed"),
            put("enforce_eager", "true", 70, "speed"),
        ),
    ),
    Rule(
        "mem.oom_runtime",
        "serving",
        _("The GPU ran out of memory while serving"),
        _("It had answered before; a larger request or another process needed the rest of the memory."),
        (r"(?:CUDA|HIP) out of memory.*(?:request|serving)",),
        (
            "RuntimeError: CUDA out of memory while serving a request",
            "RuntimeError: HIP out of memory for this request",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Running: 3 reqs",),
        (
            put("gpu_memory_utilization", "=util_down", 70, "context"),
            put("max_num_seqs", "=quarter_seqs", 60, "speed"),
            env("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 40),
        ),
        curable=True,
    ),
    Rule(
        "mem.cpu_kv_space",
        "kvcache",
        _("The memory set aside for conversations does not fit into this machine"),
        _(
            "On a CPU that memory (KV cache) is a fixed number of gigabytes. Less than that is free, or it is too little for one request."
        ),
        (
            r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on kv cache allocation is less than",
            r"on kv cache allocation is less than",
            r"Try increasing `VLLM_CPU_KVCACHE_SPACE`",
        ),
        (
            "ValueError: Available memory on node 0 (4.52/23.21 GiB) on kv cache allocation is less than expected 40 GiB.",
            "ValueError: No memory for the cache. Try increasing `VLLM_CPU_KVCACHE_SPACE` when initializing.",
        ),
        (
            "WARNING 01-01 10:00:00 [x.py:1] Environment variable VLLM_CPU_KVCACHE_SPACE (GiB) for CPU backend is not set, using 4 by default.",
        ),
        (env("VLLM_CPU_KVCACHE_SPACE", "=cpu_kv", 85, "context"),),
    ),
    Rule(
        "mem.host_oom_killed",
        "",
        _("The system ended the engine because the machine ran out of memory"),
        _("No error was printed: a process of the engine vanished. That is what the system does when memory is short."),
        (
            r"engine core exited unexpectedly",
            r"Out of memory: Killed process|oom-kill|oom_reaper|Memory cgroup out of memory",
            r"NODE_OUT_OF_MEMORY|Task was killed due to the node running low on memory",
            r"signal: killed",
            r"exit(?:ed)? (?:with )?(?:code|status):? ?(?:-9|137)\b",
            r"died, exit code: -9|Failed core proc\(s\): \{[^}]*: -9\}",
            r"^\s*Killed\s*$",
        ),
        (
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': -9}",
            "WARNING 01-01 10:00:00 [core_client.py:1] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] exit code: 0",),
        (
            host(FREE, "free -g; dmesg | grep -i oom", 75, about="ram"),
            drop("cpu_offload_gb", 40),
            put("safetensors_load_strategy", "lazy", 40),
        ),
        role="weak",
    ),
    Rule(
        "load.no_weights",
        "load",
        _("The folder holds no weights"),
        _("No file with weights was found: an unfinished download, or a folder of another format."),
        (
            r"Cannot find any (?:safetensors )?model weights with `(?P<path>[^`]*)`",
            r"no file named .*(?:safetensors|pytorch_model)",
        ),
        (
            "RuntimeError: Cannot find any model weights with `/models/x`",
            "OSError: Error no file named model.safetensors, or pytorch_model.bin, found in directory /models/x.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Using model weights format ['*.safetensors']",),
        (repair(_("Download the missing files."), 85), put("load_format", "auto", 30)),
    ),
    Rule(
        "load.corrupt_file",
        "load",
        _("A file of the weights is broken"),
        _(
            "It is cut off, or no file with weights at all: the download did not finish, or only a placeholder of Git LFS lies there."
        ),
        (
            r"SafetensorError",
            r"HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer|HeaderTooSmall",
            r"invalid load key",
            r"PytorchStreamReader failed|file in archive is not in a subdirectory",
            r"not a valid safetensors|incomplete metadata, file not fully covered",
        ),
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        ),
        ("Loading safetensors checkpoint shards:  27% Completed | 3/11 [00:02<00:06,  1.18it/s]",),
        (repair(_("Download this file again."), 90, "=shard"),),
    ),
    Rule(
        "load.missing_shard",
        "load",
        _("A file of the weights is missing"),
        _("The list of files names one that is not in the folder."),
        (
            r"Weight files referenced in index but missing: \{?(?P<file>[^}]*)",
            r"No such file or directory:? ['\"]?(?P<file>[^'\"]*\.(?:safetensors|bin|pt|pth))",
            r"FileNotFoundError.*\.safetensors",
        ),
        (
            'FileNotFoundError: No such file or directory: "/models/x/model-00002-of-00002.safetensors"',
            "FileNotFoundError: Weight files referenced in index but missing: {'/models/x/model-00002-of-00002.safetensors'}",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/models/x/config.json'",),
        (repair(_("Download this file again."), 90, "=shard"),),
    ),
    Rule(
        "load.shape_mismatch",
        "load",
        _("The weights have other sizes than config.json says"),
        _("The configuration does not belong to these weights."),
        (
            r"Attempted to load weight \(torch\.Size\(.*?\)\) into parameter|Attempted to load weight",
            r"param_data\.shape == loaded_weight\.shape",
            r"size mismatch for",
        ),
        (
            "AssertionError: Attempted to load weight (torch.Size([256, 128])) into parameter (torch.Size([512, 128]))",
            "RuntimeError: Error(s) in loading state_dict: size mismatch for lm_head.weight: copying a param",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Loading weights took 3 seconds",),
        (repair(_("Download the model's files again, all from one version."), 75),),
    ),
    Rule(
        "load.not_initialized",
        "load",
        _("Some weights are missing from the files"),
        _("The files do not hold all parts that this kind of model has."),
        (r"[Ff]ollowing weights were not initialized from checkpoint",),
        (
            "ValueError: Following weights were not initialized from checkpoint: {'model.layers.0.x'}",
            "ValueError: Following weights were not initialized from checkpoint: {'lm_head.weight'}",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] weights were initialized",),
        (repair(_("Download the missing files."), 65), newer(_("Start with a newer version of the engine."), 40)),
    ),
    Rule(
        "load.unexpected_key",
        "load",
        _("The files hold weights that this kind of model does not have"),
        _("The files are of another format or another model, or this version does not know this variant."),
        (
            r"There is no module or parameter named",
            r"KeyError: '(?P<key>(?:model|layers|transformer|lm_head|language_model|visual|vision_model|thinker|encoder|decoder|backbone)\.[\w.]+)'",
        ),
        (
            "ValueError: There is no module or parameter named 'layers.1' in LlamaModel. The available parameters are x",
            "KeyError: 'layers.5.self_attn.qkv_proj.v_proj.weight'",
        ),
        ("KeyError: 'qwen3_next'",),
        (
            put("ignore_patterns", "consolidated*", 40),
            newer(_("Start with a newer version of the engine."), 55),
            repair(_("Download the model's files again, all from one version."), 50),
        ),
    ),
)
