"""What is said of a pasted command, as (what happened, what to do next), to be translated. See codes.py."""

from django.utils.translation import gettext_lazy as _

from panel.core.wording import Pair

PASTE: dict[str, Pair] = {
    # the text
    "paste.nothing": (
        _("No command that starts an engine was found in this text."),
        _("Paste the line that begins with vllm serve, python -m …, docker run, llama-server or ollama run."),
    ),
    "paste.too_long": (_("The text is too long and was cut."), _("Paste the command alone.")),
    "paste.too_many": (
        _("More than %(n)s things would have to be said of this command; the rest of it was left out."),
        _("Check that it is a command of one engine, and paste it alone."),
    ),
    "paste.open_quote": (
        _("A quote is opened and not closed; it was read as a plain sign."),
        _("Compare the settings with the command."),
    ),
    "paste.typography": (_("Dashes, quotes or blanks that text programs put in were read as plain ones."), ""),
    "paste.joined": (_("Lines that begin with a flag were read as going on from the line before."), ""),
    "paste.other_commands": (_("Not needed here and left out: %(names)s."), ""),
    "paste.more_engines": (
        _("The text starts further engines (%(n)s); the first one was taken."),
        _("Paste the others one by one."),
    ),
    "paste.exported": (_("This command comes from Berth; its settings were taken as they were."), ""),
    "paste.taken": (_("Taken: %(flags)s."), ""),
    # the model
    "paste.no_model": (_("The command names no model."), _("Choose one below.")),
    "paste.model_unresolved": (
        _("The model stands for something outside this text: %(text)s."),
        _("Choose the model below, or put its name into the command."),
    ),
    "paste.two_models": (
        _("The command names two models, %(first)s and %(text)s; the first was taken."),
        _("Choose the other one below if that is meant."),
    ),
    "paste.model_unknown": (
        _("%(model)s is not in the catalog."),
        _("Look for models again if it lies on a host, download it, or choose another one below."),
    ),
    "paste.model_several": (
        _("%(model)s could be one of several models here."),
        _("Choose the one that is meant."),
    ),
    "paste.model_found": (_("%(text)s is %(model)s here, at %(path)s."), ""),
    "paste.gguf_file": (_("A GGUF model is started from its file: %(path)s."), ""),
    "paste.model_unusable": (
        _("The copies of %(model)s cannot be used as they are."),
        _("The page of the model says what is missing."),
    ),
    "paste.not_approved": (
        _("%(model)s is not approved; people who can deploy may only use approved models here."),
        _("Ask an admin to approve it, or choose another one."),
    ),
    "paste.remote_code": (
        _("%(flag)s was left out: an admin allows a model's own code on the page of the model."),
        _("Models without code of their own do not need it."),
    ),
    "paste.model_variable": (_("%(name)s was left out: Berth takes models from where they lie on the host."), ""),
    # flags
    "paste.own": (_("%(flag)s was left out: Berth sees to that itself."), ""),
    "paste.usual": (_("%(flag)s was left out: it says what Berth does anyway."), ""),
    "paste.bad_value": (_("%(flag)s cannot be %(value)s and was left out."), _("Give the value below.")),
    "paste.twice": (_("%(flag)s is given twice; the last value counts."), ""),
    "paste.stray": (_("“%(word)s” belongs to no flag and was left out."), ""),
    "paste.unresolved": (
        _("%(flag)s was left out: %(text)s stands for something outside this text."),
        _("Give the value below, if it is needed."),
    ),
    "paste.config_file": (
        _("The settings in the file %(file)s are not known here."),
        _("Paste what the file says as flags."),
    ),
    "paste.env_file": (_("The variables in the file %(file)s are not known here."), _("Add them below, if needed.")),
    "paste.loose_variables": (_("Variables that no engine is given were left out: %(names)s."), ""),
    "paste.no_counterpart": (_("%(flag)s of %(engine)s has no counterpart here and was left out."), ""),
    "paste.other_engine": (
        _("This starts %(engine)s; Berth will start vLLM. What means the same there was taken."),
        _("Look through the settings before you start it."),
    ),
    "paste.other_version": (
        _("The command is written for vLLM %(written)s; its flags were read as %(read)s has them."),
        _("To run %(written)s, install it on the page “Engines” and choose it under Expert settings."),
    ),
    "paste.shared_context": (
        _("There, %(total)s tokens are shared by %(n)s requests at once; here each may be %(each)s long."),
        "",
    ),
    "paste.some_layers": (
        _("The command puts %(n)s layers on the GPU and the rest on the CPU, which vLLM cannot."),
        _("It runs on the GPU alone if the model fits, or choose the CPU."),
    ),
    "paste.first_name": (_("Of several names, %(name)s was taken; left out: %(others)s."), ""),
    "paste.name_changed": (
        _("The name %(old)s became %(new)s: names here have small letters, digits, dots and dashes."),
        _("Programs use the new name as the model."),
    ),
    "paste.name_taken": (_("There is already a deployment %(old)s; this one is called %(new)s."), ""),
    # secrets
    "paste.secret": (
        _("%(name)s is a secret: it was not kept."),
        _("Berth protects each engine by a key of its own; people and programs use their tokens (page Account)."),
    ),
    "paste.secret_hub": (
        _("%(name)s is a secret: it was not kept."),
        _("Nothing is downloaded when a model starts. Tokens for downloads are kept on the page “Access to hubs”."),
    ),
    "paste.secret_variable": (
        _("%(name)s is a secret: it was not kept."),
        _("If the engine needs it, keep it on the page “Secrets” and name it under Expert settings."),
    ),
    "paste.secret_variable_offered": (
        _("%(name)s is a secret: it was not kept."),
        _(
            "Berth can keep it sealed as the secret %(stored)s and give it to the engine, on hosts whose owner lets"
            " this variable through."
        ),
    ),
    "paste.secret_offered": (
        _("%(name)s is a secret: it was not kept."),
        _(
            "Berth can keep it sealed as the secret %(stored)s and give it to the engine. For downloads, give it on the"
            " page “Access to hubs”."
        ),
    ),
    "paste.secret_there": (
        _("%(name)s is a secret: it was not taken from the text."),
        _("Berth has the secret %(stored)s and can give it to the engine."),
    ),
    "paste.secret_named": (_("%(variable)s comes from the secret %(name)s."), ""),
    # places
    "paste.gpus_without_parts": (
        _("The command shows the engine %(n)s GPUs without dividing the model among them; here it is divided."),
        _("Choose one GPU below if that was meant."),
    ),
    "paste.first_gpus": (_("The model takes %(n)s of the %(have)s GPUs named; the first were chosen."), ""),
    "paste.too_few_gpus": (
        _("The model is divided among %(n)s GPUs, but the command shows it %(have)s."),
        _("Berth looks for a host with enough of them."),
    ),
    "paste.gpu_unknown": (
        _("%(gpus)s is not among the GPUs of %(host)s; Berth chooses."),
        _("Choose others under Expert settings."),
    ),
    "paste.gpus_none": (_("There is no GPU on %(hosts)s; the model would run on the CPU."), ""),
    "paste.gpus_where": (
        _("The command names GPUs by number, and several hosts have this model; Berth chooses."),
        _("Choose the host and its GPUs under Expert settings."),
    ),
    "paste.device": (_("%(flag)s %(value)s is no device that Berth knows; Berth decides."), ""),
    "paste.host_unknown": (_("There is no host %(host)s here; Berth decides."), ""),
    "paste.runtime_unknown": (_("The engine %(executable)s is not there; Berth decides."), ""),
    "paste.not_possible": (_("%(field)s is not possible: %(text)s"), ""),
}
