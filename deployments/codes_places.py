"""Words of the places that the planner found: why the best comes first, what puts another behind it, how surely it
fits; to be translated."""

from django.utils.translation import gettext_lazy as _

from panel.core.wording import Pair

PLACES: dict[str, Pair] = {
    # why it comes first, and what puts another place behind it
    "first.only": (_("It is the only place that can take it now."), ""),
    "first.picked": (_("It was chosen in these settings."), ""),
    "first.quality": (
        _("Of the places that surely take it, those that nothing else uses come first, then the emptiest."),
        "",
    ),
    "first.fit": (
        _("Of the places that surely take it, the smallest comes first, so that larger ones stay free for others."),
        "",
    ),
    "first.speed": (_("Of the places that surely take it, the newest GPUs come first."), ""),
    "behind.tight": (_("It just fits there."), ""),
    "behind.unknown": (_("Whether it fits there is not known."), ""),
    "behind.unlikely": (_("It will probably not fit there."), ""),
    "behind.cpu": (_("It fits on the processor too, where answers come more slowly."), ""),
    "behind.gpus": (_("It fits there too, on %(gpus)s GPUs."), ""),
    "behind.slow_link": (_("It fits there too, on GPUs that NVLink does not join."), ""),
    "behind.squeezed": (_("It fits there too, beside something else that has part of the memory."), ""),
    "behind.shared": (_("It fits there too; more runs share those GPUs."), ""),
    "behind.fuller": (_("It fits there too; less of that memory is free."), ""),
    "behind.emptier": (_("It fits there too; more of that memory stays free for others."), ""),
    "behind.larger": (_("It fits there too, on more memory than it needs."), ""),
    "behind.older": (_("It fits there too, on older GPUs."), ""),
    "behind.same": (_("It is as good a place."), ""),
    # how surely it fits, by the estimate
    "estimate.tight": (_("By the estimate it just fits; the first start will show."), ""),
    "estimate.unknown": (_("How much memory it needs is not known; the first start will show."), ""),
    "estimate.unlikely": (
        _("By the estimate it does not quite fit, by less than the estimate may be off."),
        _("A conversation of %(longest)s tokens surely would."),
    ),
}
