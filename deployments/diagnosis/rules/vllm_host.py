"""vLLM and its machine: the operating system, its limits, folders and memory shared between processes."""

from deployments.diagnosis.rule import Rule, env, host, runtime
from deployments.diagnosis.rule import gettext_noop as _

RULES = (
    Rule(
        "env.glibc",
        "import",
        _("The operating system is too old for this engine"),
        _("A compiled part asks for a newer C library (glibc) than this machine has."),
        (r"version [`']GLIBC(XX)?_[\d.]+' not found", r"version [`']CXXABI_[\d.]+' not found"),
        (
            "ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by /venv/vllm/_C.abi3.so)",
            "ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /venv/zmq.so)",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] glibc version 2.35 found",),
        (
            runtime(_("Use the engine's container image, which brings its own C library."), 80),
            host(_("Move to a newer operating system."), chance=40),
        ),
    ),
    Rule(
        "env.sigill",
        "import",
        _("This processor lacks instructions that the engine needs"),
        _("The engine was built for newer processors (AVX2 or AVX-512). It ends at once and often prints nothing."),
        (r"Illegal instruction", r"trap invalid opcode"),
        ("Illegal instruction (core dumped)", "Fatal Python error: Illegal instruction"),
        ("INFO 01-01 10:00:00 [x.py:1] Using AVX2 instructions",),
        (
            runtime(_("Install the build of the engine that is made for this processor."), 60),
            host(_("Use a machine with a newer processor."), chance=60),
        ),
    ),
    Rule(
        "gpu.unavailable",
        "device",
        _("The GPU is there, but it takes no work"),
        _(
            "The driver lists the GPU and refuses to use it: it is kept for another process, a program of the driver does not run, or the driver is in trouble after an update or a fault."
        ),
        (
            r"CUDA-capable devices?(?:\(s\))? (?:is/)?are busy or unavailable",
            r"CUDA error: (?:unknown error|initialization error|system not yet initialized)",
            r"CUDA unknown error - this may be due to an incorrectly set up environment",
            r"Error 802: |system not yet initialized|CUDA driver initialization failed",
        ),
        (
            "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        ),
        ("RuntimeError: CUDA error: out of memory",),
        (
            host(_("Look which process keeps the GPU, and in which mode the GPU is."), "nvidia-smi -q -d COMPUTE", 50),
            host(
                _("On machines with NVSwitch, start the program that connects the GPUs."),
                "systemctl restart nvidia-fabricmanager",
                45,
            ),
            host(_("Restart the machine (on Windows: WSL)."), chance=50),
        ),
        curable=True,
    ),
    Rule(
        "env.no_engine",
        "import",
        _("The engine's program was not found, or may not be run"),
        _("There is no program of this name where the command looks, or this user has no right to run it."),
        (
            r"(?:^|/)(?:ba|da|z)?sh: (?:line )?(?:\d+: )?\S*(?:vllm|sglang|python3?|llama-server)\S*: (?:command )?(?:not found|Permission denied)",
            r"exec:? \"?\S+\"?: (?:executable file not found|permission denied|stat \S+: no such file|no such file or directory)",
            r"^(?:exec )?\S+: (?:exec format error|command not found)$|exec \S+: (?:exec format error|no such file or directory)",
            r"No module named vllm\b",
        ),
        (
            "/bin/sh: 1: vllm: Permission denied",
            'docker: Error response from daemon: exec: "vllm": executable file not found in $PATH: unknown',
        ),
        ("ModuleNotFoundError: No module named 'vllm_plugin'",),
        (
            runtime(_("Install this version of the engine again, in a Python environment of its own."), 65),
            host(_("Let this user run the program and read the folders above it."), chance=50),
        ),
    ),
    Rule(
        "env.uid",
        "",
        _("The user number of the container has no name"),
        _("The engine runs as a user that the container's list of users does not know."),
        (r"getpwuid\(\): uid not found",),
        ("KeyError: 'getpwuid(): uid not found: 1001'", "KeyError: 'getpwuid(): uid not found: 65534'"),
        ("KeyError: 'uid'",),
        (env("USER", "vllm", 60), env("TORCHINDUCTOR_CACHE_DIR", "/tmp/inductor", 70)),
    ),
    Rule(
        "env.shm",
        "dist",
        _("Shared memory is too small"),
        _("Processes of one engine talk through /dev/shm. A container has only 64 MB of it unless told otherwise."),
        (
            r"failed to extend /dev/shm",
            r"Error while creating shared memory segment",
            r"\bBus error\b|\bSIGBUS\b",
            r"insufficient shared memory",
            r"unable to (?:open|allocate|mmap) shared memory",
            r"No space left on device: '/dev/shm|/dev/shm.*No space left",
        ),
        (
            "node:57:57 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-v2jS20 to 9637892 bytes",
            "RuntimeError: DataLoader worker is killed by signal: Bus error. Possible insufficient shared memory (shm).",
        ),
        ("(EngineCore pid=1) INFO 01-01 10:00:00 [shm_broadcast.py:1] using shared memory",),
        (
            host(_("Give the container more shared memory."), "docker run --shm-size 16g …", 85),
            host(_("Let the container use the machine's shared memory."), "docker run --ipc=host …", 80),
        ),
    ),
    Rule(
        "env.disk_full",
        "",
        _("The disk is full"),
        _("A file could not be written: in the model's folder, in the temporary folder, or in shared memory."),
        (
            r"No space left on device",
            r"Not enough free disk space to download",
            r"os error 28\b",
            r"Disk quota exceeded",
        ),
        (
            "OSError: [Errno 28] No space left on device",
            "RuntimeError: Data processing error: No space left (os error 28)",
        ),
        ("WARNING 01-01 10:00:00 [x.py:1] The disk has 12 GiB left on it",),
        (host(_("Free space on this disk, or keep models on another one."), "df -h", 85),),
        curable=True,
    ),
    Rule(
        "env.ulimit",
        "",
        _("Too many files are open"),
        _("The system allows this user fewer open files than the engine needs."),
        (r"(?<!`OSError: \[Errno 24\] )Too many open files",),
        ("OSError: [Errno 24] Too many open files", "zmq.error.ZMQError: Too many open files"),
        (
            "WARNING 01-01 10:00:00 [x.py:1] Found ulimit of 20000 and failed to automatically increase with error "
            "current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`",
        ),
        (host(_("Allow more open files."), "ulimit -n 65536", 85),),
    ),
    Rule(
        "env.ipc_dir",
        "http",
        _("The engine's processes cannot talk to each other through the temporary folder"),
        _(
            "They meet in a special file (a socket) there. The disk of that folder takes no such files, or its path is too long."
        ),
        (
            r"ZMQError: (?:Operation not supported|No such file|Address already in use|File name too long)",
            r"ipc path .* is longer than \d+ characters|AF_UNIX path too long",
        ),
        ("zmq.error.ZMQError: Operation not supported", "OSError: AF_UNIX path too long"),
        ("INFO 01-01 10:00:00 [x.py:1] Multiprocessing frontend to use ipc:///tmp/x for IPC Path.",),
        (env("VLLM_RPC_BASE_PATH", "/tmp", 80),),
    ),
    Rule(
        "env.triton_cache_race",
        "profile",
        _("Two processes wrote the same compiled part"),
        _("Several workers share one folder of compiled GPU programs, and one removed what another was about to read."),
        (r"(?:No such file|not empty|FileNotFoundError|Errno).*triton.*cache",),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/home/u/.triton/cache/ab12/__grp__kernel.json'",
            "OSError: [Errno 39] Directory not empty: '/home/u/.triton/cache/ab12'",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] cache folder /home/u/.triton/cache is used",),
        (env("TRITON_CACHE_DIR", "/tmp/triton", 75), host(_("Empty the cache."), "rm -rf ~/.triton/cache", 70)),
        curable=True,
    ),
    Rule(
        "env.permission",
        "",
        _("The engine may not write to its cache folder"),
        _("The home folder or the model cache belongs to another user, or is mounted read-only."),
        (
            r"PermissionError: \[Errno 13\] Permission denied: ['\"](?!/dev/)",
            r"Permission denied: '(?:/(?:[\w-]+/)?\.[^']*|[^']*(?:cache|hub|triton|huggingface)[^']*)'",
            r"Read-only file system: '",
            r"PermissionError at .* when downloading",
        ),
        (
            "PermissionError: [Errno 13] Permission denied: '/.cache'",
            "PermissionError: [Errno 13] Permission denied: '/models/hub/.locks'",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/dev/tty'",),
        (env("HF_HOME", "/tmp/hf", 60), host(_("Give the folder to the engine's user."), "chown -R USER FOLDER", 70)),
    ),
)
