"""Codes of the inspection, of scans and of `serving` as sentences with a next step, in the viewer's language.

Every code that the catalog may show stands here; a test walks the code and fails on one that is missing.
"""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from models_catalog.facts import BLOCKING
from panel.core.wording import Pair, Words, said

_COPY_AGAIN = _("Copy or download this model again, then look for models again.")

# Found in the files of one copy.
FILES: dict[str, Pair] = {
    "adapter_only": (
        _("This is a LoRA adapter, not a whole model."),
        _("It works only together with its base model %(base)s."),
    ),
    "bad_config": (_("%(file)s is missing or cannot be read as a model's configuration."), _COPY_AGAIN),
    "bad_header": (_("%(file)s is damaged: its header makes no sense."), _COPY_AGAIN),
    "bad_index": (_("%(file)s does not name the weight files as it should."), _COPY_AGAIN),
    "bad_tokenizer": (_("%(file)s is damaged: its end is missing."), _COPY_AGAIN),
    "broken_link": (
        _("%(file)s is a link to a file that is gone."),
        _("The cache was cleaned up in part. Download this model again."),
    ),
    "byte_order": (
        _("%(file)s was written for machines with the other byte order."),
        _("Download the usual form of this model; this one works on a few large machines only."),
    ),
    "cannot_read": (
        _("%(file)s cannot be read."),
        _("Give the user of the agent the right to read it, then look for models again."),
    ),
    "code_elsewhere": (
        _("Its configuration takes program code from other places: %(files)s."),
        _("An engine would fetch it from there at the start. Without a way to the internet that fails."),
    ),
    "code_missing": (
        _("Its configuration names program code that is not here: %(files)s."),
        _("Engines that know this kind of model by themselves do without it."),
    ),
    "gguf_version": (
        _("%(file)s has GGUF version %(version)s; Berth reads versions 2 and 3."),
        _("Convert or download the model in a current version."),
    ),
    "header_too_large": (_("%(file)s has a header larger than any real model's."), _COPY_AGAIN),
    "imatrix_only": (_("This file only helps to quantise another model and cannot be served."), ""),
    "incomplete_download": (
        _("The download of this model has not ended."),
        _("Wait for it, or start it again if nothing is downloading."),
    ),
    "leftover_parts": (
        _("An earlier download left unfinished part files behind. The model itself is whole."),
        "",
    ),
    "lfs_pointer": (
        _("%(file)s is only a Git LFS pointer; the real file was never fetched."),
        _("Run “git lfs pull” in this folder on the host, then look for models again."),
    ),
    "link_outside": (
        _("%(file)s is a link to a place outside the searched folders, so it is not followed."),
        _("Add the folder that it points to as well, or put the real file here."),
    ),
    "many_models": (_("There are several models: %(files)s."), _("Name one of the files.")),
    "missing_parts": (_("Parts of the weights are missing: %(files)s."), _COPY_AGAIN),
    "missing_tokenizer": (
        _("There is no tokenizer among the files."),
        _("Add the tokenizer files that belong to the model, then look for models again."),
    ),
    "missing_weights": (_("There are no weights among the files."), _COPY_AGAIN),
    "mlx_only": (
        _("Its weights are packed for Apple's machines (MLX)."),
        _("Get the same model as GGUF or as a Hugging Face folder in another form."),
    ),
    "needs_remote_code": (_("The model brings its own program code."), ""),
    "no_chat_template": (
        _("It has no chat template."),
        _("It can complete texts; chats need a template given by the program that asks."),
    ),
    "no_model": (_("There is no model at %(path)s."), _("Name a model's folder, a GGUF file or a config.json.")),
    "not_gguf": (_("%(file)s is not a GGUF file, whatever its name says."), _COPY_AGAIN),
    "ollama_form": (
        _("Ollama keeps this model in a form that only Ollama reads."),
        _("Serve it with Ollama, or get the model as GGUF or as a Hugging Face folder."),
    ),
    "presharded": (
        _("The weights are cut for %(n)s GPUs; engines load them only in that very way."),
        _("Use the uncut checkpoint; engines cut it themselves for any number of GPUs."),
    ),
    "projector_only": (
        _("This file is the image part of another model and cannot be served alone."),
        "",
    ),
    "quantisation_not_in_config": (
        _("The weights are packed (%(sign)s), but the configuration does not say how."),
        _("An engine would fail or answer nonsense. Copy the configuration that belongs to these weights here."),
    ),
    "quantisation_not_in_weights": (
        _("The configuration says %(method)s, but the weights are not stored that way."),
        _("An engine would start and answer nonsense. Use the configuration that belongs to these weights."),
    ),
    "split_mismatch": (
        _("%(file)s is one of %(count)s parts, but its name says something else."),
        _("Give the parts their own names back (…-00001-of-00003.gguf), then look for models again."),
    ),
    "trailing_bytes": (_("%(file)s is longer than its header says."), _COPY_AGAIN),
    "truncated": (_("%(file)s is cut off: it is shorter than its header says."), _COPY_AGAIN),
    "unknown_task": (
        _("Berth does not know what this kind of model is asked for (%(architecture)s)."),
        _("Text generation, embeddings and scoring are supported."),
    ),
    "unknown_tensor_type": (_("%(file)s stores weights in a format that Berth does not know."), ""),
    "unreadable_name": (
        _("The path holds characters that are no text."),
        _("Rename the file or folder on the host, then look for models again."),
    ),
    "wrong_shard": (
        _("%(file)s holds %(tensors)s tensors instead of %(expected)s: it does not belong to these files."),
        _COPY_AGAIN,
    ),
    "zero_bytes": (_("%(file)s is empty (0 bytes)."), _COPY_AGAIN),
}

_FAILED: Pair = (_("Looking for models failed on this host."), _("Try again. The agent's log says more."))

# Found at a searched folder, or said by the agent about the scan as a whole.
FOLDERS: dict[str, Pair] = {
    "cannot_read": (_("%(folder)s cannot be read."), ""),
    "link_outside": (
        _("%(folder)s is a link to a place outside the searched folders, so it is not followed."),
        _("Add the folder that it points to as well."),
    ),
    "no_permission": (
        _("The agent may not look into %(folder)s."),
        _("Give the user of the agent the right to read it, then look again."),
    ),
    "not_a_folder": (_("%(folder)s is not a folder."), ""),
    "not_scanned": (_("The folder was not looked through; the list shows what was known before."), ""),
    "not_supported_here": (
        _("The agent of this host cannot look for models."),
        _("Install the whole agent on that host again."),
    ),
    "path_too_long": (_("%(folder)s has a path that is too long."), _("Move it to a shorter path.")),
    "root_missing": (_("The folder does not exist on this host."), ""),
    "root_not_allowed": (
        _("The agent's own settings do not allow this folder."),
        _("Add it to “model_roots” in the agent's settings on that host and start the agent again."),
    ),
    **dict.fromkeys(
        ("scan_failed", "task_failed", "exit_unknown", "cannot_execute", "spawn_failed", "order_unreadable"), _FAILED
    ),
    **dict.fromkeys(("stopped", "tombstone"), (_("Looking for models was stopped on this host."), _("Look again."))),
    "too_many_jobs": (
        _("The host has too many jobs at the same time."),
        _("Look again when some of them have ended."),
    ),
    "timed_out": (
        _("Looking for models took too long and was stopped."),
        _("Add the folders that hold models instead of the ones above them."),
    ),
    "too_deep": (_("Folders below %(folder)s lie too deep and were not looked into."), _("Add that folder by itself.")),
    "too_many_entries": (
        _("There are too many files here to look at all of them."),
        _("Add the folders that hold models instead of the one above them."),
    ),
    "unreadable_items": (_("%(n)s models were reported in a form that the panel cannot read."), ""),
    "vanished": (_("%(folder)s disappeared while it was looked at."), ""),
}

# Why a model cannot be deployed now; see serving.py.
SERVING: dict[str, Pair] = {
    "code_not_allowed": (
        _("It needs its own program code to run, and no admin has allowed that."),
        _("An admin can allow it on the model's page."),
    ),
    "gguf_needs_plugin": (
        _("No engine on %(hosts)s can serve a GGUF file."),
        _("vLLM needs a GPU and a plugin for it. Convert it to a Hugging Face folder: “Ways to serve it” says how."),
    ),
    "engine_not_run": (_("Berth finds this engine and does not start models with it yet."), ""),
    "gguf_needs_gpu": (
        _("On a CPU this vLLM cannot calculate with a GGUF file: its kernels need a GPU."),
        _("Convert the model to a Hugging Face folder, or use a GPU."),
    ),
    "gguf_no_plugin": (
        _("This vLLM lacks the plugin for GGUF files."),
        _("An admin can add it; see “Ways to serve it”."),
    ),
    "not_whole_there": (_("The copy on that host cannot be used."), ""),
    "not_usable": (_("The newest look at its files found it not usable."), _("Look for models again.")),
    "no_copy": (_("No connected host has its files any more."), _("Look for models again, or copy it to a host.")),
    "no_engine": (
        _("No working engine was found on %(hosts)s."),
        _("Install vLLM there, or name an installed one on the hosts page."),
    ),
}


_DELETE_FAILED: Pair = (_("Deleting this copy failed on its host."), _("Try again. The agent's log says more."))

# Why a copy was not deleted; said by the agent.
DELETES: dict[str, Pair] = {
    "delete.failed": (
        _("%(path)s could not be deleted: %(error)s."),
        _("Give the user of the agent the right to delete it, or delete it on the host and look for models again."),
    ),
    "delete.forbidden": (
        _("The agent's own settings do not allow that models are deleted."),
        _("Set “allow_delete” in the agent's settings on that host, or delete the files there."),
    ),
    "delete.in_use": (_("Something on the host uses these files now."), _("Stop it, then delete this copy.")),
    "delete.not_a_model": (_("There is no model at this path any more."), _("Look for models again.")),
    "delete.of_ollama": (
        _("Ollama keeps these files in order itself."),
        _("Delete the model there, then look for models again."),
    ),
    "delete.of_program": (
        _("%(program)s keeps these files in order itself."),
        _("Delete the model there, or set “delete_from_programs” in the agent's settings on that host."),
    ),
    "delete.path_not_allowed": (
        _("The files do not lie in a model folder that the agent's settings allow."),
        _("Delete them on the host, then look for models again."),
    ),
    "too_many_files": (_("There are too many files in it to delete it from here."), _("Delete it on the host.")),
    **dict.fromkeys(
        ("stopped", "tombstone", "delete.stopped"),
        (_("The deletion was stopped on its host."), _("Nothing of it is used any more: delete it again.")),
    ),
    **dict.fromkeys(
        (
            "delete.no_answer", "task_failed", "exit_unknown", "cannot_execute", "spawn_failed", "order_unreadable",
            "not_supported_here", "too_many_jobs", "timed_out",
        ),
        _DELETE_FAILED,
    ),
}  # fmt: skip


def of_deletion(refusal: Mapping[str, Any]) -> Words:
    """Why a copy is still there."""
    return _words(DELETES, refusal, bad=True)


def of_file(problem: Mapping[str, Any]) -> Words:
    """A problem of a copy."""
    return _words(FILES, problem, bad=problem.get("code") in BLOCKING)


def of_folder(problem: Mapping[str, Any]) -> Words:
    """A problem of a searched folder."""
    return _words(FOLDERS, problem, bad=True)


def of_serving(problem: Mapping[str, Any]) -> Words:
    """A reason why a model cannot be deployed; problems of its files count too."""
    table = SERVING if problem.get("code") in SERVING else FILES
    return _words(table, problem, bad=True)


def _words(table: Mapping[str, Pair], problem: Mapping[str, Any], *, bad: bool) -> Words:
    """Problems of files and folders may name either; the other one stands in for it."""
    params = {name: _listed(v) if isinstance(v, list) else v for name, v in (problem.get("params") or {}).items()}
    folder = params.get("folder") or params.get("path")
    file = params.get("file") or folder or _("A file")
    return said(table, {**problem, "params": {**params, "file": file, "folder": folder or file}}, bad=bad)


def _listed(values: list[Any], most: int = 3) -> str:
    shown, rest = [str(value) for value in values[:most]], len(values) - most
    if rest <= 0:
        return ", ".join(shown)
    more = ngettext("%(n)s more", "%(n)s more", rest) % {"n": rest}
    return ", ".join([*shown, more])


TASKS: dict[str, Any] = {
    "generate": _("Chat and text"),
    "embed": _("Embeddings"),
    "score": _("Scoring and reranking"),
}
