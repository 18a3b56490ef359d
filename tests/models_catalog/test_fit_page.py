"""Where a model fits, on its page: the team's GPUs counted, links to the form that starts it there, usual GPUs."""

import re
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from models_catalog import fits
from models_catalog.contexts import fits_word, would_fit
from models_catalog.estimate.machines import Machine, answer
from models_catalog.estimate.need import Needs
from models_catalog.estimate.short import short, usual_by_size
from models_catalog.models import Artifact, Copy
from panel.accounts.models import User
from panel.fleet.models import Gpu, Host
from tests.deployments import builders
from tests.models_catalog.estimate.builders import facts

pytestmark = pytest.mark.django_db


@pytest.fixture
def copy() -> Copy:
    found = builders.make_copy(builders.make_host(gpus=2), "Qwen3-8B")
    known = {**facts("Qwen--Qwen3-8B").to_dict(), "weight_bytes": 16_381_516_776, "chat_template": True}
    Artifact.objects.filter(pk=found.artifact_id).update(facts=known)
    return found


def client_of(role: str) -> Client:
    client = Client()
    client.force_login(User.objects.get_or_create(username=role, defaults={"role": role})[0])
    return client


def page_of(copy: Copy, role: str = "operator", name: str = "model", **headers: str) -> str:
    address = reverse(name, args=[copy.artifact.model_id])
    return client_of(role).get(address, headers=headers).content.decode()


def links(text: str) -> list[str]:
    return [unescape(found) for found in re.findall(r'<a class="c [a-z]+" href="([^"]+)"', text)]


def test_each_length_that_fits_leads_to_the_form_that_starts_it_there(copy: Copy) -> None:
    text = page_of(copy)
    assert "quay · 2 GPUs" in text and "1\xa0×\xa0L40S" in text and "2\xa0×\xa0L40S" in text
    where = next(link for link in links(text) if "gpu_count=2" in link and "max_model_len=32768" in link)
    assert f"host={copy.host_id}" in where and f"artifact={copy.artifact_id}" in where and "gpus=" not in where
    form = client_of("operator").get(where).content.decode()
    assert re.search(r'name="max_model_len"[^>]*value="32768"|value="32768"[^>]*name="max_model_len"', form)
    assert re.search(r'name="gpu_count"[^>]*value="2"|value="2"[^>]*name="gpu_count"', form)
    assert f'<option value="{copy.host_id}" selected>' in form
    assert links(page_of(copy, "viewer")) == []


def test_a_host_of_several_kinds_gets_the_cards_of_this_kind(copy: Copy) -> None:
    Gpu.objects.create(host=copy.host, uuid="GPU-small", index=2, name="NVIDIA L4", total_mib=23_034)
    found = links(page_of(copy))
    assert any("gpus=GPU-quay-0&gpus=GPU-quay-1" in link for link in found)
    assert any("gpus=GPU-small" in link and "gpu_count=1" in link for link in found)


def test_a_host_without_gpus_is_asked_for_its_processor(copy: Copy) -> None:
    Gpu.objects.all().delete()
    found = links(page_of(copy))
    assert found and all("device=cpu" in link and "gpu_count" not in link for link in found)


def test_where_no_copy_lies_nothing_can_be_started(copy: Copy) -> None:
    other = builders.make_host("pier")
    Gpu.objects.create(host=other, uuid="GPU-h", index=0, name="NVIDIA H100 80GB HBM3", total_mib=81_559)
    text = page_of(copy)
    assert "1\xa0×\xa0H100 80GB HBM3" in text
    assert all(f"host={copy.host_id}" in link for link in links(text))
    Copy.objects.update(usable=False)
    assert links(page_of(copy)) == []


def test_what_an_address_says_is_read_like_a_form_and_nonsense_is_left_out(copy: Copy) -> None:
    new = reverse("deployment-new")
    asked = {"artifact": copy.artifact_id, "max_model_len": "9" * 40, "gpu_count": "x", "device": "toaster",
             "host": "1e9", "gpus": "GPU-nobody", "people": "-4"}  # fmt: skip
    form = client_of("operator").get(new, asked)
    assert form.status_code == 200
    initial: dict[str, Any] = form.context["form"].initial
    assert initial["artifact"] == copy.artifact_id and initial["device"] == "auto" and initial["gpu_count"] == 1
    assert not {"max_model_len", "host", "gpus", "people"} & set(initial)


def test_a_model_whose_files_say_nothing_is_not_guessed_at(copy: Copy) -> None:
    Artifact.objects.update(facts={"format": "hf", "tasks": ["generate"]})
    said = "The model's files do not say enough to estimate this."
    assert said in page_of(copy)
    assert said in page_of(copy, name="model-elsewhere")


def test_gpus_that_nobody_has_are_fetched_when_someone_opens_them(copy: Copy) -> None:
    assert "RTX 4090" not in page_of(copy)
    whole = page_of(copy, "viewer", "model-elsewhere")
    assert "1\xa0×\xa0RTX 4090" in whole and "1\xa0×\xa0L40S" not in whole and "<h1>" in whole
    part = client_of("viewer").get(
        f"{reverse('model-elsewhere', args=[copy.artifact.model_id])}?part=table", headers={"HX-Request": "true"}
    )
    assert "RTX 4090" in part.content.decode() and b"<h1>" not in part.content


def test_fifty_hosts_of_many_kinds_cost_no_more_questions_and_few_rows(copy: Copy) -> None:
    def asked() -> tuple[int, str]:
        client, address = client_of("operator"), reverse("model", args=[copy.artifact.model_id])
        with CaptureQueriesContext(connection) as found:
            text = client.get(address).content.decode()
        return len(found), text

    few, _text = asked()
    hosts = [Host.objects.create(name=f"h{n}", token_hash=f"h{n}", ram_total_mib=64_000 + 9_000 * n) for n in range(50)]
    for n, host in enumerate(hosts[:25]):
        for index in range(8):
            Gpu.objects.create(
                host=host, uuid=f"G{n}-{index}", index=index, name=f"Card {n}", total_mib=16_000 + 2_000 * n
            )
    many, text = asked()
    assert many == few
    assert text.count('<tr><th scope="row"><b>') < 80
    assert text.count("Card ") and "h49" in text


# --- what does not fit ------------------------------------------------------------------------------------------------


def large(copy: Copy, name: str) -> str:
    """The page of a large model, and the list; both say the same of it."""
    Artifact.objects.filter(pk=copy.artifact_id).update(facts={**facts(name).to_dict(), "chat_template": True})
    fits.freshen()
    return page_of(copy).replace("\xa0", " ")


def said(copy: Copy) -> str:
    copy.artifact.refresh_from_db()
    kind, word, text = fits_word(copy.artifact.fits)
    assert (kind, str(word)) == ("bad", "Too big")
    return text.replace("\xa0", " ")


def test_too_big_says_by_how_much_and_what_would_help(copy: Copy) -> None:
    Gpu.objects.filter(index=1).delete()
    text = large(copy, "Qwen--Qwen3-32B")
    assert re.fullmatch(r"needs ≈ 6\d\.\d GiB, has 43\.\d \(1 × L40S\); fits on 2 × L40S", said(copy)), said(copy)
    assert re.search(r"About 6\d\.\d GiB are needed and 43\.\d usable\. Fits on 2 × L40S\.", text)
    assert said(copy) in client_of("operator").get(reverse("models")).content.decode().replace("\xa0", " ")
    assert said(copy) in client_of("operator").get(reverse("deployment-new")).content.decode().replace("\xa0", " ")


def test_of_several_gpus_it_is_said_of_each(copy: Copy) -> None:
    large(copy, "Qwen--Qwen3-235B-A22B")
    assert re.fullmatch(r"needs ≈ 22\d GiB of each, has 42\.\d \(2 × L40S\); fits on [48] × .+", said(copy))


def test_a_shorter_conversation_comes_before_other_machines() -> None:
    needs, card = Needs(facts("Qwen--Qwen3-8B")), Machine("NVIDIA L4", 23_034, 1, capability=(8, 9))
    longest = max(n for n in range(1024, 41_984, 1024) if answer(needs, card, n, "0.32.0").verdict in fits.GOOD)
    told = short(needs, card, 40_960, "0.32.0", usual_by_size())
    assert (told.context, told.other) == (longest, None)
    assert would_fit(told.context, None) == f"fits with {longest:,} tokens"


def test_a_team_without_a_gpu_learns_what_would_help(copy: Copy) -> None:
    Gpu.objects.all().delete()
    Host.objects.update(ram_total_mib=16_384)
    text = large(copy, "Qwen--Qwen3-8B")
    assert re.fullmatch(r"needs ≈ 19\.\d GiB, has 16\.0 \(processor, 16.0 GiB\); fits on 1 × L4", said(copy)), said(
        copy
    )
    assert "GiB of memory are needed, and 16.0 GiB are there. Fits on 1 × L4." in text


@pytest.mark.parametrize(
    ("gpus", "processor", "head"),
    [(1, False, "GPUs"), (0, True, "Processors"), (1, True, "GPUs and processors")],
    ids=["gpus", "processors", "both"],
)
def test_the_table_is_headed_by_what_its_rows_are(copy: Copy, gpus: int, processor: bool, head: str) -> None:
    if not gpus:
        Gpu.objects.all().delete()
    elif processor:
        builders.make_host("pier")
    text = page_of(copy)
    assert f'<th scope="col">{head}</th>' in text
    assert f"for {head.replace('Processors', 'processors')} that nothing else uses" in text
