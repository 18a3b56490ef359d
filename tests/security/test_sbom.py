"""The bill of materials says what the lock files say, and an audit that could not look is no clean bill."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from panel import lock, sbom


def test_the_bill_names_everything_that_is_installed() -> None:
    made = sbom.bill()
    names = {c["name"] for c in made["components"] if c["purl"].startswith("pkg:pypi/")}
    entries = lock.read(lock.LOCK.read_text(encoding="utf-8"))
    shipped = {re.sub(r"[-_.]+", "-", e.name).lower() for e in entries if e.groups & set(sbom.SHIPPED)}
    only_dev = {re.sub(r"[-_.]+", "-", e.name).lower() for e in entries} - shipped
    assert names == shipped and only_dev and not names & only_dev
    assert {"htmx.org", "@tabler/core"} <= {c["name"] for c in made["components"]}
    assert only_dev <= {c["name"] for c in sbom.bill(lock.GROUPS)["components"]}


def test_the_bill_is_what_cyclonedx_asks_for() -> None:
    """The parts of the schema that a hand could get wrong; `make audit` holds it to the whole schema."""
    made = json.loads(sbom.text())
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made["serialNumber"])
    refs = [component["bom-ref"] for component in made["components"]]
    assert len(refs) == len(set(refs)) > 30, "each is there once"
    assert made["dependencies"][0]["dependsOn"] == refs
    for component in made["components"]:
        assert component["type"] == "library" and component["name"] and component["version"]
        assert re.fullmatch(r"pkg:(pypi|npm)/[A-Za-z0-9._%~/-]+@[A-Za-z0-9._%+-]+", component["purl"]), component[
            "purl"
        ]
    assert sbom.text() == sbom.text(), "the same for the same lock files"


def test_it_is_written_without_a_network_and_without_packages() -> None:
    argv = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, sys.argv.pop(1)); "
            "from panel import sbom; sbom.main(['write', 'agent'])", str(Path(sbom.ROOT))]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "pydantic" in {component["name"] for component in json.loads(done.stdout)["components"]}


def test_an_audit_that_could_not_look_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(sbom.CannotAudit):
        sbom.judged([{"name": "django", "version": "5.2", "vulns": []}, {"name": "celery", "skip_reason": "not found"}])
    with pytest.raises(sbom.CannotAudit):
        sbom.judged([])
    found = [{"name": "django", "version": "5.0", "vulns": [{"id": "PYSEC-1"}, {"id": "PYSEC-2"}]},
             {"name": "celery", "skip_reason": "not found"}]  # fmt: skip
    assert sbom.judged(found) == ["django 5.0: PYSEC-1 PYSEC-2"]
    assert sbom.judged([{"name": "django", "version": "5.2", "vulns": []}]) == []

    def away(folder: Path) -> Path:
        raise sbom.CannotAudit("no network")

    monkeypatch.setattr(sbom, "tools", away)
    assert sbom.audit(Path("nowhere")) == sbom.CANNOT
    assert "LEFT OUT" in capsys.readouterr().err
    assert (sbom.main(["audit"]), sbom.main(["audit", "--must"])) == (0, sbom.CANNOT)
