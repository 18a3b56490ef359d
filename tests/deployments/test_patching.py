"""A patch: the fields of a spec to set, applied and asked of the planner."""

from typing import Any

import pytest

from deployments import patching, preflight
from deployments.spec import DeploymentSpec
from panel.core.errors import Invalid
from tests.deployments import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def spec(db: None) -> DeploymentSpec:
    copy = builders.make_copy(builders.make_host(gpus=1))
    return DeploymentSpec(artifact_id=copy.artifact_id, options={"max_model_len": 4096}, env={"OMP_NUM_THREADS": "8"})


def test_a_patch_sets_its_fields_and_leaves_the_rest(spec: DeploymentSpec) -> None:
    made = patching.apply(spec, {"options": {"max_model_len": 2048, "dtype": "half"}, "gpu_count": 1})
    assert made.options == {"max_model_len": 2048, "dtype": "half"} and made.env == spec.env
    assert spec.options == {"max_model_len": 4096}


@pytest.mark.parametrize("patch", [{"port": 1}, {"gpu_count": 0}, {"options": ["x"]}])
def test_what_no_spec_can_be_is_refused(spec: DeploymentSpec, patch: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        patching.apply(spec, patch)


def test_the_planner_says_whether_it_is_accepted(spec: DeploymentSpec) -> None:
    assert patching.accepted(spec, {"options": {"max_model_len": 2048}}, "chat").ok
    refused = patching.accepted(spec, {"options": {"no_such": 1}}, "chat")
    assert not refused.ok and refused.reason["code"] == "flag.unknown"


def test_several_patches_of_one_look_read_the_fleet_once(spec: DeploymentSpec, django_assert_num_queries: Any) -> None:
    fleet = preflight.Fleet.of(spec)
    assert patching.accepted(spec, {}, "chat", fleet=fleet).ok  # an engine's flags are read once a process
    with django_assert_num_queries(0):
        for length in (1024, 2048, 3072):
            assert patching.accepted(spec, {"options": {"max_model_len": length}}, "chat", fleet=fleet).ok
