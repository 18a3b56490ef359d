"""Hidden secrets that come back are put in again where they belong, and under no other name."""

from typing import Any

import pytest

from deployments.hidden import restored, still_hidden
from deployments.services import parse_spec
from panel.core.errors import Invalid
from panel.core.mask import HIDDEN, mask

KEPT = {
    "env": {"HF_TOKEN": "one-secret", "COLOUR": "red"},
    "extra_args": ["--hf-token", "two-secret", "--seed", "1", "--api-key=three-secret"],
    "options": {"api_key": ["four", "five"], "stores": [{"name": "a", "password": "six"}]},
}
SHOWN = mask(KEPT)


def test_what_comes_back_as_it_was_shown_is_as_it_was() -> None:
    assert "secret" not in str(SHOWN) and "four" not in str(SHOWN) and "six" not in str(SHOWN)
    assert restored(SHOWN, KEPT) == KEPT
    assert restored(KEPT, KEPT) == KEPT


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (["--seed", "2", "--hf-token", HIDDEN], ["--seed", "2", "--hf-token", "two-secret"]),
        ([f"--api-key={HIDDEN}"], ["--api-key=three-secret"]),
        (["--hf-token", "new", f"--api-key={HIDDEN}"], ["--hf-token", "new", "--api-key=three-secret"]),
        (["--served-model-name", HIDDEN], ["--served-model-name", HIDDEN]),
        ([HIDDEN], [HIDDEN]),
        (["--hf-token", HIDDEN, "--hf-token", HIDDEN], ["--hf-token", "two-secret", "--hf-token", HIDDEN]),
        ([f"--served-model-name={HIDDEN}"], [f"--served-model-name={HIDDEN}"]),
        ([], []),
    ],
)
def test_a_command_line_that_was_changed(sent: list[Any], stored: list[Any]) -> None:
    assert restored({"extra_args": sent}, KEPT) == {"extra_args": stored}


def test_no_secret_gets_another_name() -> None:
    assert restored({"env": {"COLOUR": HIDDEN, "GREETING": HIDDEN}}, KEPT) == {
        "env": {"COLOUR": HIDDEN, "GREETING": HIDDEN}
    }
    assert restored({"env": {"HF_TOKEN": HIDDEN}}, {}) == {"env": {"HF_TOKEN": HIDDEN}}
    assert restored({"env": HIDDEN}, KEPT) == {"env": HIDDEN}
    stores = {"options": {"stores": [{"name": "a", "password": HIDDEN}, {"name": "b", "password": "new"}]}}
    stores = restored(stores, KEPT)["options"]["stores"]
    assert stores == [{"name": "a", "password": "six"}, {"name": "b", "password": "new"}]


@pytest.mark.parametrize("field", ["env", "extra_args", "options"])
def test_a_hidden_one_of_nothing_kept_is_refused_by_its_field(field: str) -> None:
    assert still_hidden(SHOWN[field]) and not still_hidden(KEPT[field])
    assert still_hidden(restored(SHOWN[field], {}))


def test_a_spec_with_a_hidden_secret_is_none() -> None:
    with pytest.raises(Invalid) as refused:
        parse_spec({"artifact_id": 1, "env": {"HF_TOKEN": HIDDEN}})
    assert list(refused.value.fields) == ["env"]
    assert parse_spec({"artifact_id": 1, "env": {"HF_TOKEN": "real"}}).env == {"HF_TOKEN": "real"}
