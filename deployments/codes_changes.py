"""What would make a model fit that does not: the words of the planner's changes, to be translated."""

from django.utils.translation import gettext_lazy as _

from panel.core.wording import Pair

CHANGES: dict[str, Pair] = {
    "change.share": (_("With a share of %(share)s of the GPU's memory it fits."), ""),
    "change.kv_gib": (_("With a KV cache of %(kv_gib)s GiB it fits."), ""),
    "change.context": (
        _("With conversations of at most %(context)s tokens it fits."),
        _("A token is about three quarters of an English word."),
    ),
    "change.kv_fp8": (
        _("With a KV cache in FP8 it fits."),
        _("Conversations then take half the memory; answers may differ a little."),
    ),
    "change.sequences": (
        _("With at most %(sequences)s requests in one step it fits."),
        _("More people than that wait a little; each answer is as good."),
    ),
    "change.eager": (
        _("Without CUDA graphs it fits."),
        _("Answers come more slowly, above all for one person alone."),
    ),
    "change.together": (
        _("With at most %(sequences)s requests in one step and without CUDA graphs it fits."),
        _("Answers come more slowly, and are as good."),
    ),
    "change.together_fp8": (
        _("With at most %(sequences)s requests in one step, without CUDA graphs and with a KV cache in FP8 it fits."),
        _("Answers come more slowly, and may differ a little."),
    ),
    "change.gpus": (_("On %(gpus)s GPUs it fits."), ""),
    "change.gpus_slow": (
        _("On %(gpus)s GPUs it fits, though NVLink does not join them."),
        _("They wait for each other at every word. One larger GPU or a smaller form of the model would answer faster."),
    ),
    "change.twin": (_("%(name)s, another form of this model, fits."), _("Answers may differ a little.")),
    "change.twin_away": (
        _("%(name)s, another form of this model, would fit; no host has it now."),
        _("Answers may differ a little."),
    ),
    "change.stop": (_("It fits on %(host)s when %(names)s stops."), ""),
    "change.stop_other": (
        _("It fits on %(host)s when something else on this panel stops."),
        _("You may not see what it is. Ask an admin."),
    ),
    "change.end_process": (
        _("It fits on %(host)s when %(processes)s, which is not Berth's, lets go of GPU %(index)s."),
        _("Ask whoever started it; the page of the host says who that is."),
    ),
}
