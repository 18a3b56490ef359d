"""In a real browser: a host set aside with a reason, a GPU of it, renamed, its door's key replaced, and forgotten."""

from collections.abc import Callable

from django.utils import timezone
from playwright.sync_api import Page, expect

from panel.audit.models import Event
from panel.fleet import doors, live, services
from panel.fleet.models import Gpu, Host, Job
from tests.browser.cases_fleet import DOOR, add_runs, make_host


def state(page: Page) -> str:
    return page.locator("#live .page-head").inner_text()


def test_a_host_is_set_aside_and_taken_back(transactional_db: None, visit: Callable[..., Page]) -> None:
    row = make_host("atlas", gpus=2, door=DOOR)
    page = visit(f"/hosts/{row.pk}/")
    page.locator("#drain").click()
    page.locator("#ask-drain").get_by_label("Why (shown to everyone").fill("new <b>disk</b>")
    page.locator("#ask-drain").get_by_role("button", name="Set aside").click()
    expect(page.locator("#live")).to_contain_text("new <b>disk</b>")
    expect(page.locator("#live")).to_contain_text("Set aside by admin-person")
    assert Host.objects.get().schedulable is False
    page.locator("#undrain").click()
    expect(page.locator("#drain")).to_be_visible()

    gpu = Gpu.objects.get(index=1)
    page.locator(f"#gpu-{gpu.pk}").click()
    page.locator(f"#ask-gpu-{gpu.pk}").get_by_label("Why").fill("fan")
    page.locator(f"#ask-gpu-{gpu.pk}").get_by_role("button", name="Set aside").click()
    expect(page.locator("#live")).to_contain_text("fan")
    assert list(Gpu.objects.values_list("index", "schedulable").order_by("index")) == [(0, True), (1, False)]
    page.get_by_role("button", name="Take back GPU 1").click()
    expect(page.get_by_role("button", name="Set aside GPU 1")).to_be_visible()
    verbs = ["host.drained", "host.undrained", "host.gpu_set_aside", "host.gpu_taken_back"]
    assert list(Event.objects.filter(verb__startswith="host.").order_by("pk").values_list("verb", flat=True)) == verbs


def test_the_page_notices_by_itself_that_contact_is_lost(transactional_db: None, visit: Callable[..., Page]) -> None:
    row = make_host("atlas", door=DOOR)
    page = visit(f"/hosts/{row.pk}/")
    expect(page.locator("#live")).to_contain_text("Connected")
    page.locator("#drain").click()  # a question that is open stays open when the page changes below it
    Host.objects.update(lost_at=timezone.now())
    live.sse.publish(live.HOSTS, "changed", {})
    expect(page.locator("#live")).to_contain_text("No contact")
    expect(page.locator("#announce")).to_contain_text("atlas: no contact")
    expect(page.locator("#ask-drain")).to_be_visible()


def test_renamed_and_given_a_new_key(transactional_db: None, visit: Callable[..., Page]) -> None:
    row = make_host("atlas", door=DOOR)
    make_host("quay", is_local=True)
    doors.order_for(row)
    page = visit(f"/hosts/{row.pk}/")
    page.locator("#rename").click()
    page.get_by_label("Name").fill("quay")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_text("There is another host of this name")).to_be_visible()
    page.get_by_label("Name").fill("borealis")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("borealis")
    before = services.work_of(Host.objects.get(pk=row.pk)).door
    page.locator("#door-key").click()
    page.locator("#ask-key").get_by_role("button", name="Replace its key").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("borealis")
    after = doors.order_for(Host.objects.get(pk=row.pk))
    assert before is not None and after is not None and after.accepts[1:] == before.accepts


def test_forgotten_only_when_somebody_is_sure(transactional_db: None, visit: Callable[..., Page]) -> None:
    row = make_host("spark", seconds_ago=900, lost_at=timezone.now(), door=DOOR)
    add_runs(row)
    page = visit(f"/hosts/{row.pk}/")
    page.locator("#forget").click()
    asked = page.locator("#ask-forget")
    asked.get_by_role("button", name="Forget it").click()
    expect(page.get_by_text("Confirm that you give them up")).to_be_visible()
    page.goto(page.url.partition("/hosts/")[0] + f"/hosts/{row.pk}/")
    page.locator("#forget").click()
    asked.get_by_label("2 deployments may still run there").check()
    asked.get_by_role("button", name="Forget it").click()
    expect(page.get_by_text("is no longer a host of Berth")).to_be_visible()
    assert not Host.objects.exists() and set(Job.objects.values_list("state", flat=True)) == {"ended"}
