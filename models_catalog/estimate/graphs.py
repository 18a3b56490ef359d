"""Memory of captured CUDA graphs. Up to 0.19 it lies outside the budget, from 0.20 on inside (edge case 11).

The estimate follows vLLM's own (0.18 and later): the first graph of each kind brings its buffers, each further one a
little per layer. Median error 0.1 GiB, 0.4 at the 90th percentile.
"""

from __future__ import annotations

from models_catalog.estimate.case import Case
from models_catalog.estimate.plan import Amount, Reason
from models_catalog.estimate.units import GIB, MIB

MOST, MOST_BLACKWELL = 512, 1024  # largest batch that is captured
FINE = 256  # sizes go up by 8 to here, by 16 beyond
PIECE_MIB, FULL_MIB = 0.2, 0.16  # each further graph, per layer: in pieces, as one whole
FIRST_PIECE_MIB, FIRST_FULL_MIB, FIRST_FULL_OTHER_MIB = 98.0, 6.0, 8.0
SPLITS = 32  # of FlashAttention 3 on Hopper, each with its own partial result of 4 bytes a number
HYBRID_LEAST_GIB = 0.6  # measured with recurrent layers and few sequences, where the formula gives less
LOW_GIB, HIGH_GIB = 0.2, 0.41
RUNNER_V2_TIMES = 2.0  # what the second model runner foresees for the same graphs; two launches, 1.96 and 2.10
OLD_GIB = {True: (0.3, 1.0, 3.5), False: (1.4, 1.9, 2.4)}  # V0; then 67 sizes, up to 0.10: (least, usual, most)


def graphs(case: Case, stage: int) -> Amount:
    """GiB on one GPU of a stage; the reason says whether it is part of the budget."""
    if case.options.eager:
        return Amount(0.0, 0.0, 0.0, Reason("graphs.none"))
    place = "graphs.inside" if case.charges_graphs else "graphs.outside"
    reason = Reason(place, {"sequences": case.sequences})
    if case.version.minor <= 10:
        low, value, high = OLD_GIB[case.version.engine_v0]
        return Amount(value, low, high, reason)
    value = captured_gib(case, stage)
    if case.runner_v2 and case.charges_graphs and case.version.runner_v2_twice:
        foreseen = RUNNER_V2_TIMES * value
        return Amount.near(foreseen, max(LOW_GIB, foreseen - value), _more(case), reason=reason)
    return Amount.near(value, LOW_GIB, _more(case), reason=reason)


def _more(case: Case) -> float:
    """Experts and recurrent layers: the engine's own estimate has been several times too high."""
    return 1.0 if case.charges_graphs and (case.hybrid or case.geometry.experts) else HIGH_GIB


def captured_gib(case: Case, stage: int) -> float:
    shape, tp, layers = case.geometry, case.options.tp, len(case.stage_layers(stage))
    most = MOST_BLACKWELL if case.traits.blackwell_datacenter else MOST
    in_pieces, as_whole = min(2 * case.sequences, most), min(case.sequences, MOST)
    heads = shape.heads // tp * (shape.latent.kv_rank if shape.latent else shape.head_dim)
    first_full = FIRST_FULL_OTHER_MIB
    if case.traits.hopper:
        first_full = FIRST_FULL_MIB + as_whole * heads * 4 * SPLITS / MIB
    width = (shape.expert_width * shape.experts_used if shape.experts else shape.mlp_width) // tp
    first_piece = FIRST_PIECE_MIB + in_pieces * 3 * width * 2 / MIB
    further = (sizes(in_pieces) - 1) * max(1.0, PIECE_MIB * layers)
    further += (sizes(as_whole) - 1) * max(1.0, FULL_MIB * layers)
    gib = (max(first_full, first_piece) + further) * MIB / GIB
    return max(gib, HYBRID_LEAST_GIB) if case.hybrid else gib


def sizes(most: int) -> int:
    """How many batch sizes are captured up to `most`: 1, 2, 4, then every 8th, from 256 on every 16th."""
    return 3 + len(range(8, min(most, FINE - 1) + 1, 8)) + len(range(FINE, most + 1, 16))
