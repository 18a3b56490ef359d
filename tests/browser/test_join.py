"""In a real browser: an admin makes a code, a machine joins with it, and the open page says so by itself."""

import re
from collections.abc import Callable

import httpx
from django.conf import settings
from django.utils import timezone
from playwright.sync_api import Page, expect

from panel.fleet import wire
from panel.fleet.joining import agent_bundle
from panel.fleet.models import Host, JoinCode
from tests.browser.cases_fleet import FACTS
from tests.browser.checks import shoot, violations


def test_a_code_is_made_and_the_page_waits_for_the_machine(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = visit("/hosts/", role="admin")
    page.get_by_role("link", name="Add a host").click()
    page.get_by_label("Name of the host").fill("gpu-2")
    page.get_by_role("button", name="Make the code").click()
    command = page.locator("#join-command").inner_text()
    found = re.search(r"[0-9A-Z]{4}-[0-9A-Z]{4}-[0-9A-Z]{4}", command)
    assert found and "sha256sum -c -" in command
    expect(page.locator("#join-state")).to_contain_text("Waiting for the machine")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        shoot(page, f"join-made.{width}")
        assert not violations(page)

    # The machine: it joins and reports, as its agent would.
    machine = httpx.Client(base_url=page.url.partition("/hosts")[0], headers={"Content-Type": "application/json"})
    asked = wire.JoinRequest(code=found.group(), hostname="box", agent_version="0.1.0").model_dump_json()
    reply = machine.post("/agent/v1/join", content=asked).json()
    expect(page.locator("#join-state")).to_contain_text("gpu-2 has joined. Waiting for its first report.")
    gpu = {"index": 0, "uuid": "GPU-1", "name": "NVIDIA H100", "total_mib": 81_559, "used_mib": 0}
    said = wire.Report.model_validate(
        {
            "agent_version": "0.1.0",
            "sent_at": timezone.now().timestamp(),
            "rev": 1,
            "facts": {**FACTS, "gpus": [gpu]},
        }
    )
    headers = {"Authorization": f"Bearer {reply['token']}"}
    assert machine.post("/agent/v1/report", content=said.model_dump_json(), headers=headers).status_code == 200
    expect(page.locator("#join-state")).to_contain_text("gpu-2 has joined: 1 GPU.")
    expect(page.locator("#announce")).to_contain_text("gpu-2 has joined: 1 GPU.")  # said aloud once
    expect(page.locator("#wait")).to_contain_text("NVIDIA H100")
    page.get_by_role("link", name="See the hosts").click()
    expect(page.locator(f"#host-{Host.objects.get(name='gpu-2').pk}")).to_be_visible()
    assert page.complaints == []  # type: ignore[attr-defined]


def test_the_script_is_read_before_it_runs_and_a_code_is_taken_back(
    transactional_db: None, visit: Callable[..., Page]
) -> None:
    page = visit("/hosts/new", role="admin")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Read the script").click()
    text = opened.value.locator("pre").inner_text()
    assert text.startswith("#!/bin/sh") and "--remove" in text
    assert agent_bundle.bundle().sha256 in text and settings.BERTH_PUBLIC_URL.split(":")[0] in text
    page.get_by_label("Name of the host").fill("gpu-3")
    page.get_by_role("button", name="Make the code").click()
    page.get_by_role("button", name="Take the code back").click()
    expect(page.locator(".lines")).to_contain_text("This code was taken back.")
    assert JoinCode.objects.get().revoked_at
