"""A deploy button pressed twice makes one deployment; a name that someone else took is still refused."""

from typing import Any

import pytest

from deployments import services
from deployments.models import Deployment
from deployments.spec import DeploymentSpec
from panel.accounts.models import User
from panel.audit.models import Event
from panel.core.errors import Invalid
from tests.deployments import builders

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)


@pytest.fixture
def spec(db: None) -> DeploymentSpec:
    return DeploymentSpec(artifact_id=builders.make_copy(builders.make_host()).artifact_id)


@pytest.fixture
def maria(db: None) -> Any:
    return User.objects.create(username="maria", role="operator")


def test_the_same_again_gives_the_one_that_was_made(spec: DeploymentSpec, maria: Any) -> None:
    first = services.create(name="chat", spec=spec, actor=maria)
    again = services.create(name="chat", spec=spec, actor=maria)
    assert again.pk == first.pk
    assert (first.revisions.count(), Event.objects.filter(verb="deployment.created").count()) == (1, 1)


def test_another_person_other_settings_or_a_later_time_are_refused(spec: DeploymentSpec, maria: Any) -> None:
    row = services.create(name="chat", spec=spec, actor=maria)
    other = spec.model_copy(update={"task": "embed"})
    for values in (
        {"spec": other, "actor": maria},
        {"spec": spec, "actor": User.objects.create(username="ken")},
        {"spec": spec, "actor": None},
    ):
        with pytest.raises(Invalid):
            services.create(name="chat", **values)
    Deployment.objects.filter(pk=row.pk).update(created_at=row.created_at - 2 * services.PRESSED_TWICE)
    with pytest.raises(Invalid):
        services.create(name="chat", spec=spec, actor=maria)
