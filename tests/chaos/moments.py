"""The moments at which a fault strikes. Each brings a deployment there, and says what must come of it.

`gather` waits for the other runs of the group, so that what follows happens to all of them together; `strike` is the
fault's beginning. A phase is kept by the engine (it waits in it) until the fault has begun.
"""

from collections.abc import Callable

from tests.chaos.scene import MARKS, Goal, Scene

Moment = Callable[[Scene], Goal]
PHASES = tuple(MARKS)


def starting(s: Scene) -> Goal:
    """Each phase of a start."""
    s.keep_in(s.rng.choice(PHASES))
    s.create()
    s.phase()
    s.strike()
    return Goal("running")


def ready(s: Scene) -> Goal:
    """It serves, and nobody touches it."""
    s.create()
    s.ready()
    s.strike()
    return Goal("running")


def created_meanwhile(s: Scene) -> Goal:
    """A person presses Create while the fault lasts."""
    s.strike()
    s.create()
    return Goal("running")


def stopping(s: Scene) -> Goal:
    """A stop has just been asked for."""
    s.create()
    s.ready()
    s.gather()
    s.press("stop")
    s.nap(0.8)
    s.strike()
    return Goal("stopped")


def stopped_meanwhile(s: Scene) -> Goal:
    """A person presses Stop while the fault lasts."""
    s.create()
    s.ready()
    s.strike()
    s.nap(0.3)
    s.press("stop")
    return Goal("stopped")


def restarting(s: Scene) -> Goal:
    """A restart, in the old run's end or in a phase of the new one's start."""
    s.create()
    s.ready()
    old = s.job_id
    if s.rng.random() < 0.4:
        s.point = "old run ends"
        s.gather()
        s.press("restart")
        s.nap(0.6)
    else:
        s.keep_in(s.rng.choice(PHASES))
        s.press("restart")
        s.phase(not_of=old)
    s.strike()
    return Goal("running", (2, 2))


def edited_while_starting(s: Scene) -> Goal:
    """Other settings are saved before it is ready: the newest ones must run."""
    s.keep_in(s.rng.choice(PHASES))
    s.create()
    s.phase()
    s.gather()
    s.press("edit")
    s.nap(0.5)
    s.strike()
    return Goal("running", (1, 2))


def edited_meanwhile(s: Scene) -> Goal:
    """Other settings are saved while the fault lasts."""
    s.create()
    s.ready()
    s.strike()
    s.press("edit")
    return Goal("running", (2, 2))


def stopped_while_starting(s: Scene) -> Goal:
    s.keep_in(s.rng.choice(PHASES))
    s.create()
    s.phase()
    s.gather()
    s.press("stop")
    s.nap(0.4)
    s.strike()
    return Goal("stopped", (0, 1))


def started_while_stopping(s: Scene) -> Goal:
    s.create()
    s.ready()
    s.gather()
    s.press("stop")
    s.nap(0.4)
    if s.rng.random() < 0.5:
        s.point = "after the start"
        s.press("start")
        s.nap(0.2)
        s.strike()
    else:
        s.point = "before the start"
        s.strike()
        s.press("start")
    return Goal("running", (2, 2))


def deleted_while_ready(s: Scene) -> Goal:
    s.create()
    s.ready()
    if s.rng.random() < 0.5:
        s.point = "after the act"
        s.gather()
        s.press("delete")
        s.nap(0.4)
        s.strike()
    else:
        s.point = "before the act"
        s.strike()
        s.press("delete")
    return Goal("deleted")


def double_click(s: Scene) -> Goal:
    """The same button twice within milliseconds, on one page or two."""
    s.create()
    s.ready()
    verb = s.point = s.rng.choice(["stop", "restart"])
    s.gather()
    s.at_once(verb, verb)
    s.nap(0.3)
    s.strike()
    return Goal("stopped") if verb == "stop" else Goal("running", (2, 3))


def two_browsers(s: Scene) -> Goal:
    """Two people want different things at the same moment: one of them is last, and has their way."""
    if s.rng.random() < 0.5:
        s.keep_in(s.rng.choice(PHASES))
    s.create()
    if s.point:
        s.phase()
    else:
        s.ready()
    verbs = s.rng.choice([("stop", "restart"), ("stop", "edit"), ("restart", "edit"), ("stop", "restart", "edit")])
    s.point = f"{s.point} {' + '.join(verbs)}".strip()
    first = s.rng.random() < 0.5
    s.gather()
    if first:
        s.strike()
    s.at_once(*s.rng.sample(verbs, len(verbs)), people=2)
    if not first:
        s.nap(0.3)
        s.strike()
    return Goal("", (1, 3))


MOMENTS: dict[str, Moment] = {
    moment.__name__.replace("_", " "): moment
    for moment in (
        starting, ready, created_meanwhile, stopping, stopped_meanwhile, restarting, edited_while_starting,
        edited_meanwhile, stopped_while_starting, started_while_stopping, deleted_while_ready, double_click,
        two_browsers,
    )
}  # fmt: skip
