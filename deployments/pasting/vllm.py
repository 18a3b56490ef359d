"""The words of `vllm serve` and of its older server, as a deployment's settings. Pure."""

from __future__ import annotations

from deployments.engines import changes
from deployments.engines.options import Option, normal_flag
from deployments.pasting.draft import Draft
from deployments.pasting.secret_names import is_secret
from deployments.pasting.start import listed
from deployments.pasting.text import plain
from deployments.pasting.values import is_flag

# For a panel that knows no engine yet: the usual flags that take no value, and short spellings.
SWITCHES = frozenset(
    listed(
        """
    enforce_eager trust_remote_code enable_prefix_caching enable_chunked_prefill enable_auto_tool_choice
    enable_lora disable_log_requests disable_log_stats enable_log_requests enable_expert_parallel async_scheduling
    skip_tokenizer_init disable_custom_all_reduce enable_reasoning language_model_only enable_sleep_mode
    disable_sliding_window headless use_v2_block_manager enable_prompt_tokens_details enable_server_load_tracking
    return_tokens_as_token_ids disable_frontend_multiprocessing disable_fastapi_docs enable_request_id_headers
    enable_ssl_refresh calculate_kv_scales fully_sharded_loras worker_use_ray enable_force_include_usage
    disable_uvicorn_access_log enable_dbo enable_eplb disable_hybrid_kv_cache_manager enable_mfu_metrics
    allow_credentials
    """
    )
)
SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-q": "quantization",
    "-sc": "speculative_config",
    "-cc": "compilation_config",
}
MANY = frozenset(["served_model_name", "lora_modules", "allowed_origins", "api_key"])


def read(draft: Draft) -> None:
    """Every word of the command into the draft."""
    words = list(draft.start.words)
    words.reverse()
    while words:
        word = words.pop()
        if not is_flag(word):
            if not draft.model:
                draft.set_model(word)
            elif len(word) < 200 and word != draft.model:
                draft.tell("note", "paste.stray", "left_out", word=plain(word)[:60])
            continue
        _flag(draft, word, words)


def _flag(draft: Draft, word: str, words: list[str]) -> None:
    """One flag with what belongs to it; `words` is what follows, the next one last."""
    head, sign, value = word.partition("=")
    flag = normal_flag(head)
    base = flag.partition(".")[0]
    option = draft.schema.find(base)
    name = _name(base, option)
    if flag.startswith("-O") and len(flag) <= 3:
        level = flag[2:] or value or (words.pop() if words and words[-1].isdigit() else "")
        draft.further(flag, "optimization_level", [f"-O{level}"])
        return
    values = [value] if sign else []
    if "." in flag or not _switch(base, name, option):
        most = 64 if name in MANY or (option is not None and option.many) else 1
        while words and not is_flag(words[-1]) and len(values) < most:
            values.append(words.pop())
        if not values and words and is_secret(name) and not words[-1].startswith("--"):
            values.append(words.pop())  # a secret may begin with a dash; it must not be taken for a flag and shown
    elif not sign and words and words[-1].lower() in ("true", "false"):
        values.append(words.pop())
    _give_back(draft, name, option, values, words)
    if name == "trust_remote_code" and values and values[0].lower() == "false":
        return
    if base.startswith("--no-") and option is not None and name in ("trust_remote_code", "headless"):
        return
    draft.flag(flag, name, values, [f"{flag}={values[0]}"] if sign and len(values) == 1 else [flag, *values])


def _name(base: str, option: Option | None) -> str:
    if option is not None:
        return option.name
    return SHORT.get(base) or base.lstrip("-").replace("-", "_")


def _switch(base: str, name: str, option: Option | None) -> bool:
    if option is not None:
        return option.kind == "bool"
    name = name[3:] if name.startswith("no_") else name
    change = changes.CHANGES.get(name)
    return base.startswith("--no-") or name in SWITCHES or (change is not None and change.switch)


def _give_back(draft: Draft, name: str, option: Option | None, values: list[str], words: list[str]) -> None:
    """A flag that nobody knows takes one word at most; at the end of a command that names no model, it is the model."""
    unknown = option is None and name not in changes.CHANGES and name not in SHORT.values()
    last = not words and len(values) == 1 and ("/" in values[0] or values[0].endswith(".gguf"))
    if unknown and last and not draft.model and draft.schema.options and name not in ("model", "model_tag"):
        words.append(values.pop())
