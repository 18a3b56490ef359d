"""How vLLM counts memory, version by version: the switches, and nothing else.

Sources: vLLM's source from 0.6 to 0.32 and start-up logs of those versions (docs/estimate.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OLDEST, NEWEST = 5, 32  # minor versions of 0.x whose counting is known
# When a version is not told, one of each way of counting that is in use stands for all.
ERAS = (11, 16, 19, 21, 27, 32)
# Which families got vLLM's second model runner first: those without experts since when, and those with experts.
RUNNER_V2_FIRST = {"qwen3": 22, "llama": 23, "mistral": 23}
RUNNER_V2_EXPERTS = frozenset({"qwen2_moe", "deepseek_v2", "granitemoe"})
RUNNER_V2_SINCE = 22
NAMES_OF_NEWEST = frozenset({"nightly", "latest", "main", "master", "dev", "head"})  # of images and branches


@dataclass(frozen=True)
class Version:
    """A vLLM version as far as counting depends on it. `engine_v0`: the engine before the rewrite of 2025."""

    minor: int
    engine_v0: bool = False

    @property
    def charges_graphs(self) -> bool:
        """CUDA graphs are estimated and taken out of the budget; before, they had to fit beside it.

        The log of 0.20.0 calls it the default since 0.21, and takes them out all the same.
        """
        return self.minor >= 20

    @property
    def sampler_bytes(self) -> float:
        """Peak of the sampler per sequence and word of the vocabulary: PyTorch's sort, then a Triton kernel (0.17)."""
        return 14.0 if self.minor >= 17 else 37.5

    @property
    def sampler_per_multiprocessor(self) -> float:
        """Bytes per word and multiprocessor that the Triton kernel adds."""
        return 4.0 if self.minor >= 17 else 0.0

    @property
    def base_gib(self) -> float:
        """What a profiling run of 8,192 tokens needs beyond what the formulas name, GiB."""
        if self.engine_v0:
            return 0.0
        return 0.048 if self.minor >= 17 else 0.131

    @property
    def workspace_stays(self) -> bool:
        """The experts' workspace outlives the forward pass and adds to the sampler's peak."""
        return self.minor >= 17

    def runner_v2(self, family: str, *, dense: bool, packed: bool) -> bool:
        """Whether a model of this family gets the second model runner, which came family by family, plain weights
        first (vLLM's note on its migration, and `use_v2_model_runner` in config/vllm.py).
        """
        if self.minor >= 29:
            return True
        if family in RUNNER_V2_EXPERTS:
            return self.minor >= 24
        since = RUNNER_V2_FIRST.get(family, 25)
        return dense and self.minor >= (max(24, since) if packed else since)

    @property
    def runner_v2_graphs(self) -> bool:
        """The second runner estimates its graphs; in 0.27 it did not, and nothing was taken out for them."""
        return self.minor != 27

    @property
    def runner_v2_twice(self) -> bool:
        """What it foresees for them is twice what the first did."""
        return self.minor >= 28

    @property
    def saves_states(self) -> bool:
        """Prefix caching of recurrent layers is on by default (vLLM's pull request 50991)."""
        return self.minor >= 27

    @property
    def whole_segments(self) -> bool:
        """Blocks of the allocator from 20 MiB on are never split."""
        return self.minor >= 22

    @property
    def batches_in_flight(self) -> int:
        """Batches whose tokens a sliding window keeps beside the window itself (asynchronous scheduling)."""
        return 2 if self.minor >= 26 else 1

    @property
    def hybrid_cache(self) -> bool:
        """Sliding windows save cache; before, their layers were counted like full attention."""
        return self.minor >= 10 and not self.engine_v0

    @property
    def tokens_by_context(self) -> bool:
        """The logged number of tokens is concurrency × context; before, blocks divided by the number of groups."""
        return self.minor >= 21

    @property
    def own_kv_types(self) -> bool:
        """Without a flag the cache has the format that the files' own packing names, "auto" else."""
        return self.minor >= 12

    @property
    def null_block(self) -> bool:
        """One block is set aside before the longest request is checked."""
        return self.minor >= 30

    @property
    def checks_all_layers(self) -> bool:
        """The check of the longest request charged every pipeline stage with all layers."""
        return self.minor < 16

    @property
    def profiles_longest(self) -> bool:
        """Without chunked prefill the profiling run is as long as the context: a longer one shrinks the cache."""
        return self.engine_v0

    @property
    def default_utilisation(self) -> float:
        return 0.92 if self.minor >= 21 else 0.9


def parse(text: str) -> Version | None:
    """From "0.19.0", "0.19.1rc1", "0.9.x", "0.6.4 (V0)"; None when it says too little ("", "0.2x").

    What is newer than all that is known ("1.0", "nightly") comes after the newest.
    """
    if text.strip().lower() in NAMES_OF_NEWEST:
        return Version(NEWEST + 1)
    found = re.match(r"\s*v?(\d{1,3})\.(\d{1,3})(?!\d|x)", text, re.I)
    if not found:
        return None
    minor = int(found[2]) if int(found[1]) == 0 else NEWEST + 1
    told = re.search(r"\bV([01])\b", text)
    return Version(minor, engine_v0=told[1] == "0" if told else minor <= 7)


def known(version: Version) -> bool:
    return OLDEST <= version.minor <= NEWEST
