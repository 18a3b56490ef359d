"""Words of what is found while an engine serves, as (what is so, why and what to do), to be translated."""

from django.utils.translation import gettext_lazy as _

from panel.core.wording import Pair

FOUND: dict[str, Pair] = {
    "serve.silent": (
        _("It does not answer."),
        _(
            "%(times)s small test questions in a row got no answer, although its port is open. If that goes on, Berth "
            "ends it and starts it again, where its settings allow that. Restart does it at once."
        ),
    ),
    "serve.dead": (
        _("The engine behind the server has died."),
        _(
            "The server still takes requests, but reports that it cannot answer them (status %(status)s). Restart it; "
            "the log says what happened."
        ),
    ),
    "serve.mute": (
        _("The engine's server takes connections and says nothing."),
        _("Not even its own health is told. It may be overloaded, or it hangs. If it does not recover, restart it."),
    ),
    "serve.memory_short": (
        _("Memory runs out while it answers."),
        _("The log says so %(count)s times in ten minutes. Each time a request fails; the engine may end next."),
    ),
    "serve.errors": (
        _("%(count)s of the last %(all)s requests ended with an error of the engine."),
        _("The log has the errors. They are counted over the last five minutes."),
    ),
    "serve.creeping": (
        _("Its main memory grows and grows: from %(from_mib:gib)s to %(to_mib:gib)s."),
        _(
            "It has not levelled off since it got ready. Restart it at a quiet time, before the machine's memory is "
            "full."
        ),
    ),
    "serve.creeping_gpu": (
        _("Its GPU memory grows and grows: from %(from_mib:gib)s to %(to_mib:gib)s."),
        _(
            "An engine takes its memory when it starts; this comes on top. Restart it at a quiet time, before the "
            "GPU's memory is full."
        ),
    ),
    "serve.role_markers": (
        _("Its answers show “%(marker)s”."),
        _(
            "Such marks tell a model who speaks, and belong in no answer. It may go on talking for both sides. The "
            "pattern by which messages are put to the model (the chat template) does not fit it, or the model was "
            "not taught to chat."
        ),
    ),
    "serve.preempting": (
        _("Requests are set back and start over: %(count)s times in five minutes."),
        _("More conversations run at once than the memory for them holds (the KV cache). Answers are right, and slow."),
    ),
    "serve.waiting": (
        _("Requests have been waiting all the time: about %(waiting)s in the queue."),
        _("%(running)s are being answered. A second deployment of the same model would share the work."),
    ),
    "serve.waiting_memory": (
        # xgettext:no-python-format
        _("Requests have been waiting all the time: about %(waiting)s in the queue."),
        # xgettext:no-python-format
        _("The memory for conversations (the KV cache) is %(percent)s % full, so no more can be answered at once."),
    ),
    "serve.waiting_limit": (
        _("Requests have been waiting all the time: about %(waiting)s in the queue."),
        _("As many are being answered as its settings allow at once: %(limit)s."),
    ),
    "serve.kv_full": (
        # xgettext:no-python-format
        _("The memory for conversations is %(percent)s % full."),
        _("It is the KV cache. When it is full, requests wait or start over."),
    ),
    "serve.slow": (
        # xgettext:no-python-format
        _("It answers slowly, and its GPU is only %(percent)s % busy."),
        _(
            "About %(rate)s tokens per second. The processor or the way to the GPU holds it up, not the GPU. See "
            "whether other programs use this machine's processor."
        ),
    ),
    "serve.long": (
        _("Requests are refused because they are too long: %(count)s in ten minutes."),
        _("The longest asked for %(asked)s tokens. Allow longer conversations, or send shorter ones."),
    ),
    "serve.refused": (
        _("%(count)s of the last %(all)s requests were refused by the engine."),
        _("Status 4xx: the requests ask for something that it does not do. Whoever sends them sees the reason."),
    ),
    "serve.logged": (_("Its log says so %(count)s times in ten minutes."), ""),  # after the words of the class itself
    "serve.hung": (
        _("It gave no answer for %(minutes)s min, although its port was open."),
        _("Berth ended it. The end of its log may show what it hung on."),
    ),
}
