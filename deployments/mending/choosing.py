"""Fixes for a value that the engine looks up in a list: what was meant, what suits this model, the rest. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.diagnosis.slips import meant
from deployments.engines import parsers
from deployments.mending import edits
from deployments.mending.around import Around
from deployments.mending.fix import Effect, Fix
from deployments.mending.making import patch_fix
from deployments.spec import DeploymentSpec

SLIP, FITS, CHOOSE = 88, 84, 90  # CHOOSE is put back by fix.OPEN, since a person has to
MOST_NAMED = 24


def parser_fixes(spec: DeploymentSpec, name: str, around: Around, there: Sequence[str] = ()) -> list[Fix]:
    """For an option whose value is no parser that the engine has, or that has none. `there`: those that it named."""
    known = tuple(there) or around.parsers.get(name, ())
    now = edits.value_of(spec, name)
    slip = meant(str(now), known) if now else None
    fits = parsers.fitting(name, around.kinds, known)
    found: list[Fix] = []
    if slip:
        found += patch_fix(spec, name, edits.with_option(spec, name, slip), slip, chance=SLIP)
    if fits and fits != slip:
        made = patch_fix(spec, name, edits.with_option(spec, name, fits), fits, chance=FITS)
        found += [fix.told(Effect(True, "effect.fits_model")) for fix in made]
    return [*found, choose(name, known)]


def choose(name: str, known: Sequence[str]) -> Fix:
    """A value that a person chooses among these on the page of the settings."""
    if not known:
        return Fix("settings", "fix.open", {"name": name}, option=name, link="settings", chance=CHOOSE)
    params = {"name": name, "known": list(known[:MOST_NAMED]), "more": max(0, len(known) - MOST_NAMED)}
    code = "fix.choose_more" if params["more"] else "fix.choose"
    return Fix("settings", code, params, option=name, link="settings", chance=CHOOSE)
