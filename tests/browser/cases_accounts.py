"""Sign-in, the first admin, one's own account, the record of who did what."""

from panel import audit
from panel.accounts import services
from panel.accounts.actor import Actor
from panel.accounts.models import User
from tests.browser.cases import case


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
    services.create_token(user, "nightly evaluation on the build machine", actor=user, days=90)
    ended, _plain = services.create_token(user, "old laptop", actor=user)
    services.revoke_token(ended, actor=user)
    return "/account"


@case("account-no-token", role="viewer")
def account_no_token() -> str:
    return "/account"


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
