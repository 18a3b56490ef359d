"""`ollama run` and the variables of `ollama serve`, as far as they mean something to vLLM. Pure."""

from __future__ import annotations

from deployments.pasting.draft import Draft
from deployments.pasting.start import listed
from deployments.pasting.values import is_flag

_VALUED = frozenset(["--keepalive", "--format", "--think", "--dimensions"])
_VARIABLES = {"OLLAMA_CONTEXT_LENGTH": "max_model_len", "OLLAMA_NUM_PARALLEL": "max_num_seqs"}
_OWN = frozenset(
    listed(
        """
    OLLAMA_HOST OLLAMA_ORIGINS OLLAMA_KEEP_ALIVE OLLAMA_DEBUG OLLAMA_FLASH_ATTENTION OLLAMA_MAX_LOADED_MODELS
    OLLAMA_LOAD_TIMEOUT OLLAMA_NOPRUNE OLLAMA_MAX_QUEUE OLLAMA_SCHED_SPREAD OLLAMA_GPU_OVERHEAD OLLAMA_LLM_LIBRARY
    OLLAMA_NOHISTORY
    """
    )
)


def read(draft: Draft) -> None:
    """The model of `run` or `pull`; a question behind it is nobody's setting."""
    words = draft.start.words[1:]
    at = 0
    while at < len(words):
        word = words[at]
        if is_flag(word):
            at += 2 if word in _VALUED else 1
            draft.tell("note", "paste.own", "left_out", flag=word.partition("=")[0])
            continue
        if not draft.model:
            draft.set_model(word)
        at += 1
    for name in list(draft.start.env):
        if name in _OWN:
            draft.start.env.pop(name)
            draft.tell("note", "paste.own", "left_out", flag=name)
        elif name in _VARIABLES:
            draft.set_field(name, _VARIABLES[name], draft.start.env.pop(name))
        elif name == "OLLAMA_KV_CACHE_TYPE":
            draft.start.env.pop(name)
            draft.tell("warning", "paste.no_counterpart", "left_out", flag=name, engine="Ollama")
