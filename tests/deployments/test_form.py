"""The deploy form's fields and what becomes of them: the engine's settings, people and priority, proposed changes."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from deployments import expert
from deployments.engines.options import Option, Schema, check_value, parse_schema
from deployments.expert_words import GROUPS, SAID, TOUCHES
from deployments.models import Deployment, Run
from deployments.pages import bar as bar_page
from deployments.pages import choice as choice_page
from models_catalog import fits
from models_catalog.models import Artifact, CatalogModel, Copy
from panel.accounts.models import User
from panel.fleet.models import Gpu, Host
from tests.deployments import builders
from tests.deployments.pure.plans import model

SCHEMA = parse_schema(builders.FLAGS)


@pytest.fixture
def operator(db: None, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"})
    client.force_login(User.objects.create(username="olga", role="operator"))
    return client


@pytest.fixture
def sent(db: None) -> Callable[..., dict[str, Any]]:
    """What the page sends for a model of known shape on two cards."""
    copy = builders.make_copy(builders.make_host(gpus=2))
    Artifact.objects.update(facts=model("Qwen--Qwen3-8B"))

    def make(**values: Any) -> dict[str, Any]:
        base = {"artifact": copy.artifact_id, "name": "team-chat", "device": "auto", "task": "generate"}
        return {**base, "extra_args": "", "env": "", "restart": "never", "act": "save", **values}

    return make


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_settings_in_plain_words_are_some_forty_that_a_current_engine_has_and_people_may_set() -> None:
    assert len(SAID) >= 40
    assert set(SAID) - {option.name for option in SCHEMA.options} == {"calculate_kv_scales"}  # of older engines
    for name, said in SAID.items():
        option = SCHEMA.get(name) or Option(name, f"--{name}", (), "bool")
        assert not option.denied and name not in expert.OWN_FIELDS, name
        assert said.group in GROUPS and str(said.label) != str(said.text)
        assert said.low is None or said.high is None or said.low < said.high, name
    wanted = {"block_size", "enable_prefix_caching", "kv_cache_dtype", "enable_chunked_prefill", "log_level"}
    assert wanted <= set(SAID)


def test_every_option_that_may_be_set_is_on_the_page_once() -> None:
    page = expert.page(SCHEMA, {"numa_bind": True, "block_size": 32})
    rows = [row.name for group in page.groups for row in group.rows]
    names = [*rows, *(row.name for row in [*page.set_too, *page.rest])]
    assert len(names) == len(set(names)) and page.chosen == 2
    assert set(names) == {option.name for option in SCHEMA.options if not option.denied} - expert.OWN_FIELDS


def test_an_engine_without_a_setting_does_not_offer_it_and_shows_one_that_is_set() -> None:
    page = expert.page(Schema(), {"kv_cache_dtype": "fp8"})
    assert not page.groups and [(row.name, row.value) for row in page.set_too] == [("kv_cache_dtype", "fp8")]


@given(st.sampled_from([o for o in SCHEMA.options if not o.denied and o.name not in expert.OWN_FIELDS]), st.data())
def test_what_a_page_shows_comes_back_as_it_was(option: Any, data: Any) -> None:
    if option.kind == "bool":
        value: Any = data.draw(st.booleans())
    elif option.choices:
        value = data.draw(st.sampled_from(option.choices))
    else:
        value = data.draw({"int": st.integers(0, 10**6), "float": st.floats(0, 100)}.get(option.kind, st.just("8")))
    if option.many and option.kind != "json":
        value = [value]
    shown = expert.page(SCHEMA, {option.name: value})
    rows = [row for group in shown.groups for row in group.rows] + shown.set_too
    text = next(row.value for row in rows if row.name == option.name)
    assert expert.read({f"o.{option.name}": text}, {option.name: value}, SCHEMA) == {option.name: value}
    typed = expert.read({f"o.{option.name}": text}, {}, SCHEMA)[option.name]
    assert (check_value(option, typed) is None) == (check_value(option, value) is None)


def test_an_empty_field_takes_a_setting_back_and_one_that_is_not_there_keeps_it() -> None:
    kept = {"kv_cache_dtype": "fp8", "seed": 7}
    assert expert.read({"o.kv_cache_dtype": ""}, kept, SCHEMA) == {"seed": 7}
    assert expert.read({"o.max_model_len": "5", "o.bad name": "x", "seed": "1"}, kept, SCHEMA) == kept
    assert expert.read({"o.cudagraph_capture_sizes": "1 2 x"}, {}, SCHEMA) == {"cudagraph_capture_sizes": [1, 2, "x"]}


# --- the form ---------------------------------------------------------------------------------------------------------


def test_people_priority_and_settings_are_kept_and_shown_again(operator: Client, sent: Any) -> None:
    values = sent(people="8", priority="fit", **{"o.kv_cache_dtype": "fp8", "o.enforce_eager": "true"})
    assert operator.post(reverse("deployment-new"), values).status_code == 302
    row = Deployment.objects.get()
    spec = row.revision.spec
    assert (spec["people"], spec["priority"]) == (8, "fit")
    assert spec["options"] == {"kv_cache_dtype": "fp8", "enforce_eager": True}
    page = operator.get(reverse("deployment-edit", args=[row.pk])).content.decode()
    assert '<option value="fp8" selected>' in page and 'value="8"' in page and "2 settings chosen" in page
    again = sent(people="", priority="speed", revision=1, **{"o.kv_cache_dtype": ""})
    operator.post(reverse("deployment-edit", args=[row.pk]), again)
    row.refresh_from_db()
    assert (row.revision.spec["people"], row.revision.spec["priority"]) == (None, "speed")
    assert row.revision.spec["options"] == {"enforce_eager": True}  # it was not among what was sent


def test_a_setting_that_the_engine_refuses_is_refused_by_the_plan(operator: Client, sent: Any) -> None:
    answer = operator.post(reverse("deployment-plan"), sent(**{"o.tool_call_parser": "../x.py", "o.seed": "many"}))
    assert "--seed" in answer.content.decode()


def test_the_plan_comes_with_bars_and_numbers_for_the_sliders(operator: Client, sent: Any) -> None:
    answer = operator.post(reverse("deployment-plan"), sent(max_model_len="8192", people="4"))
    live = json.loads(answer.context["live"])
    assert live["numbers"]["stages"] and live["limit"] == 40_960
    assert live["longest"] >= 8192 and live["most"] >= 4
    bar = answer.context["bars"][0]
    assert sum(bar["sizes"].values()) + bar["free"] == pytest.approx(bar["total"])
    assert 'role="img"' in answer.content.decode()


def test_where_less_would_fit_the_marks_still_say_how_much(operator: Client, sent: Any) -> None:
    answer = operator.post(reverse("deployment-plan"), sent(max_model_len="40960", people="300"))
    assert not answer.context["fits"]
    live = json.loads(answer.context["live"])
    assert live["numbers"] and live["most"] and live["most"] < 300


@pytest.mark.parametrize("need", [("40960", "20"), ("", "300")], ids=["long", "many"])
def test_a_change_is_a_button_and_without_scripts_it_comes_back_filled_and_unsaved(
    operator: Client, sent: Any, need: tuple[str, str]
) -> None:
    values = sent(max_model_len=need[0], people=need[1], act="plan")
    shown = operator.post(reverse("deployment-new"), values)
    assert shown.status_code == 200 and not Deployment.objects.exists()
    changes = [change for change in shown.context["changes"] if change["patch"]]
    assert changes
    for change in changes:
        del values["act"]
        again = operator.post(reverse("deployment-new"), {**values, "apply": change["patch"]})
        values["act"] = "plan"
        assert again.status_code == 200 and again.context["fits"], change
        assert not Deployment.objects.exists()


@pytest.mark.parametrize("patch", ["[]", "{", "[" * 5000, '{"artifact": {"a": 1}}', '{"o.x": null}', "7"])
def test_a_change_that_nobody_proposed_breaks_nothing(operator: Client, sent: Any, patch: str) -> None:
    assert operator.post(reverse("deployment-new"), sent(apply=patch)).status_code == 200
    assert not Deployment.objects.exists()


def test_the_choice_of_a_model_says_whether_it_fits(operator: Client, sent: Any) -> None:
    sent()
    fits.freshen()
    page = operator.get(reverse("deployment-new"))
    assert [choice["fits_kind"] for choice in page.context["models"]] == ["ok"]
    assert "Fits" in page.content.decode()


def test_the_rest_of_the_settings_comes_when_it_is_asked_for(operator: Client, sent: Any) -> None:
    sent()
    where = reverse("deployment-new")
    assert "--numa-bind-nodes" not in operator.get(where).content.decode()
    part = operator.get(where, {"part": "rest"}, headers={"HX-Request": "true"}).content.decode()
    assert "--numa-bind-nodes" in part and "<h1" not in part
    assert "--numa-bind-nodes" in operator.get(where, {"all": "1"}).content.decode()


# --- what a setting changes -------------------------------------------------------------------------------------------


def test_every_setting_in_plain_words_says_what_it_does_to_memory() -> None:
    rows = [row for group in expert.page(SCHEMA, {}).groups for row in group.rows]
    assert rows and all(row.effect for row in rows)
    assert {row.touches for row in rows} <= {"", *bar_page.KINDS}
    assert all(said.touches in TOUCHES for said in SAID.values())


def test_the_plan_tells_the_effects_in_numbers(operator: Client, sent: Any) -> None:
    live = json.loads(operator.post(reverse("deployment-plan"), sent()).context["live"])
    assert live["effects"]["kv_cache_dtype"].startswith("fp8 instead of auto: room for about ")
    assert "gpu_memory_utilization" in live["effects"] and "gpu_count" in live["effects"]
    page = operator.get(reverse("deployment-new")).content.decode()
    assert all(f'data-effect="{name}"' in page for name in live["effects"] if name not in ("kv_cache_gib",))


# --- where it can only fail -------------------------------------------------------------------------------------------


def test_what_can_only_fail_is_refused_with_its_sentence_and_can_be_saved(operator: Client, sent: Any) -> None:
    Artifact.objects.update(facts=model("Qwen--Qwen3-30B-A3B", torch_dtype="float32"))
    values = sent(act="deploy", max_model_len="40960", people="900")
    refused = operator.post(reverse("deployment-new"), values)
    assert refused.status_code == 422 and not Deployment.objects.exists()
    text = refused.content.decode()
    assert refused.context["reason"].text in text and 'id="act-deploy" disabled' in text
    assert refused.context["form"].non_field_errors() == [refused.context["reason"].text]
    assert operator.post(reverse("deployment-new"), {**values, "act": "save"}).status_code == 302
    assert Deployment.objects.get().desired == "stopped"


def test_what_may_fit_later_is_started_and_waits(operator: Client, sent: Any) -> None:
    values = sent(act="deploy")
    Gpu.objects.update(used_mib=45_000)
    assert operator.post(reverse("deployment-new"), values).status_code == 302
    assert Deployment.objects.get().desired == "running"


# --- the plan's facts -------------------------------------------------------------------------------------------------


def test_how_long_it_took_before_is_told_with_its_source(operator: Client, sent: Any) -> None:
    def ready() -> tuple[str, str, str]:
        facts = operator.post(reverse("deployment-plan"), values).context["facts"]
        return next(fact for fact in facts if fact[0] == "Ready in")

    values = sent()
    assert ready()[1:] == ("not known", "it never started there")
    copy = Copy.objects.get()
    row = builders.make_deployment(copy, "before")
    for seconds in (100, 130, 160):
        run = builders.make_run(row, copy)
        run.refresh_from_db()
        Run.objects.filter(pk=run.pk).update(ready_at=run.created_at + timedelta(seconds=seconds))
    assert ready()[1:] == ("\u2248\xa02\xa0min 10\xa0s", "from 3 earlier starts")


def test_who_else_is_on_the_gpu_is_said_and_what_would_fit_without(operator: Client, sent: Any) -> None:
    values = sent()
    python = {"pid": 4711, "name": "python3", "user": "ada", "used_mib": 20_000, "job_id": None}
    Gpu.objects.update(used_mib=20_500, measured={"processes": [python], "compute_capability": "8.9"})
    shared = operator.post(reverse("deployment-plan"), values).context["shared"]
    assert shared["text"] == "GPU 0: python3 (ada), which is not Berth's, holds 19.5\xa0GiB."
    assert shared["more"].startswith("Without that there would be room for about ")
    Gpu.objects.update(used_mib=300, measured={"compute_capability": "8.9"})
    assert not operator.post(reverse("deployment-plan"), values).context["shared"]


# --- the choice of a model --------------------------------------------------------------------------------------------


def models_of(client: Client) -> list[dict[str, Any]]:
    fits.freshen()
    found: list[dict[str, Any]] = client.get(reverse("deployment-new")).context["models"]
    return found


def test_the_best_comes_first_and_is_chosen(operator: Client, sent: Any) -> None:
    sent()
    host = Host.objects.get()
    huge = builders.make_copy(host, "A-Huge-One")
    Artifact.objects.filter(pk=huge.artifact_id).update(facts=model("Qwen--Qwen3-235B-A22B"), size_bytes=470 << 30)
    small = builders.make_copy(host, "Small-One")
    Artifact.objects.filter(pk=small.artifact_id).update(facts=model("Qwen--Qwen2.5-1.5B-Instruct"), size_bytes=1 << 30)
    broken = builders.make_copy(host, "A-Broken-One", problems=[{"code": "config_missing", "params": {}}], usable=False)
    found = models_of(operator)
    assert [one["name"] for one in found] == ["Tiny-1B-Instruct", "Small-One", "A-Huge-One", "A-Broken-One"]
    assert [one["fits_kind"] for one in found] == ["ok", "ok", "bad", ""]
    assert [one["chosen"] for one in found] == [True, False, False, False] and found[3]["problem"]
    page = operator.get(reverse("deployment-new"))
    assert page.context["form"]["name"].value() == "tiny-1b-instruct"
    # one that runs already is not the first thought for another
    row = builders.make_deployment(Copy.objects.get(artifact__model__name="Tiny-1B-Instruct"), "one", state="ready")
    assert row.desired == "running"
    again = models_of(operator)
    assert [one["name"] for one in again[:2]] == ["Small-One", "Tiny-1B-Instruct"] and "already runs as one" in again[
        1
    ]["facts"]
    assert broken.artifact_id == found[3]["id"]


def test_what_is_tight_says_for_how_many_it_is_enough(operator: Client, sent: Any) -> None:
    sent()
    fits.freshen()
    row = Artifact.objects.get()
    assert row.fits["on"][0]["requests"] >= 10
    on = [{**row.fits["on"][0], "verdict": "tight", "requests": 9}]
    Artifact.objects.update(fits={"best": "tight", "on": on})
    (one,) = operator.get(reverse("deployment-new")).context["models"]
    assert one["fits_kind"] == "warn" and one["facts"].endswith("about 9 at once") and one["chosen"]


def test_where_nothing_fits_nothing_is_chosen(operator: Client, sent: Any) -> None:
    sent()
    Artifact.objects.update(facts=model("Qwen--Qwen3-235B-A22B"))
    assert [one["chosen"] for one in models_of(operator)] == [False]


def test_the_same_model_twice_is_told_apart_by_its_folder(operator: Client, sent: Any) -> None:
    sent()
    first = Copy.objects.get()
    assert [one["path"] for one in models_of(operator)] == [""]
    other = Artifact.objects.create(
        model=first.artifact.model,
        format="hf",
        label="bfloat16",
        fingerprint="other",
        size_bytes=3 << 30,
        facts=model(),
    )
    Copy.objects.create(artifact=other, host=first.host, path="/models/edited/it", root="/models")
    page = operator.get(reverse("deployment-new"))
    assert {one["path"] for one in page.context["models"]} == {"/models/Tiny-1B-Instruct", "/models/edited/it"}
    assert "/models/edited/it" in page.content.decode()


def test_of_very_many_models_the_best_are_shown_and_a_search_finds_the_others(operator: Client, sent: Any) -> None:
    sent()
    host, first = Host.objects.get(), Artifact.objects.get()
    models = CatalogModel.objects.bulk_create(CatalogModel(name=f"team/model-{n:03d}") for n in range(100))
    more = Artifact.objects.bulk_create(
        Artifact(model=one, format="hf", label="bf16", fingerprint=one.name, facts=first.facts, size_bytes=1 << 20)
        for one in models
    )
    Copy.objects.bulk_create(
        Copy(artifact=one, host=host, path=f"/models/{one.fingerprint}", root="/models") for one in more
    )
    fits.freshen()
    with CaptureQueriesContext(connection) as few:
        page = operator.get(reverse("deployment-new"))
    assert page.context["models"][0]["name"] == "Tiny-1B-Instruct"  # the largest that fits
    assert len(page.context["models"]) == choice_page.MOST and "71 more are found" in page.content.decode()
    address = f"{reverse('deployment-new')}?part=models&artifact={first.pk}&find=model-09"
    found = operator.get(address, headers={"HX-Request": "true"}).content.decode()
    assert set(re.findall(r"<b>(.*?)</b>", found)) == {
        "Tiny-1B-Instruct", *(f"team/model-{n:03d}" for n in range(90, 100))
    }  # fmt: skip
    assert "<html" not in found and re.findall(r'value="(\d+)"[^>]* checked', found) == [str(first.pk)]
    on_host = operator.get(f"{reverse('deployment-new')}?part=models&find={host.name}", headers={"HX-Request": "true"})
    assert on_host.content.count(b"<label") == choice_page.MOST
    Artifact.objects.filter(fingerprint__gte="team/model-050").delete()
    with CaptureQueriesContext(connection) as fewer:
        operator.get(reverse("deployment-new"))
    assert len(few) == len(fewer)
