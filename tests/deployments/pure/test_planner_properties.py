"""What must hold of every plan, whatever the fleet, the model and the need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from deployments.placement import Claim, GpuUser, GpuView, HostView, Placement
from deployments.planner import Estimator, Need, nearest, plan
from deployments.planner.asked import asked_of
from models_catalog.estimate import Gpu
from models_catalog.estimate.machines import Machine, answer
from models_catalog.estimate.need import ENOUGH, ORDER, USUAL_SHARE, Needs, Setting, Wish
from models_catalog.facts import ModelFacts
from tests.deployments.pure.plans import CARDS, CPU, CUDA, card, lab, model, spec

MODELS = ("Qwen--Qwen3-8B", "Qwen--Qwen3-30B-A3B", "google--gemma-3-12b-it", "Qwen--Qwen2.5-1.5B-Instruct",
          "Qwen--Qwen3.5-9B", "deepseek-ai--DeepSeek-V2-Lite-Chat")  # fmt: skip
FACTS = {name: model(name) for name in MODELS}
models = st.sampled_from(MODELS)
contexts = st.integers(1, 200_000)
needs = st.builds(
    Need,
    context=st.none() | st.integers(1, 60_000),
    people=st.none() | st.integers(1, 40),
    priority=st.sampled_from(["fit", "quality", "speed"]),
)


@st.composite
def cards(draw: st.DrawFn, index: int) -> GpuView:
    kind = draw(st.sampled_from(sorted(CARDS)))
    total = CARDS[kind][1]
    claims, others = draw(st.integers(0, total)), draw(st.integers(0, total))
    used = draw(st.integers(0, total))
    held = (Claim("r", "other", claims),) if claims > total // 3 else ()
    strangers = (GpuUser(1, "python3", "ada", min(others, used)),) if others > total // 2 else ()
    return card(kind, index, used_mib=used, reserved_mib=claims if held else 0, claims=held, others=strangers)


@st.composite
def fleets(draw: st.DrawFn) -> list[HostView]:
    hosts = []
    for number in range(draw(st.integers(1, 3))):
        own = [draw(cards(index)) for index in range(draw(st.integers(0, 4)))]
        ram = draw(st.integers(2_000, 200_000))
        hosts.append(lab(*own, number=number + 1, runtimes=(CUDA, CPU) if own else (CPU,), ram_available_mib=ram,
                         ram_total_mib=max(ram, 64_000)))  # fmt: skip
    return hosts


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["max_model_len"] = draw(contexts)
    if draw(st.integers(0, 3)) == 0:
        options["gpu_memory_utilization"] = draw(st.integers(5, 99)) / 100
    return {"options": options, "gpu_count": draw(st.sampled_from([1, 1, 1, 2, 4]))}


@settings(max_examples=120, deadline=None)
@given(models, fleets(), specs(), needs)
def test_the_chosen_plan_satisfies_its_own_check(
    name: str, hosts: list[HostView], said: dict[str, Any], need: Need
) -> None:
    """What is claimed is there, and a launch with what was chosen is not refused in the same state."""
    done = plan(spec(**said), hosts, FACTS[name], need)
    if not isinstance(done, Placement):
        assert done.reasons, "every candidate says why"
        return
    host = next(host for host in hosts if host.id == done.host_id)
    by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
    for uuid, mib in done.reserve:
        if uuid is None:
            assert mib <= host.ram_available_mib and host.ram_reserved_mib + mib <= host.ram_total_mib
            continue
        gpu = by_uuid[uuid]
        assert gpu.reserved_mib + mib <= gpu.total_mib, "the database would refuse it"
        assert mib <= gpu.total_mib - gpu.used_mib, "the engine would refuse it"
    chosen = dict(said)
    if done.device == "gpu":
        chosen["gpu_uuids"] = list(done.gpu_uuids)
        chosen["options"] = {**said["options"], "gpu_memory_utilization": done.utilisation}
    else:
        chosen["kv_cache_gib"] = done.kv_cache_gib
    again = plan(spec(host_id=done.host_id, **chosen), hosts, FACTS[name], need)
    assert isinstance(again, Placement), again
    assert (again.level, again.reserve) == (done.level, done.reserve)


@settings(max_examples=80, deadline=None)
@given(models, fleets(), st.lists(contexts, min_size=2, max_size=2), st.integers(1, 20))
def test_more_context_never_frees_memory(name: str, hosts: list[HostView], lengths: list[int], people: int) -> None:
    short, long = (plan(spec(), hosts, FACTS[name], Need(context=n, people=people)) for n in sorted(lengths))
    if isinstance(long, Placement):
        assert isinstance(short, Placement)
        assert ORDER[short.level] <= ORDER[long.level]


@settings(max_examples=80, deadline=None)
@given(
    models, st.sampled_from([*sorted(CARDS), "cpu"]), st.lists(contexts, min_size=2, max_size=2), st.integers(1, 20),
    st.booleans(),
)  # fmt: skip
def test_at_one_place_more_context_takes_more_and_leaves_room_for_fewer(
    name: str, kind: str, lengths: list[int], people: int, said: bool
) -> None:
    """Whether the length stands in the settings or is only wanted; on a card and on a processor."""
    asks, cpu = Estimator.of(FACTS[name]), kind == "cpu"
    shown, total = ("CPU", 0) if cpu else CARDS[kind][:2]
    setting = Setting(Gpu(shown, None if cpu else total / 1024, cpu=cpu), "0.32.0+cpu" if cpu else "0.32.0")
    fits = []
    for length in sorted(lengths):
        options = {"max_model_len": length} if said else {}
        asked = asked_of(spec(options=options), Need(context=None if said else length, people=people))
        fits.append(asks.fit(asked, setting, 8 if cpu else 0.9))
    short, long = fits
    assert ORDER[short.level] <= ORDER[long.level]
    if short.need_gib is not None and long.need_gib is not None:
        assert short.need_gib <= long.need_gib + 1e-9
    if short.people is not None and long.people is not None and None not in (short.people.value, long.people.value):
        assert (short.people.value or 0) >= (long.people.value or 0)


@settings(max_examples=60, deadline=None)
@given(
    models, st.sampled_from(["l40s", "a100", "h100"]), st.sampled_from([1, 2, 4]), st.integers(1024, 32_768),
    st.sampled_from(["tp", "pp"]),
)  # fmt: skip
def test_more_gpus_never_need_more_of_each(name: str, kind: str, few: int, context: int, how: str) -> None:
    """Apart from what GPUs cost each other, which is measured, and told as a part of its own.

    Side by side or one after the other: a stage has at most all that the only one had.
    """
    asks, asked = Estimator.of(FACTS[name]), asked_of(spec(), Need(context=context, people=4))
    shown, total, _capability = CARDS[kind]
    fits = [
        asks.fit(asked, Setting(Gpu(shown, total_gib=total / 1024), "0.32.0", **{how: count}), 0.9)
        for count in (few, 2 * few)
    ]
    if any(fit.need_gib is None or fit.plan is None or not fit.plan.ranks for fit in fits):
        return
    alone = [
        (fit.need_gib or 0) - max(rank.overhead.value or 0 for rank in fit.plan.ranks)
        for fit in fits
        if fit.plan is not None
    ]
    assert alone[1] <= alone[0] * 1.02 + 0.01


@settings(max_examples=40, deadline=None)
@given(
    models, st.sampled_from(sorted(CARDS)), st.sampled_from([1, 2]), st.integers(1024, 32_768), st.sampled_from(["fit"])
)
def test_nor_does_the_planner_claim_more_of_each(name: str, kind: str, few: int, context: int, priority: Any) -> None:
    """As little as surely holds it: what each of more GPUs is asked for beyond what they cost each other."""
    need, hosts = (
        Need(context=context, people=2, priority=priority),
        [lab(*(card(kind, n, used_mib=0) for n in range(4)))],
    )
    less, more = (plan(spec(gpu_count=count), hosts, FACTS[name], need) for count in (few, 2 * few))
    if not isinstance(less, Placement) or not isinstance(more, Placement) or less.device != "gpu":
        return
    assert more.device == "gpu" and less.plan is not None and more.plan is not None
    apart = [
        max(rank.overhead.value or 0 for rank in done.plan.ranks) for done in (less, more) if done.plan is not None
    ]
    step = CARDS[kind][1] / 100 + 64  # a share is told in hundredths
    assert more.reserve[0][1] <= less.reserve[0][1] + max(0.0, apart[1] - apart[0]) * 1024 * 1.05 + step


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(models, needs, st.booleans()), min_size=2, max_size=8), st.sampled_from(["4090", "l40s", "h100"])
)
def test_reservations_never_exceed_what_is_free(starts: list[tuple[str, Need, bool]], kind: str) -> None:
    """Runs come and go; each takes what its plan says, and all together never more than the card has."""
    stranger = GpuUser(1, "Xorg", "root", 700)
    gpu = card(kind, used_mib=1_000, others=(stranger,))
    for number, (name, need, stops) in enumerate(starts):
        done = plan(spec(), [lab(gpu)], FACTS[name], need)
        if isinstance(done, Placement) and done.device == "gpu":
            mib = done.reserve[0][1]
            claim = Claim(str(number), f"run-{number}", mib, mib + 400)
            gpu = replace(gpu, reserved_mib=gpu.reserved_mib + mib, used_mib=gpu.used_mib + mib + 400,
                          claims=(*gpu.claims, claim))  # fmt: skip
        assert gpu.reserved_mib + stranger.used_mib <= gpu.total_mib if stranger.used_mib else True
        assert gpu.used_mib <= gpu.total_mib
        if stops and gpu.claims:
            gpu = gpu.without(frozenset({gpu.claims[0].holder}))
    assert gpu.reserved_mib == sum(claim.mib for claim in gpu.claims)


Starts = st.lists(st.tuples(models, needs, st.sampled_from([1, 1, 2]), st.booleans()), min_size=2, max_size=8)


@settings(max_examples=40, deadline=None)
@given(Starts, st.lists(st.sampled_from(["4090", "l40s"]), max_size=3), st.integers(8_000, 128_000))
def test_nor_on_several_gpus_or_a_processor(starts: list[Any], kinds: list[str], ram_mib: int) -> None:
    """Of the whole host: every GPU, and the machine's memory."""
    host = lab(*(card(kind, index, used_mib=300) for index, kind in enumerate(kinds)), ram_total_mib=ram_mib,
               ram_available_mib=ram_mib - 1_000, runtimes=(CUDA, CPU) if kinds else (CPU,))  # fmt: skip
    running: list[str] = []
    for number, (name, need, count, stops) in enumerate(starts):
        done = plan(spec(gpu_count=count), [host], FACTS[name], need)
        if isinstance(done, Placement):
            host = _taken(host, done, str(number))
            running.append(str(number))
        for gpu in host.gpus:
            assert sum(claim.mib for claim in gpu.claims) == gpu.reserved_mib <= gpu.total_mib
            assert gpu.used_mib <= gpu.total_mib
        assert sum(claim.mib for claim in host.ram_claims) == host.ram_reserved_mib <= host.ram_total_mib
        assert host.ram_available_mib >= 0
        if stops and running:
            host = host.without(frozenset({running.pop(0)}))


def _taken(host: HostView, done: Placement, holder: str) -> HostView:
    """The host when this run holds all that was reserved for it, and the driver's part beside it."""
    for uuid, mib in done.reserve:
        claim = Claim(holder, f"run-{holder}", mib, mib + 400 if uuid else mib)
        if uuid is None:
            host = replace(host, ram_reserved_mib=host.ram_reserved_mib + mib, ram_claims=(*host.ram_claims, claim),
                           ram_available_mib=host.ram_available_mib - mib)  # fmt: skip
            continue
        gpus = tuple(
            replace(gpu, reserved_mib=gpu.reserved_mib + mib, used_mib=gpu.used_mib + mib + 400,
                    claims=(*gpu.claims, claim)) if gpu.uuid == uuid else gpu
            for gpu in host.gpus
        )  # fmt: skip
        host = replace(host, gpus=gpus)
    return host


@settings(max_examples=40, deadline=None)
@given(models, fleets(), specs(), needs)
def test_every_proposed_change_is_true(name: str, hosts: list[HostView], said: dict[str, Any], need: Need) -> None:
    asked = spec(**said)
    done = plan(asked, hosts, FACTS[name], need)
    if isinstance(done, Placement):
        return
    for change in nearest(asked, hosts, FACTS[name], done, need):
        if not change.patch:
            assert change.placement is not None
            continue
        wanted = replace(need, context=None) if change.reason.code == "change.context" else need
        again = plan(asked.model_copy(update=dict(change.patch)), hosts, FACTS[name], wanted)
        assert isinstance(again, Placement), change


@settings(max_examples=150, deadline=None)
@example("Qwen--Qwen3-8B", "4090", 1, 1.05)
@example("Qwen--Qwen3-8B", "4090", 2, 1.05)
@given(
    models,
    st.sampled_from([*sorted(CARDS), "cpu"]),
    st.sampled_from([1, 2, 4]),
    st.integers(16, 200_000) | st.floats(0.9, 1.2),
)
def test_the_catalog_says_what_the_planner_would_do(name: str, kind: str, count: int, wanted: float) -> None:
    """Of a host that nothing else uses: the table on a model's page and the form that its cells lead to agree.

    `wanted` are tokens, or a part of what the usual share holds: there the two could differ.
    """
    cpu = kind == "cpu"
    count, (shown, total, able) = (1, ("CPU", 64_000, None)) if cpu else (count, CARDS[kind])
    needs, context = Needs(ModelFacts.from_dict(FACTS[name])), int(wanted)
    if isinstance(wanted, float):
        setting = Setting(Gpu(shown, None if cpu else total / 1024, cpu=cpu), "0.32.0", tp=count)
        longest = needs.fit(Wish(4096), setting, 4 if cpu else USUAL_SHARE).longest
        context = max(16, int(wanted * ((longest.value if longest is not None else None) or 4096)))
    context = min(context, needs.longest or context)  # the table has no longer one, and the planner takes none
    told = answer(needs, Machine(shown, total, count, cpu, able), context, "0.32.0")
    cards_ = [] if cpu else [card(kind, index, used_mib=0) for index in range(count)]
    host = lab(*cards_, ram_total_mib=64_000, ram_available_mib=64_000, runtimes=(CPU,) if cpu else (CUDA,))
    done = plan(spec(gpu_count=count, options={"max_model_len": context}), [host], FACTS[name])
    placed = isinstance(done, Placement) and done.level in ENOUGH
    assert placed == (told.verdict in ENOUGH), (told, done)
    if isinstance(done, Placement) and placed:
        assert done.level == told.verdict
        assert done.people is not None and told.requests is not None and done.people.value == told.requests.value
