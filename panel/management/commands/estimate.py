"""`manage.py estimate`: what a model will need on a GPU, from its files or its config.json alone. No database."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from models_catalog.estimate import ENGINES, Plan, Reason, estimate
from models_catalog.estimate.specs import BadSpec, read_spec
from models_catalog.estimate.words import say, told
from models_catalog.facts import ModelFacts
from models_catalog.inspect.config_only import facts_of_config
from models_catalog.inspect.one import facts_at
from models_catalog.inspect.reading import Unusable
from models_catalog.wording import of_file

REFUSED = 2
WHOLE = (
    "tp", "pp", "dp", "dcp", "max-num-seqs", "max-num-batched-tokens", "block-size", "max-loras", "max-lora-rank",
    "num-speculative-tokens", "draft-full-layers", "draft-sliding-layers", "draft-window", "n-gpu-layers",
    "ubatch-size", "parallel",
)  # fmt: skip
NUMBERS = ("gpu-total-gib", "gpu-free-gib", "util", "kv-gib", "mem-fraction-static")
TEXTS = ("engine-version", "gpu", "device", "max-model-len", "kv-dtype", "kv-value-dtype", "quant")
SWITCHES = ("enforce-eager", "mamba-align", "text-only")
AMOUNTS = (
    "weights_gib",
    "activation_gib",
    "overhead_gib",
    "graphs_gib",
    "kv_gib",
    "kv_tokens",
    "concurrency",
    "max_len",
)


class Command(BaseCommand):
    """Exit codes: 0 answered (whatever the verdict), 2 misused. In a batch a bad line is answered by its error."""

    help = "Estimate a model's memory on a GPU, how many requests fit, and the longest one."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", nargs="?", help="a model's folder, GGUF file or config.json")
        parser.add_argument("--config", help="config.json of a model that is not downloaded yet")
        parser.add_argument("--batch", help="a file with one JSON object a line (- for standard input)")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument("--engine", default="vllm", help=", ".join(ENGINES))
        for name in (*WHOLE, *NUMBERS, *TEXTS):  # read as a batch's values are: 32k, 90%
            parser.add_argument(f"--{name}")
        for name in SWITCHES:
            parser.add_argument(f"--{name}", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["batch"]:
            self.batch(options["batch"])
            return
        path = options["config"] or options["path"]
        if not path:
            raise CommandError(_("Name a model's folder, GGUF file or config.json, or --batch."), returncode=REFUSED)
        try:
            plan = _plan(facts_at(Path(path)), options)
        except Unusable as exc:
            words = of_file(exc.problem.model_dump())
            raise CommandError(f"{words.text} {words.hint}".strip(), returncode=REFUSED) from exc
        except (OSError, ValueError) as exc:
            raise CommandError(str(exc), returncode=REFUSED) from exc
        if options["json"]:
            self.stdout.write(json.dumps(told(plan, _), indent=2, ensure_ascii=False))
        else:
            self.tell(plan)

    def batch(self, name: str) -> None:
        try:
            for line in _lines(name):
                self.stdout.write(_written(_answered(line)))
        except OSError as exc:
            raise CommandError(str(exc), returncode=REFUSED) from exc

    def tell(self, plan: Plan) -> None:
        """The plan for people: each number with its range and where it comes from."""
        answer = plan.to_dict()
        for name in AMOUNTS:
            if name not in answer:
                continue
            low, high = (_shown(end) for end in answer["ranges"][name])
            source = Reason(**answer["sources"][name])
            self.stdout.write(f"{name:15} {_shown(answer[name]):>12}   {low} … {high}   {say(source, _)}")
        for rank in answer.get("ranks", []):
            self.stdout.write(_("Stage %(n)s: ") % {"n": rank["stage"]} + json.dumps(rank))
        self.stdout.write(f"{'verdict':15} {plan.verdict:>12}")
        for reason in plan.reasons:
            self.stdout.write(f"  {say(reason, _)}")


def _plan(facts: ModelFacts, values: dict[str, Any]) -> Plan:
    """Raises ValueError for values that mean nothing, also together with the model's."""
    spec = read_spec(values)
    try:
        return estimate(facts, spec.options, spec.gpu, spec.engine_version)
    except (ArithmeticError, LookupError, TypeError) as exc:
        raise ValueError(_("No model has such values, so nothing can be estimated.")) from exc


def _lines(name: str) -> Iterator[str]:
    """Lines with something on them; bytes that are no text stand as signs, so that the other lines are answered."""
    if name == "-":
        yield from (line for raw in sys.stdin.buffer if (line := raw.decode("utf-8-sig", "replace")).strip())
        return
    with Path(name).open(encoding="utf-8-sig", errors="replace") as file:
        yield from (line for line in file if line.strip())


def _answered(line: str) -> dict[str, Any]:
    """One line's answer, with its id; a line that cannot be read is answered too, so that nothing shifts."""
    values: Any = None
    try:
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        return {"id": values.get("id"), **told(_plan(_facts(values), values), _)}
    except BadSpec as exc:
        error = {"code": "bad_value", "params": {"key": exc.key, "value": exc.value}}
    except Unusable as exc:
        error = {"code": exc.problem.code, "params": exc.problem.params}
    except (OSError, ValueError, RecursionError) as exc:
        error = {"code": "unreadable", "params": {"text": str(exc)[:200]}}
    except Exception as exc:  # one line that nobody foresaw must not keep the others from their answers
        error = {"code": "failed", "params": {"text": repr(exc)[:200]}}
    return {"id": values.get("id") if isinstance(values, dict) else None, "error": error}


def _written(answer: dict[str, Any]) -> str:
    """As JSON that every reader takes: numbers without end are none, and halves of signs are written out."""
    for escaped in (False, True):
        try:
            text = json.dumps(answer, ensure_ascii=escaped, allow_nan=False)
            text.encode()
        except UnicodeEncodeError:
            continue
        except ValueError:
            break
        return text
    told = {"code": "unreadable", "params": {"text": _("No model has such values, so nothing can be estimated.")}}
    name = answer.get("id")
    return json.dumps({"id": name if isinstance(name, str | int) else None, "error": told})


def _facts(values: dict[str, Any]) -> ModelFacts:
    """`config` is the configuration itself, or the path of it or of the model."""
    config = values.get("config", values.get("path"))
    if isinstance(config, dict):
        return facts_of_config(config)
    if isinstance(config, str) and config:
        return facts_at(Path(config))
    raise BadSpec("config", config)


def _shown(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
