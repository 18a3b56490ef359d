"""Words of what is known around a failure: what it was not, and what the engine said of itself. To be translated."""

from typing import Any

from django.utils.translation import gettext_lazy as _

EXCLUDED: dict[str, tuple[Any, Any]] = {
    "excluded.strangers": (
        _("Other programs on the GPU"),
        _("%(free)s of %(total)s were free before the start."),
    ),
    "excluded.ram": (
        _("Too little memory in the machine"),
        _("The system ended no process for lack of memory while it ran."),
    ),
    "excluded.files_read": (_("Damaged model files"), _("The engine read all of them in this start.")),
    "excluded.files_sums": (
        _("Damaged model files"),
        _("Files: %(n)s. Their check sums were right on %(day)s."),
    ),
    "excluded.files_seen": (
        _("Damaged model files"),
        _("Files: %(n)s. They were whole when Berth looked at them on %(day)s."),
    ),
    "excluded.driver": (_("Wrong driver"), _("%(engine)s took the GPU with driver %(driver)s.")),
    "excluded.settings": (
        _("A setting that it does not know"),
        _("Settings it was given: %(n)s. It took all of them."),
    ),
    "excluded.port": (_("A port in use"), _("It got its port, %(port)s.")),
    "excluded.disk": (_("A full disk"), _("%(room)s or more are free on each.")),
    "excluded.shm": (_("Too little shared memory"), _("%(room)s were free.")),
    "excluded.cpu": (_("A processor that is too old"), _("It has %(has)s.")),
}

# What an engine's log tells of itself: name → (label, unit or "").
FACTS: dict[str, tuple[Any, str]] = {
    "version": (_("Version"), ""),
    "architecture": (_("Kind of model"), ""),
    "weights_gib": (_("Weights"), "GiB"),
    "kv_gib": (_("Memory for conversations (KV cache)"), "GiB"),
    "kv_tokens": (_("Room for conversations"), "tokens"),
    "context": (_("Longest conversation"), "tokens"),
    "concurrency": (_("Of full length at once"), ""),
    "graphs_gib": (_("CUDA graphs"), "GiB"),
    "attention": (_("Way to calculate attention"), ""),
    "load_s": (_("Reading the weights"), "s"),
    "compile_s": (_("Building programs for the GPU"), "s"),
    "engine_s": (_("Measuring and warming up"), "s"),
    "torch": (_("PyTorch"), ""),
    "cuda": (_("CUDA of PyTorch"), ""),
    "nccl": (_("NCCL, for talk between GPUs"), ""),
    "transformers": (_("Package “transformers”"), ""),
}
