"""When Python looks for garbage in the web process: often and little, since nobody is answered meanwhile.

As it comes, every few seconds all that lives is looked through: 25 to 130 ms in which the whole process waits,
/healthz, streams and the door too. What was loaded is there for good, so it is taken out of the search, a few times:
templates, addresses and caches are made by the first visitors. What a request leaves behind is young, and found in
slices of some 5 ms. The figures are those of 200 live pages and 50 requests a second: docs/performance.md.
"""

import asyncio
import gc

# New objects until the young are looked through, such looks until the middle ones are, and those until all are.
# 5,000 is more than most requests leave; with 20 looks at 10,000 before the middle ones, these took 60 ms at a time.
THRESHOLDS = (5_000, 5, 500)
AGAIN_S = (10.0, 60.0, 600.0, 3600.0)  # few, since what is garbage at these moments stays for ever


def settle(loop: asyncio.AbstractEventLoop) -> None:
    """Call once everything is loaded; what the first visitors load follows by itself."""
    gc.set_threshold(*THRESHOLDS)
    keep()
    for seconds in AGAIN_S:
        loop.call_later(seconds, keep)


def keep() -> None:
    """What lives now is not looked through again."""
    gc.collect()
    gc.freeze()
