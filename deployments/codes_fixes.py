"""The words of fixes: what each is called and what it brings or costs, to be translated.

A test walks the code and fails on a code that is missing here.
"""

from django.utils.translation import gettext_lazy as _

from deployments.codes_changes import CHANGES
from panel.core.wording import Pair

# What a fix is called, and what to know of it beyond its effects.
FIXES: dict[str, Pair] = {
    **CHANGES,
    "fix.context_down": (_("Lower the longest conversation to %(to)s tokens"), ""),
    "fix.context_up": (_("Raise the longest conversation to %(to)s tokens"), ""),
    "fix.share_down": (_("Take %(percent)s of the GPU's memory instead of %(percent_before)s"), ""),
    "fix.share_up": (_("Take %(percent)s of the GPU's memory instead of %(percent_before)s"), ""),
    "fix.share": (_("Take %(percent)s of the GPU's memory"), ""),
    "fix.gpus": (_("Use %(to)s GPUs instead of %(from)s"), ""),
    "fix.gpus_one": (_("Use one GPU instead of %(from)s"), ""),
    "fix.sequences": (_("Answer at most %(to)s requests at the same time"), _("More people than that wait a little.")),
    "fix.sequences_up": (
        _("Answer %(to)s requests at the same time instead of %(from)s"),
        _("Each answer then comes a little more slowly."),
    ),
    "fix.graphs": (
        _("Let it record its work for the GPU (CUDA graphs)"),
        _("The start takes a little longer, and each answer less."),
    ),
    "fix.step_tokens": (
        _("Read at most %(to)s tokens in one step"),
        _("The engine reads requests in steps; long texts then take more of them."),
    ),
    "fix.kv_gib": (_("Set aside %(to)s GiB of memory for conversations"), ""),
    "fix.lora_rank": (_("Allow adapters of rank %(to)s"), _("The rank is the size of an adapter (LoRA).")),
    "fix.dtype": (_("Calculate with numbers of the format %(to)s"), ""),
    "fix.eager": (
        _("Start without recorded GPU programs (CUDA graphs)"),
        _("The engine then tells the GPU every step anew."),
    ),
    "fix.kv_fp8": (_("Keep conversations in 8 bits (FP8)"), _("They then take half the memory.")),
    "fix.kv_auto": (_("Keep conversations in the model's own number format"), ""),
    "fix.set": (_("Set “%(label)s” to %(to)s"), ""),
    "fix.change": (_("Change “%(label)s” from %(from)s to %(to)s"), ""),
    "fix.open": (_("Set another value for “%(label)s”"), _("Which one, the line of the log may say.")),
    "fix.choose": (
        _("Choose another value for “%(label)s” in the settings"),
        _("This engine has %(known)s."),
    ),
    "fix.choose_more": (
        _("Choose another value for “%(label)s” in the settings"),
        _("This engine has %(known)s and %(more)s more."),
    ),
    "fix.back": (_("Change “%(label)s” back to %(to)s"), _("It worked with that before.")),
    "fix.back_to": (_("Go back to settings number %(number)s"), ""),
    "fix.drop": (_("Leave out %(labels)s"), ""),
    "fix.rename": (_("Write %(to)s instead of %(name)s"), ""),
    "fix.env": (_("Set the variable %(name)s to %(to)s"), ""),
    "fix.env_open": (_("Give the variable %(name)s a value"), _("Which one depends on this machine and its network.")),
    "fix.secret_open": (
        _("Give the variable %(name)s a stored secret"),
        _("A token is kept as a secret. The settings name it and never show it."),
    ),
    "fix.env_drop": (_("Leave out the variable %(name)s"), ""),
    "fix.runtime": (_("Start with vLLM %(version)s"), ""),
    "fix.install_newer": (
        _("Install a newer vLLM on %(host)s"),
        _("The newest release may know this model. The engine that is there stays."),
    ),
    "fix.install": (_("Install another vLLM on %(host)s"), _("The engine that is there stays.")),
    "fix.plugin": (_("Add the plug-in that reads GGUF files to this engine"), _("An admin can do it by one click.")),
    "fix.package": (_("Install %(package)s in the engine's own environment"), _("Run this on the host:")),
    "fix.package_anew": (_("Bring %(package)s up to date in the engine's own environment"), _("Run this on the host:")),
    "fix.task_generate": (_("Use it for chat and text"), _("That is what this model was made for.")),
    "fix.task_embed": (_("Use it for embeddings (vectors)"), _("That is what this model was made for.")),
    "fix.task_score": (_("Use it for reranking (scores)"), _("That is what this model was made for.")),
    "fix.repair": (_("Fetch what is missing or damaged of the model's files"), ""),
    "fix.repair_file": (_("Fetch %(file)s again"), ""),
    "fix.fetch": (
        _("Fetch this model to the host"),
        _("Engines start without network: all files of a model lie on the host before."),
    ),
    "fix.other_model": (
        _("Use another model"),
        _("If the newest engine does not know this one either, nothing can run it yet."),
    ),
    "fix.other_form": (_("Take a form of this model that was made for chat, such as its instruct form"), ""),
    "fix.at_model": (_("Look at these files, and fetch them again, on the page of the model"), ""),
    "fix.on_host": (_("Mend it on %(host)s, then check again"), ""),
    "fix.name": (_("Call it %(to)s"), ""),
    "fix.parts": (_("Split the model into %(to)s parts instead of %(from)s"), ""),
    "fix.parts_one": (_("Do not split the model"), _("One process then calculates with all of it.")),
    "fix.free_ram": (_("Free memory of the machine"), _("This shows how much is free:")),
    "fix.plain_template": (
        _("Let it chat by a plain template: “User: …”, “Assistant: …”"),
        _("A model that was not taught to chat may go on talking for both sides."),
    ),
    "fix.look": (
        _("Look at the model's files again"),
        _("At %(path)s something is missing or in another place than Berth knows."),
    ),
    "fix.code": (
        _("Allow this model's own program code"),
        _("The model does not run without it. An admin should read the code first; it is shown on the model's page."),
    ),
    "fix.stop_gpu": (_("Stop %(name)s, which holds %(mib:gib)s of GPU %(gpu)s"), ""),
    "fix.stop_ram": (_("Stop %(name)s, which holds %(mib:gib)s of the machine's memory"), ""),
    "fix.stop_gpu_other": (
        _("Free %(mib:gib)s of GPU %(gpu)s, which something else on this panel holds"),
        _("You may not see what it is. Ask an admin."),
    ),
    "fix.stop_ram_other": (
        _("Free %(mib:gib)s of the machine's memory, which something else on this panel holds"),
        _("You may not see what it is. Ask an admin."),
    ),
    "fix.end": (
        _("End %(name)s (process %(pid)s), which holds %(mib:gib)s of GPU %(gpu)s"),
        _("It is not Berth's. Ask whoever started it, or run this on the host:"),
    ),
    "fix.end_of": (
        _("End %(name)s of %(user)s (process %(pid)s), which holds %(mib:gib)s of GPU %(gpu)s"),
        _("It is not Berth's. Ask %(user)s, or run this on the host:"),
    ),
    "fix.end_port": (_("End what holds the port: %(holder)s"), _("Run this on the host to see it:")),
    "fix.again": (_("Start again unchanged"), _("It may have been something outside, which has passed by now.")),
    "fix.again_port": (_("Start again"), _("The host then picks another free port.")),
    "fix.restart": (_("Restart it"), _("It answers nobody until it is ready again.")),
    "fix.second": (
        _("Deploy the same model a second time"),
        _("Under a name of its own; whoever asks chooses one of the two."),
    ),
    "fix.instruct": (
        _("Use the form of this model that was taught to chat"),
        _("Its name often ends in Instruct, Chat or it."),
    ),
    "fix.template": (
        _("Name another chat template in the settings"),
        _("The one from the model's publisher fits; its page has it."),
    ),
    "fix.twin": (_("Use %(name)s, a smaller form of this model"), ""),
    "fix.gguf_file": (_("Use the GGUF file %(name)s instead of its folder"), ""),
    "fix.more_time": (
        _("Allow %(minutes)s minutes for a start instead of %(before)s"),
        _("Helps where it went on loading or compiling until the time was over."),
    ),
    "fix.free_runtime_id": (_("Let Berth choose the engine"), ""),
    "fix.free_host_id": (_("Let Berth choose the host"), ""),
    "fix.free_gpu_uuids": (_("Let Berth choose the GPU"), ""),
}

# Fixes that rows may still name and that are called otherwise now.
EARLIER: dict[str, Pair] = {
    "fix.more_kv": (
        _("Make the memory for conversations larger: %(before)s → %(after)s GiB."),
        _("It is taken from the main memory of the host."),
    ),
    "fix.less_kv": (
        _("Make the memory for conversations smaller: %(before)s → %(after)s GiB."),
        _("Fewer conversations fit at the same time."),
    ),
    "fix.more_share": (
        _("Let it use more of the GPU's memory: a share of %(before)s → %(after)s."),
        _("All that is gained goes to conversations."),
    ),
    "fix.less_share": (
        _("Leave more of the GPU's memory free: a share of %(before)s → %(after)s."),
        _("Fewer conversations fit at the same time."),
    ),
    "fix.fewer_sequences": (
        _("Answer at most %(after)s requests at the same time."),
        _("The others wait a little, and none starts over."),
    ),
    "fix.more_sequences": (
        _("Answer more requests at the same time: %(before)s → %(after)s."),
        _("Each answer then comes a little more slowly."),
    ),
    "fix.longer": (
        _("Allow longer conversations: %(before)s → %(after)s tokens."),
        _("Fewer of them fit at the same time."),
    ),
}
FIXES |= EARLIER

# What a fix brings or costs.
EFFECTS: dict[str, Pair] = {
    "effect.fits": (_("Fits, by the estimate"), ""),
    "effect.fits_spare": (_("Fits, ≈ %(gib)s GiB to spare"), ""),
    "effect.tight": (_("Just fits, by the estimate"), ""),
    "effect.unlikely": (_("By the estimate it does not quite fit"), ""),
    "effect.exact": (_("Answers stay as exact as now"), ""),
    "effect.context": (_("Conversations end at ≈ %(pages)s pages, not %(was)s"), ""),
    "effect.context_to": (_("Conversations end at ≈ %(pages)s pages"), ""),
    "effect.fits_model": (_("Made for this kind of model"), ""),
    "effect.worked": (_("Has worked on %(host)s before"), ""),
    "effect.worked_before": (_("It was ready with these before"), ""),
    "effect.here": (_("Is already on %(host)s"), ""),
    "effect.on_host": (_("Is already on this host"), ""),
    "effect.only_damaged": (_("Only files that differ are fetched"), ""),
    "effect.port_of": (_("The port was held by %(holder)s"), ""),
    "cost.context": (_("Less room for conversations"), ""),
    "cost.speed": (_("Answers come more slowly"), ""),
    "cost.quality": (_("Answers may be a little less exact"), ""),
    "cost.memory": (_("Takes more memory"), ""),
    "cost.time": (_("Takes some time"), ""),
    "cost.safety": (_("Program code of the model's publisher would run on the host"), ""),
}
