"""Measured launches (tests/data/memory), and how far the estimate is from each; used by the tests and by `make bench`.

A report is used for a quantity when it tells what that quantity depends on. What a report tells in its note only
(block size, prefix caching of recurrent layers, drafters) is passed on; nothing depends on which report it is.
"""

import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from models_catalog.estimate import Plan, estimate
from models_catalog.estimate.case import case_of
from models_catalog.estimate.gpus import Gpu
from models_catalog.estimate.options import Options
from models_catalog.estimate.schemes import PLAIN, SCHEMES, scheme_named
from models_catalog.estimate.specs import read_spec
from models_catalog.estimate.versions import Version
from models_catalog.estimate.weights import parameters
from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config

DATA = Path(__file__).resolve().parents[2] / "data/memory"
GIB = 2**30
KEYS = ("engine", "gpu", "gpu_total_gib", "tp", "pp", "util", "max_model_len", "kv_dtype", "quant", "enforce_eager")
# The cache or the weights of these are not those of the model that is named, or the note says that they were changed.
OTHER_CACHE = re.compile(
    r"excluded from KV|decode-context|DCP|MTP 3 tokens|estimated max|TPU|not shown in excerpt|custom model"
)
OTHER_WEIGHTS = re.compile(r"LoRA|model not shown|weights incl\.|custom model")
OTHER_BUDGET = re.compile(r"kv_cache_memory_bytes|Windows desktop")


@dataclass(frozen=True)
class Report:
    """One row of reports.csv, with its model's configuration."""

    values: dict[str, str]
    facts: ModelFacts

    def __getitem__(self, key: str) -> str:
        return self.values[key]

    def number(self, key: str) -> float | None:
        try:
            return float(self.values[key])
        except ValueError:
            return None

    @property
    def note(self) -> str:
        return self.values["note"]

    def spec(self, **changes: Any) -> dict[str, Any]:
        """The question that the report answers, with the keys of `manage.py estimate --batch`."""
        spec: dict[str, Any] = {key: self.values[key] for key in KEYS}
        spec |= {
            "engine_version": self.values["version"],
            "max_num_batched_tokens": self.values["max_batched_tokens"],
            "max_num_seqs": self.values["max_num_seqs"],
            "mamba_align": "align" in self.note,
        }
        if found := re.search(r"block_size (\d+)", self.note):
            spec["block_size"] = found[1]
        if not spec["max_model_len"] and self.values["concurrency_len"]:
            spec["max_model_len"] = self.values["concurrency_len"]
        if spec["quant"] == "?" or scheme_named(spec["quant"]) is None:
            spec["quant"] = ""
        if spec["kv_dtype"].endswith("?"):
            spec["kv_dtype"] = "fp8"
        return {**spec, **changes}

    def plan(self, **changes: Any) -> Plan:
        spec = read_spec(self.spec(**changes))
        return estimate(self.facts, spec.options, spec.gpu, spec.engine_version)


@cache
def reports() -> tuple[Report, ...]:
    """Those of vLLM whose model is known."""
    with (DATA / "reports.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return tuple(
        Report(row, facts)
        for row in rows
        if row["engine"] == "vllm" and (facts := _facts(row["model"])) and row["tp"] != "" and row["pp"] != ""
    )


@cache
def _facts(model: str) -> ModelFacts | None:
    path = DATA / "configs" / f"{model.replace('/', '--')}.json"
    return facts_of_config(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


@dataclass
class Errors:
    """Relative errors of one quantity, ours and those of the naive rules, by report."""

    name: str
    rows: list[tuple[str, float, float, dict[str, float]]] = field(default_factory=list)

    def add(self, report: Report, ours: float, measured: float, naive: dict[str, float]) -> None:
        self.rows.append((report["id"], ours, measured, naive))

    def errors(self, rule: str = "") -> list[float]:
        """|estimate ÷ measured − 1| of every report, by a naive rule when one is named."""
        return [abs((naive[rule] if rule else ours) / measured - 1) for _id, ours, measured, naive in self.rows]

    def spread(self, rule: str = "") -> tuple[float, float]:
        """(median, 90th percentile)."""
        found = sorted(self.errors(rule))
        return median(found), found[math.ceil(0.9 * len(found)) - 1]

    @property
    def rules(self) -> list[str]:
        return list(self.rows[0][3])


def all_errors() -> tuple[Errors, Errors, Errors, Errors]:
    """Weights; tokens and concurrency from the logged size of the cache; that size from configuration and flags."""
    return weights(), *from_cache(), end_to_end()


def weights() -> Errors:
    found = Errors("weights")
    for report in reports():
        measured = report.number("weights_gib_logged")
        if not measured or OTHER_WEIGHTS.search(report.note) or report["quant"] not in SCHEMES:
            continue
        plan = report.plan()
        value = plan.ranks[0].weights.value if plan.ranks else None
        if value is not None:
            size = _naive_gib(report)
            found.add(report, value, measured, {"params × bytes": size, "params × bytes × 1.2": 1.2 * size})
    return found


def from_cache() -> tuple[Errors, Errors]:
    tokens, requests = Errors("KV tokens, given KV GiB"), Errors("concurrency, given KV GiB")
    for report in reports():
        size, logged = report.number("kv_gib_logged"), report.number("kv_tokens_logged")
        if not size or size < 0 or not logged or report["pp"] != "1" or OTHER_CACHE.search(report.note):
            continue
        if not report["outcome"].startswith(("ok", "fail:oom", "fail:max")) or report["kv_dtype"] == "fp8?":
            continue
        plan = report.plan(kv_gib=size)
        naive = size * GIB / _naive_token(report)
        tokens.add(report, plan.kv_tokens.value or 0, logged, {"2 × layers × KV heads × head size": naive})
        at_once, length = report.number("concurrency_logged"), report.number("concurrency_len")
        if at_once and length:
            requests.add(report, plan.concurrency.value or 0, at_once, {"tokens ÷ context": naive / length})
    return tokens, requests


def end_to_end() -> Errors:
    found = Errors("KV GiB, from configuration and flags")
    for report in _budgeted():
        measured = report.number("kv_gib_logged")
        value = report.plan().ranks[0].kv.value
        if measured and value is not None:
            found.add(report, value, measured, _naive_cache(report))
    return found


def _budgeted() -> Iterator[Report]:
    """Reports that tell all that the size of the cache depends on."""
    needed = ("util", "gpu_total_gib", "max_batched_tokens", "max_num_seqs", "kv_gib_logged")
    for report in reports():
        known = report["quant"] in SCHEMES and report["version"] != "" and "V0" not in report["version"]
        if not known or any(report.number(key) is None for key in needed) or OTHER_BUDGET.search(report.note):
            continue
        if report["outcome"] in ("ok", "fail:oom_sampler_warmup") and not OTHER_WEIGHTS.search(report.note):
            yield report


# --- what others do -----------------------------------------------------------------------------------------------------
NAIVE_BYTES = {"fp32": 4.0, "none": 2.0}


def _naive_gib(report: Report) -> float:
    """Parameters times bytes of a packed weight, in GiB per GPU."""
    geometry = report.facts.geometry
    assert geometry is not None
    case = case_of(geometry, PLAIN, Options(), Gpu(), Version(19))
    name = report["quant"]
    each = NAIVE_BYTES.get(name, 0.5 if "4" in name else 1.0)
    return parameters(geometry, case) * each / GIB / int(report["tp"])


def _naive_token(report: Report) -> float:
    geometry = report.facts.geometry
    assert geometry is not None
    return len(geometry.layers) * 2 * geometry.kv_heads * geometry.head_dim * 2 / int(report["tp"])


def _naive_cache(report: Report) -> dict[str, float]:
    total, util, tp = report.number("gpu_total_gib") or 0, report.number("util") or 0, int(report["tp"])
    budget, size = total * util, _naive_gib(report)
    return {
        "budget − params × bytes": budget - size,
        "budget − 1.2 × params × bytes": budget - 1.2 * size,
        "budget − (1.2 × weights + 2 GiB) ÷ GPUs": budget - 1.2 * size - 2 / tp,
        "budget − weights − max(1 GiB, 2 %) − ¼ (GPUs − 1)": budget - size - max(1, 0.02 * total) - 0.25 * (tp - 1),
    }
