"""vLLM and its environment: libraries, drivers, devices, compilers."""

from deployments.diagnosis.rule import Rule, drop, env, host, package, put, runtime
from deployments.diagnosis.rule import gettext_noop as _

REINSTALL = _("Install this version of the engine again, in a Python environment of its own.")

RULES = (
    Rule(
        "env.cuda_lib_missing",
        "import",
        _("A CUDA library is missing"),
        _(
            "CUDA is NVIDIA's library for calculating on GPUs. libcuda comes with the driver, which a container may not see; libcudart belongs to one version of CUDA."
        ),
        (
            r"lib(?:cudart|cuda|nvrtc|cublas|cublasLt|cusparse|cusparseLt|cufft|curand|cusolver|nccl|cudnn|nvJitLink|cupti)"
            r"[\w.-]*\.so[.\d]*: cannot open shared object",
            r"Failed to (?:load|open) (?:the )?(?:library )?lib(?:cuda|cudart)\.so",
        ),
        (
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
            "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Found nccl from library libnccl.so.2",),
        (
            runtime(_("Install the engine's build for the CUDA version of this driver."), 70),
            host(_("Give the container the GPUs."), "docker run --gpus all …", 60),
        ),
    ),
    Rule(
        "env.abi_mismatch",
        "",
        _("A compiled part was built for another PyTorch or CUDA"),
        _(
            "PyTorch and CUDA are the libraries that calculate on the GPU. Two packages that belong together come from different versions, so one does not find the other's functions."
        ),
        (
            r"undefined symbol: \S+",
            r"Tried to instantiate class .*does not exist",
            r"lib(?:torch|c10)\w*\.so: cannot open shared object",
            r"compiled with a different version of (?:PyTorch|torch)",
            r"CUDA version mismatch|PyTorch was compiled with CUDA",
        ),
        (
            "ImportError: /venv/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZNK3c106SymInt6",
            "ImportError: libtorch_cuda.so: cannot open shared object file: No such file or directory",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] symbol table loaded",),
        (
            runtime(REINSTALL, 70),
            package("--force-reinstall vllm", 50),
            host(_("Remove the package named in the message, when the engine does not need it."), "", 50),
        ),
    ),
    Rule(
        "env.numpy2",
        "import",
        _("A package does not work with NumPy 2"),
        _("An older package calls what NumPy 2 has removed."),
        (
            r"`newbyteorder` was removed from the ndarray class",
            r"A module that was compiled using NumPy 1\.x cannot be run",
            r"numpy\.dtype size changed",
            r"numpy\.core\.multiarray failed to import",
            r"`np\.\w+` was removed in the NumPy 2",
        ),
        (
            "AttributeError: `newbyteorder` was removed from the ndarray class in NumPy 2.0. Use arr.view instead",
            "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96, got 88",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] numpy 2.1.0",),
        (package("numpy<2", 75), package("gguf>=0.13", 70)),
    ),
    Rule(
        "env.python_version",
        "",
        _("The Python of this environment is too old for a package"),
        _("A package uses a language feature that this Python does not know."),
        (
            r"type 'array\.array' is not subscriptable",
            r"requires a different Python",
            r"^SyntaxError: (?:invalid syntax|f-string|expected)",
            r"unsupported operand type\(s\) for \|: 'type' and|unsupported operand type\(s\) for \|: .*NoneType",
            r"cannot import name '(?:Self|override|StrEnum|Unpack)' from '(?:typing|enum)'",
        ),
        (
            "TypeError: type 'array.array' is not subscriptable",
            "TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'",
        ),
        ("TypeError: unsupported operand type(s) for +: 'int' and 'str'",),
        (runtime(_("Install the engine with Python 3.12."), 80),),
    ),
    Rule(
        "env.ext_mismatch",
        "",
        _("Files of two engine versions are mixed"),
        _("Python files of one version meet compiled files of another, often after an update on top."),
        (
            r"cannot import name '\w+' from 'vllm\.[\w.]+'",
            r"_vllm_fa\d_C.*has no attribute",
        ),
        (
            "ImportError: cannot import name 'get_scheduler_metadata' from 'vllm.vllm_flash_attn' (/venv/__init__.py)",
            "ImportError: cannot import name 'TokensPrompt' from 'vllm.inputs' (/venv/vllm/inputs/__init__.py)",
        ),
        ("ImportError: cannot import name 'x' from 'transformers.models'",),
        (runtime(REINSTALL, 85),),
    ),
    Rule(
        "env.ext_not_built",
        "",
        _("A compiled part of the engine was not loaded"),
        _("The part that does the fast work is missing or could not be loaded. A warning above the error may say why."),
        (
            r"No module named 'vllm\._C",
            r"name 'vllm_(?:cache_)?ops' is not defined",
            r"'_OpNamespace' '_C\w*' object has no attribute",
            r"'_OpNamespace' 'vllm' object has no attribute",
            r"Could not run '_C\w*::",
        ),
        (
            "ModuleNotFoundError: No module named 'vllm._C'",
            "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'",
        ),
        ("ModuleNotFoundError: No module named 'vllm_plugin'",),
        (runtime(REINSTALL, 70),),
        role="weak",
    ),
    Rule(
        "env.dep_mismatch",
        "",
        _("A package has a version that this engine does not work with"),
        _("The engine calls a function of another package that this version of the package does not have."),
        (
            r"cannot import name '\w+' from (?:partially initialized module )?'(?!vllm\b|sglang\b)[\w.]+'",
            r"operator torchvision::nms does not exist",
            r"SafeTensorsInfo\.__init__\(\) got an unexpected keyword",
            r"Received a \w+ for argument \w+, but a \w+ was expected",
            r"partially initialized module '[\w.]+' has no attribute",
            r"module '(?:transformers|tokenizers|huggingface_hub|torch|torchvision|cv2|outlines|xgrammar|compressed_tensors|"
            r"flashinfer|triton|pyairports|numba|pydantic|fastapi|openai)[\w.]*' has no attribute",
            r"\w+Tokenizer\w* has no attribute (?:all_special_tokens_extended|\w+_extended)",
            r"is required for a normal functioning of this module, but found",
            r"Numba needs NumPy \d",
            r"DistributionNotFound|VersionConflict",
            r"'aimv2' is already used by a Transformers config",
        ),
        (
            "ImportError: cannot import name '_flash_supports_window_size' from 'transformers.modeling_flash' (/venv/x.py)",
            "TypeError: Received a CachedWhisperTokenizerFast for argument tokenizer, but a WhisperTokenizer was expected.",
        ),
        ("ImportError: cannot import name 'SamplingParams' from 'vllm.sampling'",),
        (runtime(REINSTALL, 75), package("transformers", 40)),
    ),
    Rule(
        "env.no_device",
        "config",
        _("The engine sees no GPU"),
        _(
            "There is no driver, a container was not given the GPUs, the list of visible GPUs is empty, or a GPU build runs on a machine without a GPU."
        ),
        (
            r"Failed to infer device type",
            r"No CUDA GPUs are available",
            r"No (?:HIP|XPU) (?:GPUs|devices) (?:are|is) available",
            r"Found no NVIDIA driver",
            r"Torch not compiled with CUDA enabled",
            r"could not select device driver|nvidia-container-cli: (?:initialization|device) error",
            r"Unexpected error from cudaGetDeviceCount(?!.*(?:Error 80[234]|forward compat|driver version))|no CUDA-capable device is detected",
            r"Device string must not be empty",
            r"NVMLError_(?:LibraryNotFound|DriverNotLoaded)",
        ),
        ("RuntimeError: Failed to infer device type", "RuntimeError: No CUDA GPUs are available"),
        ("INFO 01-01 10:00:00 [x.py:1] No platform detected, vLLM is running on UnspecifiedPlatform",),
        (
            host(_("Look whether the driver sees the GPUs."), "nvidia-smi", 60),
            host(_("Give the container the GPUs."), "docker run --gpus all …", 60),
            runtime(_("On a machine without GPU, use the engine's CPU build."), 60),
        ),
    ),
    Rule(
        "env.driver_old",
        "device",
        _("The GPU driver is too old for this engine"),
        _(
            "The engine was built for a newer CUDA (NVIDIA's library for GPUs) than the driver of this machine supports."
        ),
        (
            r"driver on your system is too old \(found version (?P<driver>\d+)\)",
            r"CUDA driver version is insufficient",
            r"forward compatibility was attempted",
            r"the provided PTX was compiled with an unsupported toolchain|unsupported display driver",
            r"Error 80[34]: ",
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your driver",
            "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] driver version 570.86 is used",),
        (
            host(_("Update the GPU driver of the machine."), "nvidia-smi --query-gpu=driver_version --format=csv", 80),
            runtime(_("Use an engine build for the CUDA version of this driver."), 70),
        ),
    ),
    Rule(
        "env.cuda_fork",
        "device",
        _("The GPU was used before the worker processes were started"),
        _("A process that has used the GPU cannot be copied. The workers must be started from scratch instead."),
        (r"Cannot re-initialize CUDA in forked subprocess", r"Cannot re-initialize (?:XPU|HIP) in forked subprocess"),
        (
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use 'spawn'",
            "RuntimeError: Cannot re-initialize XPU in forked subprocess. To use XPU with multiprocessing, use 'spawn'",
        ),
        ("WARNING 01-01 10:00:00 [x.py:1] We must use the `spawn` start method. Reason: CUDA is initialized",),
        (env("VLLM_WORKER_MULTIPROC_METHOD", "spawn", 85),),
    ),
    Rule(
        "env.invalid_device",
        "device",
        _("A GPU was asked for that is not there"),
        _("More workers than visible GPUs, or the list of visible GPUs names one that does not exist."),
        (
            r"invalid device ordinal",
            r"device >= 0 && device < num_gpus",
            r"invalid literal for int\(\) with base 10: '(?:MIG|GPU)-",
            r"CUDA_VISIBLE_DEVICES.*(?:is set to empty|invalid)",
        ),
        (
            "RuntimeError: CUDA error: invalid device ordinal",
            "ValueError: invalid literal for int() with base 10: 'MIG-6f2a'",
        ),
        ("ValueError: invalid literal for int() with base 10: 'abc'",),
        (
            put("tensor_parallel_size", "=gpus", 75, "speed"),
            host(_("Name the GPUs by their numbers."), "nvidia-smi -L", 50),
        ),
    ),
    Rule(
        "env.compiler",
        "compile",
        _("A C compiler or its header files are missing"),
        _("The engine builds small programs for the GPU while it starts, and needs gcc and Python's headers for it."),
        (
            r"fatal error: [\w./]+\.h: No such file",
            r"Failed to find C compiler",
            r"/usr/bin/ld: cannot find -lcuda",
            r"(?:gcc|g\+\+|cc|c\+\+|x86_64-linux-gnu-gcc)['\"]?(?:: |\s).*(?:not found|No such file)",
            r"No such file or directory: '(?:gcc|g\+\+|cc|c\+\+)'",
            r"No working C\+\+ compiler|InvalidCxxCompiler",
            r"CalledProcessError: Command '\[?'?\S*(?:gcc|g\+\+|cc|c\+\+|clang)'.* returned non-zero",
        ),
        (
            "/tmp/tmpx/main.c:4:10: fatal error: Python.h: No such file or directory",
            "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Compiling with gcc 12.2",),
        (
            host(_("Install a compiler and Python's headers."), "apt-get install build-essential python3-dev", 80),
            put("enforce_eager", "true", 60, "speed"),
        ),
    ),
    Rule(
        "env.flashinfer_jit",
        "",
        _("FlashInfer could not build its programs for this GPU"),
        _(
            "FlashInfer builds parts at the first start and needs NVIDIA's compiler (nvcc) and ninja, or its ready-made parts."
        ),
        (
            r"Could not find nvcc|nvcc.*(?:not found|No such file)|Cannot find any available NVCC",
            r"FlashInfer requires GPUs with sm",
            r"Ninja is required",
            r"CUDA_HOME environment variable is not set",
            r"flashinfer.*(?:JIT|jit|cubin).*[Ff]ail",
            r"Ninja build failed|No such file or directory: 'ninja'",
        ),
        (
            "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
            "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)",
        ),
        ("INFO 01-01 10:00:00 [x.py:1] Using FlashInfer for top-p & top-k sampling.",),
        (
            package("flashinfer-cubin flashinfer-jit-cache", 65),
            env("VLLM_USE_FLASHINFER_SAMPLER", "0", 60, "speed"),
        ),
    ),
    Rule(
        "env.missing_dep",
        "",
        _("A Python package is missing"),
        _("The model or an option needs a package that is not in the engine's environment."),
        (
            r"No module named '(?!vllm\._)(?P<package>[\w.]+)'",
            r"Please install (?P<package>[\w\[\]-]+(?:>=[\d.]+)?) (?:via|to use|for|with)",
            r"(?:ImportError|ModuleNotFoundError): Please install",
            r"(?P<package>[\w-]+) is not installed\. Please",
            r"requires the following packages that were not found in your environment: (?P<package>[\w, -]+)",
            r"you need to install (?P<package>[\w-]+)|requires? (?P<name>\w+) to be installed",
        ),
        (
            "ModuleNotFoundError: No module named 'bitsandbytes'",
            "ImportError: Please install bitsandbytes>=0.46.1 via `pip install bitsandbytes>=0.46.1` to use it.",
        ),
        ("ModuleNotFoundError: No module named 'vllm._C'",),
        (drop("=asker", 85), package("=package", 80)),
    ),
)
