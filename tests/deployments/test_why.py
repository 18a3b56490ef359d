"""The plan says where it runs, why there, what the other places are like, and where each number comes from: page and API."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from deployments import preflight
from deployments.api.schemas_plan import plan_out
from deployments.checklist.static import of_plan
from deployments.pages import why
from deployments.pages.measured import compared
from deployments.pages.ways import ways
from deployments.reconcile import reconcile
from deployments.spec import DeploymentSpec
from deployments.wording import words
from models_catalog.estimate import Amount
from models_catalog.estimate.plan import Reason
from models_catalog.models import Artifact, CatalogModel, Copy
from panel.accounts.models import User
from panel.fleet.models import Gpu, Host
from tests.deployments import builders
from tests.deployments.pure.plans import model

pytestmark = pytest.mark.django_db
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


def shelf(hosts: int = 1, shape: str = "Qwen--Qwen3-8B", **changes: Any) -> Copy:
    """The same model on so many hosts with one RTX 4090 each; the later ones have less free."""
    copies = []
    for number in range(1, hosts + 1):
        host = builders.make_host(f"lab-{number}", device="cuda")
        Gpu.objects.create(host=host, uuid=f"GPU-{number}", index=0, name="NVIDIA GeForce RTX 4090", total_mib=24_564,
                           used_mib=200 + 10 * number, measured={"compute_capability": "8.9"})  # fmt: skip
        copies.append(builders.make_copy(host, f"Qwen3-{number}"))
    Artifact.objects.filter(pk=copies[0].artifact_id).update(facts=model(shape, **changes), size_bytes=16 << 30)
    Copy.objects.update(artifact=copies[0].artifact_id)
    return copies[0]


@pytest.fixture
def ask(client: Client) -> Callable[..., Any]:
    """What the plan of the deploy page has for its template."""
    client.force_login(User.objects.create(username="olga", role="operator"))

    def asked(copy: Copy, **values: Any) -> Any:
        form = {"artifact": copy.artifact_id, "device": "auto", "task": "generate", "restart": "on_failure", **values}
        return client.post(reverse("deployment-plan"), form)

    return asked


def look(copy: Copy, **values: Any) -> preflight.Check:
    return preflight.check(DeploymentSpec(artifact_id=copy.artifact_id, **values), name="x", ahead=True)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_each_number_has_a_range_and_a_sentence(ask: Any) -> None:
    answer = ask(shelf(), max_model_len="8192", people="2")
    rows = {row["kind"]: row for row in answer.context["table"]}
    for kind in "wagor":
        assert re.fullmatch(r"\d+\.\d\d–\d+\.\d\d", rows[kind]["range"]), (kind, rows[kind])
        assert rows[kind]["why"].endswith("."), kind
    assert rows["w"]["why"] == "Counted from the model's shape, two bytes for each weight."
    assert rows["r"]["why"].startswith("What is left of 21.59 GiB, the GPU's total × 0.9")
    counts = answer.context["numbers"]["counts"]
    assert [row["name"] for row in counts] == ["Tokens that fit", "Conversations at once", "Longest conversation"]
    assert all(re.fullmatch(r"≈\xa0[\d,.]+ \([\d,.]+–[\d,.]+\)", row["value"]) and row["why"] for row in counts), counts
    page = answer.content.decode()
    assert "Where these numbers come from" in page and "Requests of 8,192 tokens each." in page


def test_what_the_estimate_knows_of_the_model_is_said(ask: Any) -> None:
    copy = shelf(shape="Qwen--Qwen3-30B-A3B")
    Gpu.objects.update(name="NVIDIA H100 80GB HBM3", total_mib=81_559)
    said = ask(copy).context["numbers"]["said"]
    assert any(text.startswith("All 128 experts are in memory") for text in said), said


def test_where_nothing_fits_the_numbers_say_for_what_they_are(ask: Any) -> None:
    answer = ask(shelf(), max_model_len="40960", people="300")
    assert not answer.context["fits"] and answer.context["numbers"]["shorter"]
    assert "which would fit." in answer.content.decode()


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"max_model_len": "30720", "gpu_memory_utilization": "0.9"}, "By the estimate it just fits"),
        ({"max_model_len": "34816", "gpu_memory_utilization": "0.9"}, "By the estimate it does not quite fit"),
    ],
)
def test_a_verdict_that_is_not_sure_says_its_reason(ask: Any, values: dict[str, str], word: str) -> None:
    (note,) = [note for note in ask(shelf(), **values).context["notes"] if note.text.startswith(word)]
    assert re.search(r"One request of 3\d,\d+ tokens (fits only just|does not fit); the longest", note.text), note


def test_the_check_before_a_start_says_the_same_reason() -> None:
    placed = look(shelf(), options={"max_model_len": 30_720, "gpu_memory_utilization": 0.9}).placement
    (found,) = of_plan(placed, {}, ())
    said = words(found.reason)
    assert said is not None and said.text.startswith("It just fits. One request of 30,720 tokens fits only just;")


def test_what_is_not_known_says_why(ask: Any) -> None:
    copy = shelf(model_type="novel", architectures=["NovelForCausalLM"])
    notes = [note.text for note in ask(copy).context["notes"]]
    assert [text for text in notes if "NovelForCausalLM is not known here" in text], notes
    for code in ("check.tight", "check.unlikely", "check.no_estimate"):
        reason = {"code": code, "params": {"because": {"code": "kv.copied", "params": {"kv_heads": 2, "tp": 4}}}}
        found = words(reason)
        assert found is not None and found.text.endswith(
            "2 heads for keys and values are copied to 4 GPUs, not divided."
        )


def test_the_next_places_stand_beside_those_that_cannot_take_it(ask: Any) -> None:
    copy = shelf(6)
    Host.objects.filter(name="lab-6").update(schedulable=False)
    answer = ask(copy)
    told = answer.context["places"]
    assert told["here"].startswith("Of the places that surely take it, those that nothing else uses come first")
    assert [one["name"] for one in told["others"]] == ["lab-2 GPU 0", "lab-3 GPU 0", "lab-4 GPU 0", "Others"]
    assert told["others"][0]["text"] == "It fits there too; less of that memory is free."
    assert re.fullmatch(r"Room for about \d+ at once, of 8,192 tokens each\.", told["others"][0]["hint"])
    assert told["others"][3]["text"] == "1 more place could take it."
    assert [one["name"] for one in told["refused"]] == ["lab-6"]
    assert "lab-2 GPU 0" in answer.content.decode()


def test_the_only_place_and_a_chosen_one_say_so(ask: Any) -> None:
    copy = shelf(2)
    chosen = ask(copy, host=str(Host.objects.get(name="lab-2").pk)).context["places"]
    assert (chosen["here"], chosen["others"]) == ("It was chosen in these settings.", [])
    Host.objects.filter(name="lab-2").delete()
    assert ask(copy).context["places"]["here"] == "It is the only place that can take it now."


def test_another_number_of_gpus_of_the_same_host_is_told_with_its_room(ask: Any) -> None:
    copy = shelf()
    Gpu.objects.create(host=copy.host, uuid="GPU-9", index=1, name="NVIDIA GeForce RTX 4090", total_mib=24_564,
                       used_mib=900, measured={"compute_capability": "8.9"})  # fmt: skip
    told = ask(copy, gpu_count="2", max_model_len="8192").context["places"]["others"][0]
    assert told["name"] == "lab-1, 1 GPU" and re.fullmatch(r"Room for about \d at once, instead of \d+\.", told["hint"])


def test_places_that_say_the_same_stand_together_and_very_many_are_counted() -> None:
    same = [{"name": f"lab-{n} GPU 0", "text": "Full.", "hint": ""} for n in range(7)]
    assert why.grouped(same[:3]) == [{"name": "lab-0 GPU 0, lab-1 GPU 0, lab-2 GPU 0", "text": "Full.", "hint": ""}]
    assert why.grouped(same)[0]["name"] == "lab-0 GPU 0, lab-1 GPU 0 and 5 more"
    many = [{"name": f"lab-{n}", "text": f"{n} are missing.", "hint": ""} for n in range(20)]
    assert len(why.grouped(many)) == 13 and why.grouped(many)[-1]["text"] == "8 more places cannot take it."


@pytest.mark.parametrize(
    ("ends", "shown"),
    [
        ((15.9, 15.8, 16.1), "≈\xa015.9 (15.8–16.1)"),
        ((4.0, 4.0, 4.0), "4.0"),
        ((4.0, None, None), "4.0"),
        ((None, 2.0, 7.5), "2.0–7.5"),
        ((None, None, None), "—"),
    ],
)
def test_a_number_with_its_range(ends: tuple[float | None, float | None, float | None], shown: str) -> None:
    assert why.told(Amount(*ends, Reason("kv.left"))) == shown


# --- a smaller form ---------------------------------------------------------------------------------------------------


def too_big(**facts: Any) -> Copy:
    """A model that no host can hold."""
    copy = shelf(shape="Qwen--Qwen3-14B")
    Artifact.objects.filter(pk=copy.artifact_id).update(
        size_bytes=28 << 30, facts={**model("Qwen--Qwen3-14B"), **facts}
    )
    CatalogModel.objects.filter(artifacts=copy.artifact_id).update(name="Qwen3-14B")
    return copy


def form_of(copy: Copy, name: str, **more: Any) -> Copy:
    small = builders.make_copy(copy.host, name)
    facts = {**model("Qwen--Qwen3-14B", **AWQ), **more}
    Artifact.objects.filter(pk=small.artifact_id).update(facts=facts, size_bytes=9 << 30, label="AWQ")
    return small


def test_where_no_smaller_form_is_known_the_hub_is_searched_for_its_name(ask: Any) -> None:
    copy = too_big()
    CatalogModel.objects.filter(artifacts=copy.artifact_id).update(source_url="https://huggingface.co/Qwen/Qwen3-14B")
    answer = ask(copy)
    assert not answer.context["fits"]
    assert answer.context["hub"]["url"] == f"{reverse('download-find')}?source=huggingface&q=Qwen3-14B"
    assert "Look for a smaller form on the Hub" in answer.content.decode()
    form_of(copy, "Qwen3-14B-AWQ")
    assert ask(copy).context["hub"] is None, "one that fits lies here"


@pytest.mark.parametrize(
    ("origin", "url"),
    [
        ("Qwen/Qwen3-14B-AWQ", "/models/downloads/new?source=huggingface&repo=Qwen%2FQwen3-14B-AWQ"),
        ("", "/models/{model}/"),
    ],
)
def test_a_form_that_no_host_has_leads_to_its_download(ask: Any, origin: str, url: str) -> None:
    copy = too_big()
    small = form_of(copy, "Qwen3-14B-AWQ", **({"origin": origin, "source": "hf-cache"} if origin else {}))
    Copy.objects.filter(pk=small.pk).update(present=False)
    answer = ask(copy)
    (change,) = [change for change in answer.context["changes"] if change["page"]]
    assert change["text"] == "Qwen3-14B-AWQ (AWQ), another form of this model, would fit; no host has it now."
    assert change["page"]["url"] == url.format(model=small.artifact.model_id) and not change["patch"]
    assert answer.context["hub"] is None and change["page"]["label"] in answer.content.decode()


def test_what_fits_or_waits_for_something_else_asks_nothing_of_the_catalog(ask: Any) -> None:
    copy = shelf()
    assert ask(copy).context["hub"] is None
    Host.objects.update(lost_at="2026-01-01T00:00:00Z")
    assert ask(copy).context["hub"] is None


def test_a_start_that_failed_for_its_size_leads_to_the_hub_too() -> None:
    copy = too_big()
    row = builders.make_deployment(copy, state="failed")
    row.reason = look(copy).reason
    assert row.reason["code"] == "place.none"
    (way,) = [way for way in ways(row) if "/find" in way.get("url", "")]
    assert way["label"] == "Look for a smaller form on the Hub"
    assert not [way for way in ways(row, [{"code": "change.twin", "kind": "patch"}]) if "/find" in way.get("url", "")]
    row.reason = {"code": "place.none", "params": {"candidates": [{"code": "host.lost", "params": {}}]}}
    assert not [way for way in ways(row) if "/find" in way.get("url", "")]


def test_what_was_estimated_says_where_it_came_from_beside_what_was_measured() -> None:
    copy = shelf()
    row = builders.make_deployment(copy, desired="running")
    reconcile(row.pk)
    row.refresh_from_db()
    run = row.run
    run.measured = {name: run.foreseen[name] for name in ("weights_gib", "kv_gib", "kv_tokens")}
    said = {line["name"]: line["why"] for line in compared(run)}
    assert said["Weights"] == "Counted from the model's shape, two bytes for each weight."
    assert all(said.values())
    run.placement = {**run.placement, "estimate": None}
    assert not any(line["why"] for line in compared(run)), "a start from before estimates were kept"


# --- the API ----------------------------------------------------------------------------------------------------------


def test_the_api_tells_the_places_with_their_plans_and_why() -> None:
    copy = shelf(3)
    Host.objects.filter(name="lab-3").update(schedulable=False)
    out = plan_out(look(copy, people=2))
    assert [(one["host"], one["gpus"], one["fit"]) for one in out["placements"]] == [
        ("lab-1", [0], "fits"), ("lab-2", [0], "fits"),
    ]  # fmt: skip
    best, other = out["placements"]
    assert best["why"].startswith("Of the places") and other["why"] == "It fits there too; less of that memory is free."
    assert other["people"] > 2 and other["share"] == 0.9 and other["reserve_mib"] == out["reserve_mib"]
    estimate = best["plan"]
    assert estimate["weights_gib"] > 15 and estimate["ranges"]["kv_gib"][0] < estimate["kv_gib"]
    assert all(source["text"].endswith(".") for source in estimate["sources"].values())
    assert [reason["text"] for reason in estimate["reasons"]]
    assert [one["name"] for one in out["candidates"]] == ["lab-3"] and out["ok"]


def test_the_api_answers_both_questions_the_other_way_round() -> None:
    out = plan_out(look(shelf(2), people=2, options={"max_model_len": 8192}))
    most, longest = out["most_people"], out["longest_for_people"]
    assert (most["host"], most["gpus"], longest["host"]) == ("lab-1", [0], "lab-1")
    assert most["value"] >= most["surely"] >= 2 and longest["value"] >= longest["surely"] >= 8192
    copy = Copy.objects.first()
    assert copy is not None
    again = plan_out(look(copy, people=most["surely"], options={"max_model_len": 8192}))
    assert again["ok"] and again["fit"] in ("fits", "tight"), "the answer is true when it is planned with"
    many = plan_out(look(copy, people=4_000))
    assert not many["ok"] and many["most_people"]["value"] < 4_000 and many["placements"] == []


def test_the_api_tells_the_notes_of_the_plan() -> None:
    copy = shelf()
    Gpu.objects.create(host=copy.host, uuid="GPU-9", index=1, name="NVIDIA GeForce RTX 4090", total_mib=24_564,
                       used_mib=200, measured={"compute_capability": "8.9"})  # fmt: skip
    notes = plan_out(look(copy, gpu_count=2))["notes"]
    assert "gpu.slow_link" in [note["code"] for note in notes] and all(note["message"] for note in notes)


def test_more_hosts_cost_no_more_queries(ask: Any) -> None:
    def cost(copy: Copy, **values: str) -> int:
        with CaptureQueriesContext(connection) as seen:
            ask(copy, **values)
        return len(seen)

    copy = too_big()
    ask(copy)
    fitting, failing = cost(copy, gpu_count="2"), cost(copy)
    for number in range(2, 9):
        host = builders.make_host(f"lab-{number}", device="cuda")
        Gpu.objects.create(host=host, uuid=f"GPU-{number}", index=0, name="NVIDIA GeForce RTX 4090", total_mib=24_564,
                           used_mib=300, measured={"compute_capability": "8.9"})  # fmt: skip
        builders.make_copy(host, f"Other-{number}")
    Copy.objects.update(artifact=copy.artifact_id)
    assert (cost(copy, gpu_count="2"), cost(copy)) == (fitting, failing)
