"""Where a spec can run: hosts, GPUs, copies and runtimes to ranked placements, or the reasons of every candidate. Pure.

    found = plan(spec, hosts, model_facts, Need(context=16384, people=8))

The person's picks are respected; what they left open is chosen by the need and its priority. Memory is counted four
times over: what runs have reserved, what strangers use, what is free right now, and what the estimate says it needs.

`asked.py` reads spec and need, `search.py` goes through hosts and ranks, `gpus.py` and `cpu.py` find places on one
host, `rules.py` are the limits that no memory changes, `fit.py` asks the estimate (models_catalog/estimate: `need.py`
says whether it fits, `alone.py` what share it is given); `ranking.py` is the sum.
`inverse.py` answers how many people and how long, `nearest.py` what would make it fit, `moving.py` what a page
calculates by itself while a slider moves, `effects.py` what other settings would change.
"""

from __future__ import annotations

from deployments.planner.asked import Need, Priority
from deployments.planner.effects import Effect
from deployments.planner.fit import Estimator
from deployments.planner.inverse import Answer, longest_context, most_people
from deployments.planner.moving import Outlook, outlook
from deployments.planner.nearest import Twin, nearest
from deployments.planner.ranking import Ranked, plan, rank
from deployments.planner.search import PASSING
from models_catalog.estimate.alone import CPU_OVERHEAD_MIB, claim_mib

__all__ = [
    "CPU_OVERHEAD_MIB",
    "PASSING",
    "Answer",
    "Effect",
    "Estimator",
    "Need",
    "Outlook",
    "Priority",
    "Ranked",
    "Twin",
    "claim_mib",
    "longest_context",
    "most_people",
    "nearest",
    "outlook",
    "plan",
    "rank",
]
