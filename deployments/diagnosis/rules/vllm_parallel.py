"""vLLM: several GPUs, several machines: splits, NCCL, Ray."""

from deployments.diagnosis.rule import Rule, env, host, model, package, put
from deployments.diagnosis.rule import gettext_noop as _

RULES = (
    Rule(
        "tp.heads",
        "config",
        _("The model cannot be split over this many GPUs"),
        _("Each layer has parallel parts, its attention heads, and their number must divide evenly among the GPUs."),
        (
            r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
            r"attention heads .*must be divisible by (?:the )?tensor[ _]parallel",
        ),
        (
            "  Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8).",
            "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (3).",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] tensor_parallel_size=8",),
        (put("tensor_parallel_size", "=tp_heads", 90, "speed"),),
    ),
    Rule(
        "tp.quant_shard",
        "load",
        _("The quantised weights cannot be cut into this many parts"),
        _("Quantised weights come in blocks, and the cut between GPUs would go through a block."),
        (
            r"not divisible by\s+(?:weight quantization )?block_[nk]",
            r"not divisible by\s+min_thread_[nk]|is not divisible by min_thread",
            r"not divisible by\s+(?:the )?group[_ ]size",
            r"not aligned with the quantized weight shape",
            r"start \(0\) \+ length \(\d+\) exceeds dimension size",
            r"size of tensor a \(\d+\) must match the size of tensor b \(\d+\)",
        ),
        (
            "ValueError: The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128.",
            "RuntimeError: start (0) + length (14336) exceeds dimension size (896).",
        ),
        ("AssertionError: 151936 is not divisible by 5",),
        (
            put("tensor_parallel_size", "=half_tp", 70, "speed"),
            put("enable_expert_parallel", "true", 40),
            model(_("Use another quantised file of this model."), 50, about="other_form"),
        ),
    ),
    Rule(
        "tp.vocab",
        "load",
        _("A part of the model does not divide by the number of GPUs"),
        _("The vocabulary, the heads or the experts must divide evenly among the GPUs."),
        (
            r"(?:AssertionError|ValueError): (?P<size>\d+) is not divisible by (?P<tp>\d+)",
            r"experts?\w*=(?P<size>\d+) must be divisible by (?:ep|tp)_size=(?P<tp>\d+)",
        ),
        ("AssertionError: 151936 is not divisible by 5", "AssertionError: 14 is not divisible by 4"),
        ("ValueError: x = 192 is not divisible by weight quantization block_n = 128.",),
        (put("tensor_parallel_size", "=tp_divides", 85, "speed"),),
    ),
    Rule(
        "ray.not_enough_gpus",
        "dist",
        _("The cluster has fewer GPUs than asked for"),
        _("All machines of the Ray cluster together do not have the GPUs that the split needs."),
        (
            r"number of required \w+s? exceeds the total number of available \w+s? in the (?:cluster|placement group)",
            r"Not enough resources to allocate \d+ (?:placement groups|DP ranks)|No \w+ found in Ray cluster",
        ),
        (
            "ValueError: The number of required GPUs exceeds the total number of available GPUs in the cluster.",
            "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] GPUs in the cluster: 8",),
        (host(_("Add machines to the cluster."), "ray status", 60), put("tensor_parallel_size", "=gpus", 60, "speed")),
    ),
    Rule(
        "tp.exceeds_gpus",
        "dist",
        _("More GPUs were asked for than this machine has"),
        _("The split needs one GPU for each part."),
        (
            r"World size \((?P<tp>\d+)\) is larger than the number of available GPUs \((?P<gpus>\d+)\)",
            r"[Tt]ensor parallel size \((?P<tp>\d+)\) cannot be larger than the number of available GPUs \((?P<gpus>\d+)\)",
            r"exceeds the total number of available|is larger than the number of available",
            r"(?<!DP adjusted )local[ _]rank \d+ is out of bounds|local_world_size \(\d+\) exceeds assigned",
        ),
        (
            "ValueError: World size (4) is larger than the number of available GPUs (2) in this node.",
            "ValueError: Tensor parallel size (8) cannot be larger than the number of available GPUs (4).",
        ),
        ("AssertionError: DP adjusted local rank 1 is out of bounds. ",),
        (put("tensor_parallel_size", "=gpus", 90, "speed"),),
    ),
    Rule(
        "dp.exceeds_gpus",
        "device",
        _("Too many copies for the GPUs of this machine"),
        _(
            "Each copy of the model needs as many GPUs as it has parts, and all copies together need more than there are."
        ),
        (r"DP adjusted local rank (?P<rank>\d+) is out of bounds",),
        (
            "AssertionError: DP adjusted local rank 1 is out of bounds. ",
            "AssertionError: DP adjusted local rank 7 is out of bounds.",
        ),
        ("AssertionError: local rank 7 is out of bounds",),
        (put("data_parallel_size", "1", 85, "speed"),),
    ),
    Rule(
        "tp.exceeds_numa",
        "dist",
        _("The processor has fewer memory nodes than parts asked for"),
        _(
            "A memory node (NUMA) is memory that belongs to one part of the processor. On a CPU each part of the model wants one of its own."
        ),
        (
            r"Not enough allowed NUMA nodes to bind threads of (?P<tp>\d+) local CPUWorkers(?:.*?are \[(?P<nodes>[\d, ]*)\])?",
        ),
        (
            "AssertionError: Not enough allowed NUMA nodes to bind threads of 2 local CPUWorkers. Allowed NUMA nodes are [0].",
            "AssertionError: Not enough allowed NUMA nodes to bind threads of 4 local CPUWorkers. Allowed NUMA nodes are [0, 1].",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] NUMA nodes: 2",),
        (put("tensor_parallel_size", "=numa", 85), env("VLLM_CPU_OMP_THREADS_BIND", "=cpu_bind", 40)),
    ),
    Rule(
        "dist.peer_gone",
        "",
        _("A process of the engine lost its connection to another one"),
        _("Several processes work as one here. One of them ended, or cannot be reached; the log does not say why."),
        (
            r"ncclRemoteError|remote process exited or there was a network error",
            r"gloo/transport/\S+\.cc:\d+\].*(?:[Cc]onnection (?:closed|reset)|[Ss]ocket closed|Broken pipe)",
            r"(?:recvValue|recvVector|recvBytes|sendBytes) failed on|failed to recv, got 0 bytes",
            r"(?:DistStoreError|DistNetworkError|got error: ).*(?:Connection (?:reset|closed)|Broken pipe)",
            r"NCCL WARN .*(?:[Cc]onnection (?:closed|reset) by|remote process exited)",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error",
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41234",
            "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        ),
        (
            "httpx.ConnectError: [Errno 104] Connection reset by peer",
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        ),
        (
            host(_("Look in the kernel's log for what happened."), "dmesg | tail", 50),
            host(_("Look for the first error of the other workers, and check firewall and network name."), chance=45),
        ),
        role="peer",
        curable=True,
    ),
    Rule(
        "nccl.timeout",
        "dist",
        _("The GPUs waited for each other too long"),
        _("One of the workers hangs or died, or the network between machines is blocked."),
        (
            r"Watchdog caught collective operation timeout",
            r"collective operation timeout",
            r"Timed out waiting for.*NCCL",
        ),
        (
            "[PG ID 0 PG GUID 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, Timeout(ms)=600000)",
            "RuntimeError: [Rank 0] collective operation timeout: WorkNCCL ran for 600000 milliseconds before timing out.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] vLLM is using nccl==2.27.3",),
        (
            host(
                _("Look for the first error of the other workers, and check firewall and network name."),
                "NCCL_DEBUG=INFO",
                50,
            ),
        ),
        curable=True,
    ),
    Rule(
        "nccl.cuda_error",
        "dist",
        _("The GPUs could not talk to each other"),
        _("NVIDIA's library for several GPUs (NCCL) met an error of the driver or of a GPU."),
        (
            r"NCCL WARN Cuda failure",
            r"unhandled cuda error|ncclUnhandledCudaError",
            r"NCCL WARN .*(?:Cuda|CUDA) (?:failure|error)",
            r"Cuda failure (?:\d+|')|^Failed: Cuda error \S+:\d+ '",
            r"ncclInternalError|ncclInvalidUsage|NCCL error: (?:internal|invalid)",
        ),
        (
            "node:1:1 [0] enqueue.cc:1556 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
            "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] NCCL INFO cudaDriverVersion 12090",),
        (
            env("NCCL_P2P_DISABLE", "1", 55, "speed"),
            put("disable_custom_all_reduce", "true", 50, "speed"),
            host(_("Update the GPU driver of the machine."), chance=50),
        ),
    ),
    Rule(
        "nccl.system_error",
        "dist",
        _("The GPUs could not be connected"),
        _("Shared memory is too small, the wrong network is used, or memory may not be locked."),
        (r"unhandled system error|ncclSystemError",),
        (
            "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, ncclSystemError: System call failed",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] NCCL INFO system",),
        (
            host(_("Give the container more shared memory."), "docker run --shm-size 16g …", 60),
            env("NCCL_SOCKET_IFNAME", "=interface", 50),
        ),
    ),
    Rule(
        "dist.port",
        "dist",
        _("The port by which the workers meet is taken"),
        _("Another run uses the port that the processes of this engine meet on."),
        (
            r"DistNetworkError.*(?:EADDRINUSE|failed to (?:listen|bind))",
            r"The server socket has failed to (?:listen|bind)",
            r"EADDRINUSE",
        ),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500",
            "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - EADDRINUSE).",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] distributed_init_method=tcp://127.0.0.1:29500",),
        (env("VLLM_PORT", "=free_port", 70), put("master_port", "=free_port", 50)),
        curable=True,
    ),
    Rule(
        "dist.store_timeout",
        "dist",
        _("Another machine or worker did not join in time"),
        _("The first worker waited for the others, and not all of them came."),
        (
            r"DistStoreError|Timed out after \d+ seconds waiting for clients",
            r"wait timeout after \d+ms",
            r"Did not receive response from front-end process",
            r"client socket has (?:timed out|failed to connect)",
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
            "torch.distributed.DistNetworkError: The client socket has timed out after 600s while trying to connect to (10.0.0.1, 29500).",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] waiting for clients",),
        (
            host(_("Open the port between the machines, and give all of them the same address."), chance=55),
            env("VLLM_HOST_IP", "=host_ip", 45),
        ),
        role="weak",
        curable=True,
    ),
    Rule(
        "run.ready_timeout",
        "load",
        _("Starting took longer than the engine waits for itself"),
        _("The server gave up while its other processes still loaded the model or built programs."),
        (
            r"Timed out waiting for (?:new )?engines? (?:core process\w* to start|to send initial message)",
            r"[Dd]id not (?:start|become ready) within .*VLLM_ENGINE_READY_TIMEOUT_S",
        ),
        (
            "TimeoutError: Timed out waiting for engines to send initial message on input socket.",
            "TimeoutError: Timed out waiting for engine core processes to start. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S).",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.",),
        (
            env("VLLM_ENGINE_READY_TIMEOUT_S", "3600", 75, "time"),
            host(_("Keep the model's files on a faster disk of this host."), chance=45),
        ),
        curable=True,
    ),
    Rule(
        "ray.missing",
        "config",
        _("Ray is not installed"),
        _("Ray spreads one model over several machines. It is a package of its own, and the settings ask for it."),
        (
            r"Unable to load Ray|Failed to import Ray|Ray is not (?:installed|initialized)",
            r"No module named 'ray'|Ray backend requires installation of ray|Ray Compiled Graph is not installed",
        ),
        (
            "ValueError: Unable to load Ray which is required for multi-node inference, please install Ray with `pip install ray`.",
            "  Value error, Failed to import Ray: No module named 'ray'.Please install Ray with `pip install ray`.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Ray is initialized",),
        (put("distributed_executor_backend", "mp", 80), package("ray[cgraph]", 70)),
    ),
    Rule(
        "ray.no_gpu_on_driver",
        "dist",
        _("Ray gives this machine no GPU"),
        _("The engine was started on a machine of the cluster whose GPUs Ray does not know or has given away."),
        (
            r"Ray does not allocate any GPUs on the driver node",
            r"Current node has no \w+ available",
            r"is not included in (?:a|the) placement group",
        ),
        (
            "ValueError: Ray does not allocate any GPUs on the driver node. Consider adjusting the Ray placement group",
            "ValueError: Current node has no GPU available. current_node_resource={'CPU': 8.0}",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Connected to Ray cluster.",),
        (
            env("VLLM_HOST_IP", "=host_ip", 60),
            host(_("Start the engine on a machine with free GPUs."), "ray status", 60),
        ),
    ),
    Rule(
        "ray.pg_timeout",
        "dist",
        _("The cluster had no room within the time allowed"),
        _("Ray waited half an hour for free GPUs."),
        (r"Cannot provide a placement group (?:of placement_group_specs|requiring)",),
        (
            "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds.",
            "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}, {'GPU': 1.0}] within 600 seconds.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] placement group is ready",),
        (
            host(_("See which runs hold the GPUs."), "ray status", 60),
            put("tensor_parallel_size", "=half_tp", 40, "speed"),
        ),
        curable=True,
    ),
)
