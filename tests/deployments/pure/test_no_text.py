"""Fixes are decided by what an offer is about, never by how it is said; and every remedy of a rule can be shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.offers import WORDS, about_of
from deployments.diagnosis.offers import offers as offers_of
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.result import Evidence, Offer
from deployments.diagnosis.rule import ABOUTS, COSTS, Rule
from deployments.diagnosis.rules import ALL
from deployments.engines import denied
from deployments.fix_words import title
from deployments.mending import turn
from deployments.mending.around import Around, Engine, Form, Holder
from deployments.mending.fix import Fix
from deployments.pages.fixes import PAGES
from deployments.spec import DeploymentSpec

OURS, THEIRS = Holder("team-chat", 40_960, 0, 12), Holder("python3", 9_735, 0, None, 4711, "ada")
RICH = Around(
    host=4, host_name="quay", runtime=Engine(1, "0.10.2", "cuda"), engines=(Engine(2, "0.32.0", "cuda", True),),
    python="/opt/a/bin/python", plugin="click", copy=7, copy_path="/models/it", repairable=True, model=3, own_code=True,
    ggufs=(Form(9, "it-Q4_K_M.gguf"),), twins=(Form(8, "It-AWQ", "awq"), Form(10, "It-GPTQ", "gptq")), method="awq",
    holders=(OURS, THEIRS, replace(OURS, gpu=None)), port_holder="nginx (process 812)", tasks=("embed",),
)  # fmt: skip
BARE = Around(host=4, host_name="quay", copy_path="/models/it", model=3)
PLACES = {"rich": RICH, "bare": BARE, "cpu": replace(RICH, on_gpu=False, kv_cache_gib=8)}
KNOWN = Evidence(
    options={"max_model_len": 8192, "tensor_parallel_size": 4, "max_num_seqs": 256, "gpu_memory_utilization": 0.9,
             "max_num_batched_tokens": 8192, "ctx_size": 8192, "num_ctx": 8192, "n_gpu_layers": 40, "num_gpu": 40,
             "context_length": 8192, "tp_size": 4, "mem_fraction_static": 0.8},
    gpus=8, gpu_total_gib=80, gpu_free_gib=40, host_free_gib=64, weights_gib=1, heads=32, kv_heads=8, numa_nodes=1,
    gguf_files=("a.gguf",),
)  # fmt: skip


def everything_set(rule: Rule) -> DeploymentSpec:
    """Settings in which whatever this rule takes back is set."""
    options: dict[str, Any] = {"max_model_len": 999_999}
    env: dict[str, str] = {}
    for remedy in rule.remedies:
        if remedy.kind == "drop" and not remedy.name.startswith("="):
            options[remedy.name] = "x"
        if remedy.kind == "env_drop":
            env[remedy.name] = "x"
    return DeploymentSpec(artifact_id=1, gpu_count=4, options=options, env=env)


def offered(rule: Rule) -> tuple[Offer, ...]:
    """Of the class's first example, with everything known."""
    reader = Reader(rule.engine)
    reader.feed(f"{rule.examples[0]}\n".encode())
    found = diagnose(reader, exit_code=1, evidence=KNOWN)
    same = found.code == rule.code
    return found.fixes if same else offers_of(rule, {}, {}, KNOWN)


def told(fixes: list[Fix]) -> list[Any]:
    """All that a fix does and says, but for a sentence that was handed on."""
    return [(fix.kind, fix.code, dict(fix.params), dict(fix.patch), fix.command, fix.link, fix.target, fix.worth,
             fix.effects) for fix in fixes]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.code)
def test_no_decision_reads_a_sentence(rule: Rule, place: str) -> None:
    given = offered(rule)
    places = {text: str(n) for n, text in enumerate(sorted({offer.text for offer in given}))}
    numbered = [replace(offer, text=places[offer.text]) for offer in given]  # told apart, and nothing else
    spec = everything_set(rule)
    as_said = turn.fixes_of(rule.code, given, spec, PLACES[place])
    unsaid = turn.fixes_of(rule.code, numbered, spec, PLACES[place])
    assert sorted(map(repr, told(as_said))) == sorted(map(repr, told(unsaid)))


def test_what_a_remedy_is_about_and_costs_is_one_of_a_few() -> None:
    for rule in ALL:
        for remedy in rule.remedies:
            assert remedy.about in ABOUTS and remedy.cost in COSTS, (rule.code, remedy)
    used = {remedy.about for rule in ALL for remedy in rule.remedies} | {"back"}
    assert used == set(ABOUTS), "a word that no rule uses decides nothing"


# --- every remedy can be shown ------------------------------------------------------------------------------------------

VLLM = [rule for rule in ALL if rule.engine == "vllm"]  # the engine that Berth starts


def set_by_the_house(offer: Offer) -> bool:
    """Whether Berth itself says this at each start, so that no setting can."""
    if offer.kind == "env":
        return bool(denied.check_env({offer.name: str(offer.after)})) and bool(
            denied.check_env_secrets({offer.name: "x"}, {})
        )
    return offer.kind == "set" and offer.name in denied.FLAGS


def way_to_do_it(fix: Fix) -> bool:
    """A button, a page, a command, or at least a sentence of its own."""
    return bool(fix.by_click or fix.link == "repair" or fix.link in PAGES or fix.command or fix.text)


@pytest.mark.parametrize("rule", VLLM, ids=lambda rule: rule.code)
def test_every_remedy_has_a_way_to_be_shown(rule: Rule) -> None:
    for offer in offered(rule):
        if set_by_the_house(offer) or offer.about == "other_engine":  # Berth starts one kind
            continue
        given = {name.strip(): "x" for name in offer.name.split(",")} if offer.kind == "drop" else {}
        of = everything_set(rule)
        of = of.model_copy(update={"options": {**of.options, **given}, "kv_cache_gib": 40})
        shown = [fix for place in PLACES.values() for fix in turn.fixes_of("", [offer], of, place)]
        assert shown, offer
        for fix in shown:
            assert title(fix)[0].strip(" .") and way_to_do_it(fix), fix


def test_an_offer_that_was_kept_before_it_said_what_it_is_about_is_still_understood() -> None:
    for rule in ALL:
        for remedy in rule.remedies:
            kept = {"kind": remedy.kind, "name": remedy.name, "text": remedy.say}
            assert about_of(rule.code, kept) == remedy.about, (rule.code, remedy)
    assert about_of("mem.gpu_busy", {"kind": "set", "text": WORDS["back"]}) == "back"
    assert about_of("no.such_class", {}) == ""
