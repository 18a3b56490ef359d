"""Every code that the catalog can show has its sentence, and every sentence fills with what its code brings."""

import re
from pathlib import Path

import models_catalog
from models_catalog import wording
from models_catalog.facts import BLOCKING

ROOM = Path(models_catalog.__path__[0])
RAISED = re.compile(r'(?:Unusable\(|code=|self\.say\(|"code": )"([a-z_]+)"')
# Codes that are built from parts or come from the agent.
BUILT = {
    "adapter_only",
    "projector_only",
    "root_not_allowed",
    "not_supported_here",
    "incomplete_download",
    "leftover_parts",
}


def codes_in(*places: Path) -> set[str]:
    found: set[str] = set()
    for place in places:
        for file in [place] if place.is_file() else place.rglob("*.py"):
            found |= set(RAISED.findall(file.read_text()))
    return found


def test_every_code_has_a_sentence() -> None:
    known = {*wording.FILES, *wording.FOLDERS, *wording.SERVING}
    used = codes_in(ROOM / "inspect", ROOM / "serving.py", ROOM / "services.py", ROOM / "record.py") | BUILT
    assert len(used) > 25, "the pattern no longer finds the codes"
    assert used <= known
    assert set(wording.FILES) >= BLOCKING


def test_whatever_the_agent_says_of_a_deletion_has_a_sentence() -> None:
    agent = ROOM.parent / "panel" / "fleet" / "agent" / "delete.py"
    said = set(re.findall(r'Refused\("([a-z_.]+)"', agent.read_text()))
    assert len(said) > 5
    assert said <= set(wording.DELETES)


def test_sentences_survive_missing_and_strange_parameters() -> None:
    for table, say in (
        (wording.FILES, wording.of_file),
        (wording.FOLDERS, wording.of_folder),
        (wording.SERVING, wording.of_serving),
        (wording.DELETES, wording.of_deletion),
    ):
        for code in table:
            for params in ({}, {"file": "100%s", "files": ["a", "b", "c", "d", "e"]}, None):
                words = say({"code": code, "params": params})
                assert words.text
                assert "%(" not in words.text + words.hint


def test_long_lists_are_cut() -> None:
    words = wording.of_file({"code": "missing_parts", "params": {"files": [f"f{n}" for n in range(9)]}})
    assert "f0, f1, f2, 6 more" in words.text


def test_an_unknown_code_is_shown_as_such() -> None:
    assert "from_the_future" in wording.of_file({"code": "from_the_future"}).text
