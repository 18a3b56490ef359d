"""The page of all classes in docs/, made from the rules. `python -m deployments.diagnosis.catalogue` writes it."""

from __future__ import annotations

from pathlib import Path

from deployments.diagnosis.fixes import WORDS
from deployments.diagnosis.rule import Fix, Rule
from deployments.diagnosis.rules import ALL, versions_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "diagnosis.md"
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "ollama": "Ollama"}
HEAD = """# Why a start failed: all classes

This page is made from the rules in `deployments/diagnosis/rules/` (`python -m deployments.diagnosis.catalogue`); a
test fails when it is out of date.

`manage.py diagnose LOG [--engine vllm] [--exit-code N | --signal NAME] [--json]` reads a log without a database and
says the class, the line that proves it, the phase and what helps. `LOG` may be `-` for standard input.

How the cause is chosen:

1. The earliest fatal error counts, not the last exception. Lines that only report another error are never a cause.
2. Engines print some causes beside the exception (NCCL, compilers, a refused setting); then that line is the proof.
3. Where the log says nothing, the exit code or the signal decides. A stop that was asked for is no failure.
4. Of several starts in one log the newest that failed is explained.
5. What is not sure is called not recognised, and the first error is shown as it is.

A rule names its class, patterns, phase, texts, fixes, at least two examples and one near miss. To add one, add it to
the file of its engine and family, run the command above and translate its texts (`make messages`). In the tables, a
phase of "–" means that the log tells it; options in `code` get a number from the log, the host and the run's settings.
"""

COLUMNS = "| class | phase | versions | what it means | what helps |\n|---|---|---|---|---|\n"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for engine, name in ENGINES.items():
        rules = sorted((rule for rule in ALL if rule.engine == engine), key=lambda rule: rule.code)
        parts.append(f"\n## {name} ({len(rules)} classes)\n\n{COLUMNS}")
        parts += [_row(rule) for rule in rules]
    return "".join(parts)


def _row(rule: Rule) -> str:
    helps = "; ".join(dict.fromkeys(_help(fix) for fix in rule.fixes)) or "–"
    cells = (f"`{rule.code}`", rule.phase or "–", versions_of(rule) or "–", f"**{rule.title}.** {rule.why}", helps)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _help(fix: Fix) -> str:
    name = f"`{fix.name}`" if not fix.name.startswith("=") else "the one in the message"
    if fix.say:
        return fix.say.rstrip(".")
    if fix.kind in ("set", "env"):
        known = fix.to and not fix.to.startswith("=")
        word = "set_open" if fix.kind == "set" else "env_open"
        said = WORDS[word if not known else fix.kind] % {"name": name, "to": f"`{fix.to}`"}
        return said.rstrip(".")
    return (WORDS[fix.kind] % {"name": name}).rstrip(".")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
