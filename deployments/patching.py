"""A change that one click can make: a patch, the fields of a spec to set (`options`, `extra_args` and `env` whole).

Whoever offers one (the planner, the check before a start, a failed start, a running deployment) offers the same shape,
`placement.Change.patch`; here it is applied, and the planner that launches is asked whether it would take the result.
"""

from collections.abc import Mapping
from typing import Any

from deployments import preflight
from deployments.services import parse_spec
from deployments.spec import DeploymentSpec
from panel.core.errors import Invalid


def apply(spec: DeploymentSpec, patch: Mapping[str, Any]) -> DeploymentSpec:
    """The spec with these fields set. Raises Invalid with a sentence per field that cannot be so."""
    return parse_spec({**spec.model_dump(mode="json"), **patch})


def accepted(
    spec: DeploymentSpec, patch: Mapping[str, Any], name: str, *, fleet: preflight.Fleet | None = None
) -> preflight.Check:
    """What a start with the patch would do now: `ok` when it is accepted. Raises Invalid.

    `fleet` is what was read for another check of the same look (`preflight.Fleet.of`), so that several patches cost
    no more reads than one.
    """
    return preflight.check(apply(spec, patch), name=name, fleet=fleet)


def tried(
    spec: DeploymentSpec, patch: Mapping[str, Any], name: str, *, fleet: preflight.Fleet | None = None
) -> preflight.Check | None:
    """The same of a patch that is only proposed: None where the spec cannot be so, which makes it no proposal."""
    try:
        return accepted(spec, patch, name, fleet=fleet)
    except Invalid:
        return None
