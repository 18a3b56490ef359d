"""Every code that a deployment's pages may show, as (what happened, what to do next), to be translated.

A test walks the code and fails on a code that is missing here.
"""

from django.utils.translation import gettext_lazy as _

from deployments.codes_changes import CHANGES
from deployments.codes_check import CHECKS
from deployments.codes_places import PLACES
from deployments.codes_secrets import SECRETS
from deployments.serving.codes import FOUND
from panel.core.wording import Pair

CODES: dict[str, Pair] = {
    **CHANGES,
    **FOUND,
    **CHECKS,
    **SECRETS,
    **PLACES,
    # the loop
    "queued.waiting": (_("Waiting for its turn."), _("Berth looks for a place next. Nothing to do.")),
    "placing.now": (
        _("Berth looks for a host with the model, an engine and enough memory."),
        _("It takes a few seconds. Nothing to do."),
    ),
    "preparing.now": (_("A place is found; the host is told what to start."), _("Nothing to do.")),
    "stopping.now": (
        _("Requests that are running get the time to finish; then every process is ended."),
        _("Nothing to do. It counts as stopped only when the host reports that all of them are gone."),
    ),
    "reserve.no_room": (
        _("%(device)s has no room for %(mib)s MiB more."),
        _("It starts by itself when memory is free. Stop something else, or choose another place in the settings."),
    ),
    "placing.deadline": (_("No place was found in time."), _("Press Start to try again.")),
    "preparing.deadline": (_("The preparation took too long."), _("Press Start to try again.")),
    "preparing.sidecar": (
        _("Preparing the model's description: its file alone says too little to the engine."),
        _("The host makes configuration and tokenizer from the file. It takes about a minute, once for each file."),
    ),
    "preparing.check": (
        _("Asking the engine what it thinks of these settings."),
        _("It takes some seconds, and nothing is started for it. What it accepted once is not asked again."),
    ),
    "start.no_job": (_("The order for this start was lost."), _("Press Start to try again.")),
    "start.deadline": (
        _("It was not ready within the time allowed for a start."),
        _("The log shows how far it came. Press Start to try again, or allow more time in the settings."),
    ),
    "answer.failed": (
        _("The engine came up but did not answer the test question."),
        _("The log shows what it did with the question. Other settings or another engine version may help."),
    ),
    "start.stalled": (
        _("Nothing has moved for %(minutes)s min at “%(step)s”: no log line, no byte read, no memory change."),
        _("Berth does not end it for that. If the last log line tells you nothing, stop it and start again."),
    ),
    "start.silent": (
        _("No line of log for %(minutes)s min at “%(step)s”, but the engine still reads, or its memory still changes."),
        _("Nothing to do yet. If the last log line tells you nothing and this goes on, stop it and start again."),
    ),
    "start.hung": (
        _("It hung: no line of log for %(minutes)s min at “%(step)s”, until the time for a start was over."),
        _("The last lines of the log tell what it waited for. Start it again; if it hangs there again, change that."),
    ),
    "start.hung_usual": (
        _("It hung: no line of log for %(minutes)s min at “%(step)s”, which usually takes %(usual)s here."),
        _("The last lines of the log tell what it waited for. Start it again; if it hangs there again, change that."),
    ),
    "stop.leftover": (
        _("These processes have not ended yet: %(pids)s."),
        _("They may wait for the disk or the driver. Berth keeps trying and says here when they are gone."),
    ),
    "stop.not_proven": (
        _("Some processes did not end after KILL: %(pids)s."),
        _("They wait for the disk or the driver. Their memory stays reserved until the host reports that they ended."),
    ),
    "lost.no_contact": (
        _("The host's agent has been silent. The engine may well be running."),
        _("Check that the machine is on and that its agent runs; contact comes back by itself."),
    ),
    "lost.since": (
        _("No contact with %(host)s since %(since)s. The engine may well be running."),
        _("Check that the machine is on and that its agent runs; contact comes back by itself."),
    ),
    # how a process ended
    "exit.zero": (_("The engine ended by itself without an error."), _("The end of the log tells why.")),
    "exit.code": (_("The engine ended with exit code %(exit_code)s."), _("The first error in its log says more.")),
    "exit.signal": (_("The engine was ended by %(signal)s."), _("The end of the log may tell more.")),
    "exit.unknown": (
        _("The engine ended while nobody watched; its exit code is not known."),
        _("The machine may have restarted, or the watcher was killed."),
    ),
    # placing: why a host or a GPU was not taken
    "artifact.gone": (_("The model is not in the catalog any more."), _("Choose another one in the settings.")),
    "context.beyond_model": (
        _("Conversations of %(context)s tokens are asked for; this model was made for %(longest)s at most."),
        _("The engine would refuse to start. Set the longest conversation to %(longest)s tokens or less."),
    ),
    "place.none": (_("No place can take it now."), _("Each place and its reason is listed below.")),
    "host.none": (_("No host is connected."), _("Start the agent of a host; see the Hosts page.")),
    "host.gone": (_("The chosen host is not known any more."), _("Choose another host in the settings.")),
    "host.lost": (_("No contact with this host now."), _("It is used again as soon as its agent calls.")),
    "host.paused": (_("New starts are switched off on this host."), _("An admin can switch them on again.")),
    "host.paused_for": (
        _("New starts are switched off on this host: %(note)s."),
        _("An admin can switch them on again on the page of the host."),
    ),
    "host.no_door": (
        _("The door of this host is not open, so that nothing there could be asked."),
        _("It opens by itself a few seconds after the agent starts; the page of the host says what is wrong."),
    ),
    "host.ram_too_small": (
        _("Needs ≈ %(need_mib:gib)s of memory; the whole host has %(total_mib:gib)s."),
        _("Choose a smaller model or a smaller KV cache (now %(kv_gib)s GiB)."),
    ),
    "host.ram_reserved": (
        _("Needs ≈ %(need_mib:gib)s of memory; %(reserved_mib:gib)s of %(total_mib:gib)s are set aside."),
        _("It starts when one of them is stopped, or with a smaller KV cache."),
    ),
    "host.kv_too_small": (
        _("%(people)s conversations of %(context)s tokens need more than a KV cache of %(kv_gib)s GiB."),
        _("Choose a larger KV cache, a shorter conversation or fewer people."),
    ),
    "host.ram_used": (
        _("Needs ≈ %(need_mib:gib)s of memory; %(available_mib:gib)s are free now."),
        _("Other programs use the rest. It starts when enough is free, or with a smaller KV cache."),
    ),
    "cpu.no_avx2": (_("The CPU of this host lacks AVX2, which vLLM needs."), _("Use another host.")),
    "copy.none": (_("The model is not on this host."), _("Copy it there, then look for models again.")),
    "copy.vanished": (_("The model is no longer at %(path)s."), _("Put it back, or look for models again.")),
    "copy.broken": (_("The copy at %(path)s is not whole."), _("The Models page says what is missing.")),
    "runtime.none": (
        _("No engine that fits was found on this host."),
        _("Install vLLM there on the Engines page, or name its executable on the Hosts page."),
    ),
    "runtime.gone": (_("The chosen engine is no longer on this host."), _("Choose another one in the settings.")),
    "runtime.elsewhere": (
        _("The chosen engine is on another host."),
        _("Choose an engine of this host in the settings, or let Berth decide."),
    ),
    "runtime.broken": (_("The engine %(executable)s was found but does not work."), _("The Engines page says why.")),
    "runtime.no_schema": (
        _("It is not known which settings version %(version)s takes."),
        _("Look for engines again on the Engines page."),
    ),
    "runtime.not_for_gpu": (
        _("This engine is built for %(device)s and cannot use a GPU."),
        _("Choose the CPU, or install vLLM with CUDA."),
    ),
    "runtime.not_for_cpu": (
        _("This engine is built for %(device)s and cannot run on the CPU."),
        _("Choose a GPU, or install vLLM for the CPU on the Engines page."),
    ),
    "gpu.none": (_("This host has no GPU."), _("Choose the CPU or another host.")),
    "gpu.gone": (_("The chosen GPU is not there any more."), _("Choose another one in the settings.")),
    "gpu.paused": (_("New starts are switched off on GPU %(index)s."), ""),
    "gpu.paused_for": (_("New starts are switched off on GPU %(index)s: %(note)s."), ""),
    "gpu.not_on_cpu": (_("GPUs are chosen, and the CPU as well."), _("Choose one of them.")),
    "gpu.too_few": (_("%(wanted)s GPUs are wanted; this host has %(have)s that could serve."), ""),
    "gpu.reserved": (
        _("%(reserved_gib)s of %(total_gib)s GiB are set aside for other runs; needs %(need_gib)s."),
        _("It starts when one of them is stopped."),
    ),
    "gpu.used_by_others": (
        _("%(used_gib)s of %(total_gib)s GiB are held by other programs; needs %(need_gib)s."),
        _("The Hosts page names them."),
    ),
    "gpu.used_by_user": (
        _("%(used_gib)s of %(total_gib)s GiB are held by a %(process)s process of user %(user)s; needs %(need_gib)s."),
        _("Berth did not start it. Ask whoever started it, or choose another place."),
    ),
    "gpu.used_by_one": (
        _("%(used_gib)s of %(total_gib)s GiB are held by a %(process)s process outside Berth; needs %(need_gib)s."),
        _("Ask whoever started it, or choose another place."),
    ),
    "gpu.used_by_several": (
        _("%(used_gib)s of %(total_gib)s GiB are held by programs outside Berth: %(named)s; needs %(need_gib)s."),
        _("Ask whoever started them, or choose another place."),
    ),
    "gpu.busy": (
        _("%(free_gib)s of %(total_gib)s GiB are free now; needs %(need_gib)s."),
        _("It starts when enough is free."),
    ),
    "gpu.too_small": (
        _("Even alone on it, the model needs ≈ %(need_mib:gib)s; %(name)s has %(total_mib:gib)s."),
        _("A shorter conversation, several GPUs or a quantised form of the model may fit."),
    ),
    "gpu.too_small_each": (
        _("On %(gpus)s GPUs the model needs ≈ %(need_mib:gib)s of each; %(name)s has %(total_mib:gib)s."),
        _("A shorter conversation, more GPUs or a quantised form of the model may fit."),
    ),
    "gpu.share_too_small": (
        _("The chosen share gives %(given_mib:gib)s of %(name)s; the model needs ≈ %(need_mib:gib)s."),
        _("Choose a larger share, or let Berth choose it."),
    ),
    "gpu.capability": (
        _("%(name)s cannot compute %(what)s: that takes compute capability %(need)s, and it has %(have)s."),
        _("Choose a newer GPU, or another form of the model."),
    ),
    "gpu.mixed_kinds": (
        _("The chosen GPUs are of different kinds (%(names)s)."),
        _("The slowest one sets the pace, and the smallest how much fits."),
    ),
    "gpu.slow_link": (
        _("These %(gpus)s GPUs are not joined by NVLink, so that they wait for each other at every word."),
        _("One larger GPU or a quantised form of the model would answer faster."),
    ),
    "gpu.fp8_unpacked": (
        _("These GPUs compute FP8 weights in 16 bits: that saves memory, but no time."),
        "",
    ),
    "gpu.fp8_cache_old": (
        _("Whether an FP8 KV cache works on these GPUs depends on the engine's version."),
        _("Leave the number format of the KV cache to the engine if the start fails."),
    ),
    "cpu.for_tests": (
        _("On a processor vLLM is for tests and for work that can wait."),
        _("For one person llama.cpp or Ollama answer faster there; Berth does not start them yet."),
    ),
    "parallel.vocabulary": (
        _("A vocabulary of %(vocab)s words cannot be divided among %(parts)s GPUs."),
        _("Choose a number of GPUs that divides it."),
    ),
    "parallel.kv_heads": (
        _("%(kv_heads)s heads for keys and values cannot be divided among %(parts)s GPUs."),
        _("Choose a number of GPUs that divides them."),
    ),
    "parallel.layers": (
        _("%(layers)s layers are too few for a pipeline of %(parts)s stages."),
        _("Choose fewer stages."),
    ),
    "parallel.groups": (
        _("Among %(parts)s GPUs layers of %(width)s would break groups of %(group)s weights that share a scale."),
        _("Choose fewer GPUs, or another form of the model."),
    ),
    # the engine's command
    "chosen.few_sequences": (
        _("On the CPU %(value)s requests are answered at once; the rest wait in line."),
        _("“Requests at once” changes that."),
    ),
    "chosen.longest_context": (_("The context is as long as model and memory allow."), ""),
    "chosen.dtype_for_amx": (
        _("Numbers are kept as %(value)s: bfloat16 gives wrong answers with this version on this kind of CPU (AMX)."),
        _("“Number format” changes that."),
    ),
    "chosen.sidecar": (
        _("The file alone says too little to vLLM, so the host makes a description of it first, from the file itself."),
        _("That takes about a minute, once for each file. The file is not touched."),
    ),
    "chosen.no_compiling": (_("Nothing is compiled before the start, which on a CPU takes long and gains little."), ""),
    "options.refused": (_("Some settings are not possible."), _("Each one is listed below.")),
    "option.bad_json": (_("%(flag)s needs JSON; this cannot be read: %(error)s."), ""),
    "option.bad_text": (_("The value of %(flag)s holds characters that are not possible."), ""),
    "option.missing_value": (_("%(flag)s needs a value."), ""),
    "option.not_a_choice": (_("%(flag)s cannot be %(value)s."), _("Possible: %(choices)s.")),
    "option.not_a_size": (_("%(flag)s needs a number such as 4096 or 4k, not %(value)s."), ""),
    "option.not_a_switch": (_("%(flag)s is a switch and takes no value."), ""),
    "option.not_a_number": (_("%(flag)s needs a number, not %(value)s."), ""),
    "option.not_an_int": (_("%(flag)s needs a whole number, not %(value)s."), ""),
    "option.not_text": (_("%(flag)s needs plain text."), ""),
    "option.not_structured": (_("%(flag)s takes no parts."), ""),
    "option.out_of_range": (_("%(flag)s must lie between %(low)s and %(high)s, not %(value)s."), ""),
    "option.twice": (_("%(flag)s is given twice."), _("Keep one of them.")),
    "option.path_outside": (
        _("%(flag)s names %(path)s, which lies outside the model folders."),
        _("Put the file into a model folder of that host."),
    ),
    "option.denied_house": (_("%(flag)s is set by Berth itself."), _("Leave it out.")),
    "option.denied_code": (_("%(flag)s would load program code."), _("Berth does not allow that. Leave it out.")),
    "option.denied_network": (_("%(flag)s would open or call another address."), _("Leave it out.")),
    "option.denied_secret": (
        _("%(flag)s would show a secret to every user of the host."),
        _("Leave it out; Berth makes a key of its own for every start."),
    ),
    "option.denied_file": (_("%(flag)s would read or write files outside the model folders."), _("Leave it out.")),
    "flag.unknown": (
        _("This version of the engine has no %(flag)s."),
        _("%(near)s was meant, most likely."),
    ),
    "flag.removed": (_("%(flag)s was removed from the engine in this version."), _("Leave it out.")),
    "flag.removed_no_effect": (_("%(flag)s no longer exists and was left out; it changes nothing."), ""),
    "flag.translated": (_("%(flag)s has another name in this version; it runs as %(to)s."), ""),
    "flag.device_by_runtime": (
        _("%(flag)s was left out: which device is used follows from the installed engine."),
        "",
    ),
    "flag.device_other": (
        _("%(flag)s asks for %(value)s, but the installed engine is for another device."),
        _("Choose the device in the settings instead."),
    ),
    "args.open_quote": (_("A quote is opened and not closed at: %(text)s"), ""),
    "args.stray": (_("“%(word)s” does not belong to any flag."), _("Flags begin with two dashes.")),
    "env.denied": (_("The variable %(name)s cannot be set."), _("Only variables that tune the engine can be.")),
    "env.denied_house": (_("The variable %(name)s is set by Berth itself."), _("Leave it out.")),
    "env.bad_value": (_("The value of %(name)s is not possible."), ""),
    "model.bad_path": (_("The path %(path)s cannot be used."), _("Look for models again.")),
    "model.remote_code": (
        _("This model brings program code of its own (%(files)s)."),
        _("An admin can allow that for this model on its page, after reading the code."),
    ),
    "gguf.not_a_file": (_("A GGUF model is started from its file, and %(path)s is none."), _("Look for models again.")),
    "gguf.plugin_missing": (
        _("vLLM %(version)s reads GGUF only with a plugin, which is not installed."),
        _("An admin can add it on the model's page; or convert the model to a Hugging Face folder there."),
    ),
    "gguf.no_cpu_kernels": (
        _("vLLM on the CPU cannot calculate with a GGUF file: its kernels need a GPU."),
        _("Convert the model to a Hugging Face folder, or use a GPU."),
    ),
    "parallel.heads": (
        _("%(heads)s attention heads cannot be divided among %(parts)s GPUs."),
        _("Choose a number of GPUs that divides them."),
    ),
    "parallel.not_the_gpus": (_("The parallel sizes do not match the number of chosen GPUs."), ""),
    "task.other_runner": (_("The engine's --runner says something else than “Used for”."), _("Leave it out.")),
    # what the host itself refused
    "argument_size": (_("The command is longer than the host allows."), ""),
    "cannot_execute": (_("The engine's file could not be executed on the host."), _("Look for engines again.")),
    "command_not_allowed": (_("The host runs engines only; it refused “%(command)s”."), ""),
    "environment_not_allowed": (
        _("The host does not allow the variable %(name)s."),
        _("Leave it out, or ask the owner of the host to allow it there (allow_env in agent.json)."),
    ),
    "environment_size": (_("The environment is larger than the host allows."), ""),
    "flag_not_allowed": (
        _("The host does not allow %(flag)s."),
        _("Leave it out, or allow it in the settings of the agent on that host."),
    ),
    "engine_not_used_yet": (_("The host does not start this kind of engine yet."), ""),
    "flag_value_not_allowed": (_("The host does not allow this value of %(flag)s: %(value)s."), ""),
    "gpu_uuid": (_("The host does not know the GPU %(uuid)s."), _("Choose another one in the settings.")),
    "host_not_loopback": (_("Engines listen on loopback only."), _("Leave --host out.")),
    "port_not_ours": (_("The host picks the port."), _("Leave --port out.")),
    "no_port": (_("The host found no free port."), _("Press Start to try again.")),
    "model_not_in_command": (_("The command does not start with the model."), ""),
    "path_missing": (
        _("There is nothing at %(path)s on the host any more."),
        _("Put the model back, then look for models again."),
    ),
    "path_not_allowed": (
        _("The host does not allow the path %(path)s."),
        _("It must lie in one of the host's model folders; links that lead out of them do not count."),
    ),
    "code_changed": (
        _("The model's own code is not what an admin allowed: %(files)s. Nothing was started."),
        _("An admin can read it on the model's page and allow it anew."),
    ),
    "code_elsewhere": (
        _("The engine would run code from %(place)s, which nobody allowed. Nothing was started."),
        _("Only code beside the model can be allowed: copy it there, or leave out a second tokenizer or model."),
    ),
    "too_many_files": (_("The folder %(path)s holds too many files."), ""),
    "runtime_unknown": (
        _("The host does not know the engine %(executable)s."),
        _("Look for engines again on the Hosts page, or name it there."),
    ),
    "cpu_without_avx2": (_("The CPU of this host lacks AVX2, which vLLM needs."), _("Use another host.")),
    "order_unreadable": (_("The agent did not understand the order."), _("Update the agent of that host.")),
    "spawn_failed": (
        _("The host could not start the process."),
        _("Press Start to try again; the agent's log says more."),
    ),
    "host_forgotten": (
        _("The host %(host)s was taken out of Berth while it had no contact; what became of this run is not known."),
        _("Press Start to run it somewhere else."),
    ),
    "tombstone": (_("This start was already stopped on the host."), _("Press Start for a new one.")),
    "too_many_jobs": (_("The host already has %(limit)s jobs, its limit."), _("Stop something there.")),
    "not_supported_here": (_("The agent of that host cannot do this."), _("Update the agent of that host.")),
    "host_restarted": (
        _("The machine started again while this ran."),
        _("Berth starts it again by itself. After the third time within an hour it waits until someone presses Start."),
    ),
    "exit_unknown": (
        _("The engine ended while nobody watched; its exit code is not known."),
        _("The machine may have restarted, or the watcher was killed."),
    ),
    "task_failed": (_("The search on the host failed."), _("Its log says more. Try again.")),
}
