"""Sign-in, the first admin, one's own account, the record of who did what."""

from datetime import timedelta

from django.test import Client
from django.utils import timezone

from deployments.models import Revision
from panel import audit
from panel.accounts import links, people, secret_store, services
from panel.accounts.actor import Actor
from panel.accounts.models import OneTimeLink, PersonSession, User
from tests.browser.cases import case
from tests.deployments import builders

WINDOWS = "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:140.0) Gecko/20100101 Firefox/140.0"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 Version/19.0 Safari/604.1"


@case("sign-in", role=None)
def sign_in() -> str:
    User.objects.create_user("ada")
    return "/login?next=/activity"


@case("sign-in-nobody-yet", role=None)
def sign_in_nobody_yet() -> str:
    return "/login"


@case("first-admin", role=None)
def first_admin() -> str:
    link = services.first_admin_link()
    assert link
    return "/first-admin/" + link.rpartition("/")[2]


@case("first-admin-old-link", role=None, status=404)
def first_admin_old_link() -> str:
    return "/first-admin/this-one-was-used"


@case("account", role="operator")
def account() -> str:
    user = User.objects.create(username="operator-person", role="operator")  # the one who will look
    copy = builders.make_copy(builders.make_host())
    chat, helper = (builders.make_deployment(copy, name=name) for name in ("support-chat", "search-embeddings"))
    services.create_token(user, "nightly evaluation on the build machine", actor=user, days=90)
    services.create_token(user, "deploy job", actor=user, scope="api:write", deployment_ids=[chat.pk, helper.pk])
    ended, _plain = services.create_token(user, "old laptop", actor=user)
    services.revoke_token(ended, actor=user)
    signed_in(user, WINDOWS, "198.51.100.7", minutes=180)
    signed_in(user, PHONE, "2001:db8::17", minutes=4000)
    return "/account"


@case("account-no-token", role="viewer")
def account_no_token() -> str:
    return "/account"


def signed_in(user: User, agent: str, address: str, *, minutes: int) -> None:
    Client().force_login(user)
    at = timezone.now() - timedelta(minutes=minutes)
    newest = PersonSession.objects.filter(user=user, agent="").order_by("-since").values("pk")[:1]
    PersonSession.objects.filter(pk__in=newest).update(agent=agent, address=address, since=at, last_seen_at=at)


def crowd() -> tuple[User, User]:
    """The admin who will look, and somebody; with others around."""
    admin = User.objects.create(username="admin-person", role="admin", last_seen_at=timezone.now())
    ago = timezone.now() - timedelta(minutes=7)
    mei = User.objects.create(username="mei.chen", role="operator", last_seen_at=ago)
    User.objects.create(username="a-name-that-is-rather-long-for-a-table@example.org", role="viewer")
    User.objects.create(username="otto", role="viewer", is_active=False, last_seen_at=ago - timedelta(days=40))
    return admin, mei


@case("people")
def people_list() -> str:
    admin, _mei = crowd()
    links.invite(label="Lin, who looks after the search service", role="operator", actor=admin)
    links.invite(label="Otto again", role="viewer", actor=admin)
    OneTimeLink.objects.filter(label="Otto again").update(expires_at=timezone.now() - timedelta(days=2))
    return "/people/"


@case("people-nobody-matches")
def people_nobody() -> str:
    return "/people/?q=nobody+like+this"


@case("people-many")
def people_many() -> str:
    User.objects.bulk_create(User(username=f"person-{n:03}", role="viewer") for n in range(160))
    return "/people/?page=2"


@case("person")
def person() -> str:
    _admin, mei = crowd()
    services.create_token(mei, "nightly", actor=mei, days=30)
    services.create_token(mei, "dashboards", actor=mei, scope="api:read")
    signed_in(mei, WINDOWS, "198.51.100.7", minutes=9)
    signed_in(mei, PHONE, "2001:db8::17", minutes=500)
    return f"/people/{mei.pk}/"


@case("person-disabled")
def person_disabled() -> str:
    admin, mei = crowd()
    services.create_token(mei, "nightly", actor=mei)
    people.disable(mei, actor=admin)
    return f"/people/{mei.pk}/"


@case("person-oneself")
def person_oneself() -> str:
    admin, _mei = crowd()
    return f"/people/{admin.pk}/"


@case("invitation", role=None)
def invitation() -> str:
    admin, _mei = crowd()
    _link, url = links.invite(label="Lin", role="operator", actor=admin)
    return "/invite/" + url.rpartition("/")[2]


@case("invitation-while-signed-in", role="viewer")
def invitation_signed_in() -> str:
    admin, _mei = crowd()
    _link, url = links.invite(label="Lin", role="admin", actor=admin)
    return "/invite/" + url.rpartition("/")[2]


@case("invitation-old-link", role=None, status=404)
def invitation_old() -> str:
    return "/invite/this-one-was-used"


@case("new-password", role=None)
def new_password() -> str:
    admin, mei = crowd()
    _link, url = links.make_reset(mei, actor=admin)
    return "/new-password/" + url.rpartition("/")[2]


@case("activity-empty", role="viewer")
def activity_empty() -> str:
    return "/activity?q=nothing+like+this"


@case("activity", role="viewer")
def activity() -> str:
    mei = Actor("mei.chen", 71, "10.0.4.37", "operator", "browser")
    bot = Actor("ci-bot", 72, "10.0.9.4", "operator", "token nightly")
    chat, helper = (
        ("deployment", 12, "support-chat"),
        ("deployment", 13, "a-deployment-with-quite-a-long-name-for-a-table"),
    )
    audit.record("first_admin.created", ("user", 1, "mei.chen"), actor=mei)
    audit.record(
        "deployment.created", chat, actor=mei, after={"name": "support-chat", "gpus": [0, 1], "dtype": "bfloat16"}
    )
    audit.record("deployment.started", chat, actor=mei, revision=3)
    audit.record(
        "deployment.edited", helper, actor=bot,
        before={"max_model_len": 16384, "max_num_seqs": 1024, "env": {"HF_TOKEN": "x"}},
        after={"max_model_len": 32768, "max_num_seqs": 256, "env": {"HF_TOKEN": "y", "VLLM_LOGGING_LEVEL": "DEBUG"}},
    )  # fmt: skip
    audit.record("host.joined", ("host", 1, "atlas"), actor=None, hostname="atlas")
    audit.record("run.failed", ("run", "0" * 32, "draft-writer"), actor=None, outcome="failed")
    for _ in range(24):
        audit.record("login.failed", actor=Actor(address="198.51.100.7", via="browser"), outcome="denied")
    audit.record("hosts.manage", ("address", "", "POST /hosts/1/engine"), actor=mei, outcome="denied")
    audit.record("kettle.boiled", ("kettle", 1, "a verb without a sentence"), actor=mei)
    return "/activity"


@case("secrets")
def secrets() -> str:
    admin, _mei = crowd()
    copy = builders.make_copy(builders.make_host())
    secret_store.keep("hf-token", "hf_something", team=False, actor=Actor.from_user(admin))
    secret_store.keep(
        "a-name-that-is-rather-long-for-a-line-on-a-telephone-v2.1", "x", team=False, actor=Actor.from_user(admin)
    )
    secret_store.keep("hf-token-of-the-lab", "hf_something", team=True, actor=Actor.from_user(admin))
    for name in ("support-chat", "search-embeddings"):
        row = builders.make_deployment(copy, name=name)
        spec = {**row.revision.spec, "env_secrets": {"HF_TOKEN": "hf-token-of-the-lab"}}
        Revision.objects.filter(pk=row.revision_id).update(spec=spec)
    return "/account/secrets"


@case("secrets-none", role="operator")
def secrets_none() -> str:
    return "/account/secrets"
