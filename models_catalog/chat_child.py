"""Renders a chat template in a process of its own with little memory and time. Run as a program, never imported.

A template is a model's data, and may be made to eat a machine: it gets a sandbox, no file, no network, no long life.
Standard input: {"template": text, "cases": [{…}, …]}. Standard output: [{"text": …} or {"error": …}, …].
"""

import contextlib
import json
import resource
import sys
from datetime import datetime

from jinja2 import TemplateSyntaxError, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY, CPU_S = 512 << 20, 3
MOST_TEXT = 64 << 10  # characters of one rendered case


class Raised(Exception):
    """The template itself refused the conversation."""


class Generation(Extension):
    """{% generation %} marks the assistant's words for training; here it only shows them."""

    tags = {"generation"}

    def parse(self, parser):  # type: ignore[no-untyped-def]  # Jinja's own interface
        parser.stream.skip(1)
        return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True))


def raise_exception(message: object) -> None:
    raise Raised(str(message)[:500])


def limit() -> None:
    """From here on nothing can be opened, and too much ends this process."""
    for what, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 3),
    ):
        resource.setrlimit(what, (most, most))


def environment() -> ImmutableSandboxedEnvironment:
    """As the libraries that engines use set it up."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime(2026, 1, 31).strftime(str(form)[:100])
    return env


def warm(env: ImmutableSandboxedEnvironment) -> None:
    """Let everything load that loads late: after `limit` no module can be opened any more."""
    for text in (
        r"{{ 'a\n' | tojson | upper }}{% for a in [1] %}{{ a }}{% endfor %}",
        "{{ 1 // 0 }}",
        "{{ (().a).b }}",
    ):
        with contextlib.suppress(ArithmeticError, TemplateError):
            env.from_string(text).render()


def render(template, values):  # type: ignore[no-untyped-def]  # a Jinja template
    """{"text": …} or {"error": code, "message": …}."""
    try:
        parts, length = [], 0
        for part in template.generate(**values):
            parts.append(part)
            length += len(part)
            if length > MOST_TEXT:
                return {"error": "chat.too_long", "message": ""}
        return {"text": "".join(parts)}
    except Raised as exc:
        return {"error": "chat.raised", "message": str(exc)}
    except MemoryError:
        return {"error": "chat.too_much", "message": ""}
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as exc:
        return {"error": "chat.failed", "message": str(exc)[:500]}


def main() -> None:
    asked = json.load(sys.stdin)
    env = environment()
    warm(env)
    limit()
    try:
        template = env.from_string(asked["template"])
    except TemplateSyntaxError as exc:
        found = {"error": "chat.syntax", "message": f"{exc.lineno}: {exc.message}"[:500]}
        answers = [found for _case in asked["cases"]]
    except (MemoryError, RecursionError):
        answers = [{"error": "chat.too_much", "message": ""} for _case in asked["cases"]]
    else:
        answers = [render(template, case) for case in asked["cases"]]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
