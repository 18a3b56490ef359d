"""What an admin does with a host: rename, set aside, take back, forget; and the keys of its door."""

import json
import secrets
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from panel.accounts.actor import Actor
from panel.audit.models import Event
from panel.core.crypto import unseal
from panel.core.errors import Conflict, Invalid, NotFound
from panel.fleet import doors, host_wording, hosts, queries, reports, services, signals, wire
from panel.fleet.models import Gpu, Host, Job

pytestmark = pytest.mark.django_db

MINA = Actor(name="mina", id=None, role="admin")
CERTIFICATE = "ab" * 32


def make(name: str = "atlas", **values: Any) -> Host:
    values = {"last_seen_at": timezone.now(), "facts_at": timezone.now(), "ram_total_mib": 8000, **values}
    return Host.objects.create(name=name, token_hash=secrets.token_hex(8), **values)


def card(host: Host, index: int = 0) -> Gpu:
    return Gpu.objects.create(host=host, uuid=f"GPU-{host.name}-{index}", index=index, name="L4", total_mib=24_000)


def engine(host: Host, **values: Any) -> Job:
    values = {"kind": "engine", "state": "running", "status": {"port": 5}, **values}
    return Job.objects.create(host=host, **values)


def verbs() -> list[str]:
    return list(Event.objects.order_by("pk").values_list("verb", flat=True))


# --- names ----------------------------------------------------------------------------------------------------------


def test_rename() -> None:
    host = make()
    hosts.rename(host, "borealis", actor=MINA)
    hosts.rename(host, "borealis", actor=MINA)
    assert Host.objects.get().name == "borealis"
    (event,) = Event.objects.all()
    assert (event.verb, event.actor) == ("host.renamed", "mina")
    assert (event.before, event.after) == ({"name": "atlas"}, {"name": "borealis"})


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a-", "a/b", "x" * 65, "h\x00", "ä", "other", "<b>"])
def test_names_that_cannot_be(name: str) -> None:
    make("other")
    with pytest.raises(Invalid):
        hosts.rename(make(), name, actor=MINA)
    assert not verbs()


# --- set aside ----------------------------------------------------------------------------------------------------------


def test_drain_and_back() -> None:
    host = make()
    hosts.drain(host, actor=MINA, note="  new\n cooler ")
    row = Host.objects.get()
    said = host_wording.hold(row)
    assert said is not None and (said["by"], said["note"]) == ("mina", "new cooler")
    assert row.schedulable is False and timezone.now() - said["at"] < timedelta(minutes=1)
    hosts.undrain(row, actor=MINA)
    hosts.undrain(row, actor=MINA)
    row = Host.objects.get()
    assert row.schedulable and row.hold is None and host_wording.hold(row) is None
    assert verbs() == ["host.drained", "host.undrained"]
    with pytest.raises(Invalid):
        hosts.drain(row, actor=MINA, note="x" * 201)


def test_one_gpu_and_back_wakes_who_waits(django_capture_on_commit_callbacks: Any) -> None:
    gpu = card(make())
    heard: list[int] = []

    def listen(host_id: int, **_: Any) -> None:
        heard.append(host_id)

    signals.host_back.connect(listen)
    try:
        hosts.set_gpu_schedulable(gpu, False, actor=MINA, note="ECC errors")
        with django_capture_on_commit_callbacks(execute=True):
            hosts.set_gpu_schedulable(gpu, True, actor=MINA)
            hosts.set_gpu_schedulable(gpu, True, actor=MINA)
    finally:
        signals.host_back.disconnect(listen)
    assert verbs() == ["host.gpu_set_aside", "host.gpu_taken_back"]
    assert heard == [gpu.host_id]
    gpu.refresh_from_db()
    assert gpu.schedulable and gpu.hold is None


def test_a_report_does_not_take_back_what_was_set_aside() -> None:
    host = make()
    gpu = card(host)
    hosts.drain(host, actor=MINA)
    hosts.set_gpu_schedulable(gpu, False, actor=MINA)
    reports.take_report(Host.objects.get(), report(facts=facts(gpu)))
    gpu.refresh_from_db()
    assert not gpu.schedulable and not Host.objects.get().schedulable


# --- forgetting -----------------------------------------------------------------------------------------------------------


def test_forget_frees_the_name_and_ends_the_token() -> None:
    token = "its token"
    host = make()
    Host.objects.update(token_hash=services.digest(token))
    card(host)
    old = engine(host, state="ended", open=False)
    hosts.forget(host, actor=MINA)
    assert not Host.objects.exists() and Host.everyone.get().forgotten_at
    assert Job.objects.get(pk=old.pk).host.name == "atlas", "its history stays"
    answer = Client(headers={"Authorization": f"Bearer {token}"}).get("/agent/v1/work")
    assert answer.status_code == 401
    again = make()
    assert again.pk != host.pk and queries.hosts()[0].host == again
    with pytest.raises(NotFound):
        hosts.drain(host, actor=MINA)
    with pytest.raises(NotFound):
        hosts.forget(host, actor=MINA)
    assert verbs() == ["host.forgotten"]


def test_forget_is_refused_while_something_runs() -> None:
    host = make()
    engine(host)
    with pytest.raises(Conflict) as found:
        hosts.forget(host, actor=MINA, sure=True)
    assert found.value.code == "host.in_use"
    Host.objects.update(lost_at=timezone.now())
    with pytest.raises(Conflict) as found:
        hosts.forget(host, actor=MINA)
    assert found.value.code == "host.maybe_in_use"
    assert not verbs()


def test_a_lost_host_is_given_up_when_somebody_is_sure(django_capture_on_commit_callbacks: Any) -> None:
    host = make(lost_at=timezone.now())
    job, scan = engine(host), engine(host, kind="scan", state="ordered", status={})
    heard: list[Any] = []

    def listen(job_id: Any, **_: Any) -> None:
        heard.append(job_id)

    signals.job_changed.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            hosts.forget(host, actor=MINA, sure=True)
    finally:
        signals.job_changed.disconnect(listen)
    job.refresh_from_db()
    assert (job.state, job.open) == ("ended", False)
    assert job.status["refusal"] == {"code": "host_forgotten", "params": {"host": "atlas"}}
    assert set(heard) == {job.pk, scan.pk}


def test_the_panels_own_machine_is_not_forgotten() -> None:
    with pytest.raises(Conflict) as found:
        hosts.forget(make(is_local=True), actor=MINA, sure=True)
    assert found.value.code == "host.local"


# --- doors ----------------------------------------------------------------------------------------------------------------


def facts(gpu: Gpu | None = None) -> wire.HostFacts:
    gpus = [wire.GpuFacts(index=0, uuid=gpu.uuid, name="L4", total_mib=24_000, used_mib=0)] if gpu else []
    return wire.HostFacts(
        hostname="h", os="o", kernel="k", machine="x86_64", cpu_count=1, ram_total_mib=8000, ram_available_mib=1,
        python="3", boot_time=1.0, agent_started=1.0, gpus=gpus,
    )  # fmt: skip


def report(**values: Any) -> wire.Report:
    return wire.Report(**{"agent_version": "1", "sent_at": timezone.now().timestamp(), "rev": 1, **values})


def door(**values: Any) -> wire.DoorFacts:
    return wire.DoorFacts(**{"address": "10.0.0.7", "port": 8443, "certificate": CERTIFICATE, **values})


def test_the_work_carries_the_hash_of_a_key_that_is_made_once() -> None:
    host = make()
    first = services.work_of(host)
    assert first.door is not None
    again = services.work_of(Host.objects.get())
    assert again.door == first.door
    (key,) = json.loads(unseal(Host.objects.get().door_keys))
    assert first.door.accepts == [services.digest(key)]
    assert key not in first.model_dump_json()


def test_two_that_ask_at_once_get_the_same_key() -> None:
    host = make()
    one, other = Host.objects.get(), Host.objects.get()
    assert doors.order_for(one) == doors.order_for(other) == doors.order_for(host)


def test_the_panels_own_machine_needs_no_door() -> None:
    host = make(is_local=True)
    assert services.work_of(host).door is None
    reports.take_report(host, report(door=door()))
    assert Host.objects.get().door == {}


def test_a_key_is_used_when_the_host_says_that_it_takes_it() -> None:
    host = make()
    order = services.work_of(host).door
    assert order is not None and doors.key_for(Host.objects.get()) == ""
    reports.take_report(Host.objects.get(), report(door=door(accepts=order.accepts)))
    first = doors.key_for(Host.objects.get())
    assert services.digest(first) == order.accepts[0]
    hosts.new_door_key(host, actor=MINA)
    row = Host.objects.get()
    both = services.work_of(row).door
    assert both is not None and len(both.accepts) == 2 and both.accepts[1] == order.accepts[0]
    assert doors.key_for(row) == first, "until the host has the new one"
    rev = row.work_rev
    reports.take_report(row, report(rev=rev, door=door(accepts=both.accepts)))
    row = Host.objects.get()
    assert services.digest(doors.key_for(row)) == both.accepts[0] != order.accepts[0]
    last = services.work_of(row).door
    assert last is not None and last.accepts == both.accepts[:1], "the old one is worth nothing now"
    assert row.work_rev > rev, "and the host gets to know"
    assert verbs() == ["host.door_key_replaced"]


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "10.0.0.7/x"},
        {"address": "a b"},
        {"address": ""},
        {"address": "h\r\nX: y"},
        {"port": 0},
        {"port": 70_000},
        {"certificate": "short"},
        {"certificate": CERTIFICATE.upper()},
        {"problem": "died"},
        {"problem": "<script>"},
    ],
)
def test_a_word_about_a_door_that_is_no_address_opens_nothing(changes: dict[str, Any]) -> None:
    reports.take_report(make(), report(door=door(**changes)))
    row = Host.objects.get()
    assert row.door["certificate"] == "" and row.door["address"] == "" and row.door["problem"]
    words = host_wording.door(row)
    assert words is not None and words["words"].text and not words["address"]


@pytest.mark.parametrize(
    ("address", "shown"),
    [("10.0.0.7", "https://10.0.0.7:8443"), ("fd00::7", "https://[fd00::7]:8443"), ("a.lan", "https://a.lan:8443")],
)
def test_a_door_is_shown_as_an_address(address: str, shown: str) -> None:
    host = make()
    order = services.work_of(host).door
    assert order is not None
    reports.take_report(host, report(door=door(address=address, accepts=order.accepts)))
    said = host_wording.door(Host.objects.get())
    assert said is not None and said["address"] == shown and said["words"] is None


# --- words ----------------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_off_is_told() -> None:
    assert host_wording.clock(make(clock_skew_s=3.0)) == ""
    ahead = host_wording.clock(make("b", clock_skew_s=3600.0))
    assert "1\u00a0h ahead" in ahead
    assert "behind" in host_wording.clock(make("c", clock_skew_s=-3600.0))


@pytest.mark.parametrize("code", ["link.version", "link.twin", "link.left", "link.brand_new"])
def test_an_agent_that_is_refused_is_told_while_it_knocks(code: str, settings: Any) -> None:
    now = timezone.now()
    lost = {"lost_at": now} if code == "link.left" else {}
    since = now - timedelta(minutes=5)
    found = {"code": code, "since": since.isoformat(), "at": now.isoformat(), "params": {"agent": "0.0.9"}}
    host = make(link_trouble=found, **lost)
    said = host_wording.trouble(host)
    assert said is not None and said.text
    host.link_trouble = {**found, "at": (now - timedelta(hours=1)).isoformat()}
    assert (host_wording.trouble(host) is None) == (code != "link.left")


# --- the page -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def as_role(django_user_model: Any, settings: Any) -> Any:
    settings.ALLOWED_HOSTS = ["testserver"]

    def client(role: str) -> Client:
        made = Client()
        made.force_login(django_user_model.objects.create(username=f"a {role}", role=role))
        return made

    return client


def test_the_page_shows_what_is_known(as_role: Any) -> None:
    host = make(facts={"os": "Debian 13", "disks": [{"path": "/d", "total_mib": 2048, "free_mib": 1024}]})
    gpu = card(host)
    mine = engine(host, status={"started_at": 1_790_000_000.0, "rss_mib": 2048, "gpu_used_mib": 4096})
    processes = [
        {"pid": 7, "used_mib": 3072, "user": "sam", "name": "train.py", "job_id": None},
        {"pid": 8, "used_mib": 4096, "user": "berth", "name": "vllm", "job_id": str(mine.pk)},
    ]
    Gpu.objects.update(measured={"processes": processes}, used_mib=8000, reserved_mib=5000)
    order = doors.order_for(host)
    assert order is not None
    reports.take_report(host, report(door=door(accepts=order.accepts)))
    text = as_role("admin").get(f"/hosts/{host.pk}/").content.decode()
    for words in ("train.py", "sam", str(mine.pk)[:8], "https://10.0.0.7:8443", CERTIFICATE, "1.0 GiB free of 2.0 GiB"):
        assert words.replace(" ", "\u00a0") in text.replace(" ", "\u00a0"), words
    assert f"/hosts/gpus/{gpu.pk}/aside" in text
    seen = as_role("viewer").get(f"/hosts/{host.pk}/").content.decode()
    assert "train.py" in seen
    for act in ("aside", "forget", "rename", "door-key", "stop-deployments"):
        assert f'/{act}"' not in seen, act


def test_what_an_agent_or_an_admin_says_is_text(as_role: Any) -> None:
    evil = "<script>alert(1)</script>"
    host = make(facts={"os": evil, "cpu_model": evil, "python": evil, "model_roots": [evil]}, agent_version=evil)
    card(host)
    Gpu.objects.update(measured={"processes": [{"pid": 1, "used_mib": 900, "user": evil, "name": evil}]})
    trouble = {"code": "link.twin", "since": "", "at": timezone.now().isoformat(), "params": {"address": evil}}
    Host.objects.update(link_trouble=trouble, door={"problem": evil, "port": evil})
    hosts.drain(host, actor=MINA, note=evil)
    for where in ("/hosts/", f"/hosts/{host.pk}/"):
        text = as_role("admin" if where == "/hosts/" else "viewer").get(where).content.decode()
        assert "<script>alert" not in text and "&lt;script&gt;alert" in text


def test_acts_on_the_page(as_role: Any) -> None:
    host = make()
    gpu = card(host)
    admin = as_role("admin")
    page = f"/hosts/{host.pk}/"

    def press(act: str, **values: str) -> int:
        answer = admin.post(act if act.startswith("/") else page + act, values)
        return int(answer.status_code)

    assert press("aside", note="new disk") == 302
    assert "new disk" in admin.get(page).content.decode()
    assert "new disk" in admin.get("/hosts/").content.decode()
    assert press("back") == 302 and "new disk" not in admin.get(page).content.decode()
    assert press(f"/hosts/gpus/{gpu.pk}/aside", note="fan") == 302 and "fan" in admin.get(page).content.decode()
    assert press(f"/hosts/gpus/{gpu.pk}/back") == 302
    assert press("rename", name="no way") == 422 and press("rename", name="quay") == 302
    assert press("door-key") == 302 and press("stop-deployments") == 302
    engine(host)
    assert press("forget") == 409
    Job.objects.update(state="ended", open=False)
    assert press("forget") == 302
    said = admin.get(page)
    assert said.status_code == 200 and "taken out of Berth" in said.content.decode()
    assert press("aside") == 404 and press(f"/hosts/gpus/{gpu.pk}/aside") == 404
    assert "quay" not in admin.get("/hosts/").content.decode()


def test_the_page_asks_as_often_for_much_as_for_little(as_role: Any) -> None:
    client = as_role("admin")
    host = make()
    counts = []
    for round_ in range(2):
        for n in range(1 + 7 * round_):
            card(host, 10 * round_ + n)
            engine(host)
        with CaptureQueriesContext(connection) as seen:
            assert client.get(f"/hosts/{host.pk}/").status_code == 200
        counts.append(len(seen))
    assert counts[0] == counts[1] <= 15
