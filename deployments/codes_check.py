"""Words of the check before a start, to be translated: as (what is so, why it matters and what to do next)."""

from django.utils.translation import gettext_lazy as _

from panel.core.wording import Pair

CHECKS: dict[str, Pair] = {
    "check.no_chat_template": (
        _("This model does not say how a chat is written down for it."),
        _("It can go on with a text, and answers no chat questions. Take its instruct form, or give a chat template."),
    ),
    "check.file_gone": (
        _("%(file)s is missing on the host."),
        _("It was there when the model was found. Fetch it again, or put it back and check again."),
    ),
    "check.file_short": (
        _("%(file)s is shorter than when it was found: %(now)s of %(was)s bytes."),
        _("It may still be arriving, or is cut off. Fetch it again, or check again once it is whole."),
    ),
    "check.file_other": (
        _("%(file)s is another file than when it was found: %(now)s bytes, not %(was)s."),
        _("Look for models again, so that the plan counts with what lies there now."),
    ),
    "check.tools_without_parser": (
        _("Tool calls are switched on, and nothing says how this model writes them."),
        _("The engine refuses to start so. Choose the tool call parser of this model, or switch tool calls off."),
    ),
    "check.parser_unknown": (
        _("This engine has no parser %(value)s."),
        _("A parser reads how a model writes tool calls or thoughts. Each engine has its own; choose one, or none."),
    ),
    "check.parser_without_tools": (
        _("A tool call parser is chosen (%(parser)s), but tool calls are not switched on."),
        _("Programs that let the model choose a tool would be refused."),
    ),
    "check.lora_off": (
        _("There are adapters (LoRA), but adapters are not switched on."),
        _("The engine would start without room for them, and then fail to load them."),
    ),
    "check.lora_in_turns": (
        _("%(count)s adapters (LoRA) share room for %(room)s."),
        _("Those that are asked for take turns, which costs time. More room costs memory."),
    ),
    "check.name_taken": (
        _("There is already a deployment with the name %(name)s."),
        _("Choose another name: programs say it to reach this one."),
    ),
    "check.context_beyond": (
        _("Conversations of %(context)s tokens are longer than the %(longest)s that the model's files name."),
        _("Your settings or its files may allow that; the engine decides. Beyond its length a model answers poorly."),
    ),
    "check.failed_here": (
        _("These settings failed here before: %(said)s."),
        _("It was start %(number)s of %(name)s (%(when)s), with the same engine, files and kind of GPU."),
    ),
    "check.tight": (
        _("It just fits."),
        _("At the worst end of the estimate it would not. If it fails for memory, a shorter context helps most."),
    ),
    "check.unlikely": (
        _("It will probably not fit."),
        _("The estimate says no, but by less than it may be off. A shorter context makes it surer."),
    ),
    "check.no_estimate": (
        _("How much memory it needs is not known."),
        _("Berth does not know this kind of model well enough to tell, so the start itself will show it."),
    ),
    "check.refused": (_("The engine itself said so when it was asked, before anything was started."), ""),
    "check.refused_unknown": (
        _("The engine refuses these settings: %(root)s"),
        _("It said so when it was asked, before anything was started. Berth does not know this message yet."),
    ),
    "check.old_agent": (
        _("The engine was not asked: the agent of this host is too old for that."),
        _("Update it on the page of the host. The start itself shows what the engine says."),
    ),
    "check.not_made": (
        _("The host did not ask its engine: %(cause)s."),
        _("The start itself shows what the engine says."),
    ),
    "check.not_finished": (
        _("The engine did not answer in time."),
        _("The host may be busy. Check again, or start: the start itself shows what the engine says."),
    ),
    "check.cannot_be_asked": (
        _("This engine has no way to check settings without starting."),
        _("The start itself shows what it says."),
    ),
    "check.host_busy": (
        _("This host has several checks in hand."),
        _("Check again in a minute."),
    ),
    "check.description_first": (
        _("The engine was not asked: it needs a description of this file, which the first start makes."),
        "",
    ),
    "check.host_then": (
        _("The host told this with an earlier answer of the engine (%(when)s)."),
        _("Check again to have it measured now. A newer agent tells it all the time; the page of the host offers it."),
    ),
    "check.small_shm": (
        _("The host has %(free_mib:gib)s of shared memory; several GPUs need at least %(need_mib:gib)s."),
        _("They exchange data there. In a container, start it with more shared memory (--shm-size or --ipc=host)."),
    ),
    "check.few_files": (
        _("A program on this host may open %(files)s files at most; an engine may need %(need)s."),
        _("With many users at once, connections would be refused. Raise the limit of the agent's service."),
    ),
    "check.disk_log": (
        _("The disk for logs has only %(free_mib:gib)s free."),
        _("A full disk loses the log of this start. Free %(need_mib:gib)s or more on the host."),
    ),
    "check.disk_cache": (
        _("The disk for what the engine compiles has only %(free_mib:gib)s free."),
        _("A full disk can end the start. Free %(need_mib:gib)s or more on the host."),
    ),
}

PARTS = {
    "files": (_("The model's files"), _("Whole, and in a form that this engine reads.")),
    "settings": (
        _("The settings"),
        _("Every one is known to this engine and may have its value. The host picks a free port."),
    ),
    "plan": (_("The place"), _("There is a place with enough memory.")),
    "engine": (_("The engine's own check"), _("The engine accepts this very command.")),
    "host": (_("The host"), _("Shared memory, open files and disks are enough.")),
}
NOT_YET = {
    "plan": _("Looked for once the settings are right."),
    "settings": _("Looked at once there is a place for it."),
    "engine": _("Asked once everything above is right."),
    "host": _("Told by the host together with the engine's answer."),
}
