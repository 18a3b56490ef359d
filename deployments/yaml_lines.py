"""YAML read safely, with the line of every value, so that a mistake can be pointed at.

Only plain values: no tags of programs, no anchors (which can make a small file endless), no name twice in one place.
"""

from dataclasses import dataclass
from typing import Any

import yaml
from django.utils.translation import gettext as _

from panel.core.api import DEPTH, check_plain

Path = tuple[str | int, ...]
PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
LONGEST_NUMBER = 100  # characters; reading a longer one takes longer than its length
MOST = 20_000  # values of one file
LINE_ENDS = "\x85\u2028\u2029"


class Mistake(Exception):
    """One thing that cannot be read; `line` counts from 1."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line, self.text = line, text


@dataclass(frozen=True)
class Read:
    value: Any
    lines: dict[Path, int]

    def line_of(self, path: Path) -> int:
        """The line of a value, or of the nearest thing around it that is there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Loader(yaml.SafeLoader):
    """Without anchors, and with dates left as texts."""

    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if not tag.endswith((":timestamp", ":merge"))]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        self.nodes += 1
        if self.nodes > MOST:
            text = _("At most %(max_length)s entries are possible.") % {"max_length": MOST}
            raise Mistake(event.start_mark.line + 1, text)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise Mistake(event.start_mark.line + 1, _("Anchors and aliases (& and *) are not read here."))
        return super().compose_node(parent, index)


def read(text: str) -> Read:
    """Raises Mistake."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise Mistake(1, _("The file is empty."))
        lines: dict[Path, int] = {}
        return Read(_value(loader, node, (), lines), lines)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        raise Mistake(mark.line + 1 if mark else 1, exc.problem or _("This is no YAML.")) from exc
    except yaml.reader.ReaderError as exc:
        raise Mistake(
            text[: exc.position].count("\n") + 1, _("There is a character that YAML does not allow.")
        ) from exc
    except RecursionError as exc:
        raise Mistake(1, _("It is nested too deep.")) from exc
    finally:
        if loader is not None:
            loader.dispose()


def _value(loader: _Loader, node: Any, path: Path, lines: dict[Path, int]) -> Any:
    line = lines[path] = node.start_mark.line + 1
    if len(path) > DEPTH:
        raise Mistake(line, _("It is nested too deep."))
    if isinstance(node, yaml.ScalarNode):
        return _scalar(loader, node, line)
    if node.tag not in PLAIN:
        raise Mistake(line, _("Only plain values are read, not %(tag)s.") % {"tag": node.tag[:60]})
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, item, (*path, index), lines) for index, item in enumerate(node.value)]
    found: dict[str, Any] = {}
    for key_node, item in node.value:
        key = _scalar(loader, key_node, key_node.start_mark.line + 1) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise Mistake(key_node.start_mark.line + 1, _("Names of values must be texts."))
        if key in found:
            raise Mistake(key_node.start_mark.line + 1, _("“%(name)s” stands here twice.") % {"name": key[:60]})
        found[key] = _value(loader, item, (*path, key), lines)
        lines[(*path, key)] = key_node.start_mark.line + 1
    return found


def _scalar(loader: _Loader, node: Any, line: int) -> Any:
    try:
        if node.tag in NUMBERS and len(node.value) > LONGEST_NUMBER:
            raise ValueError("too long for a number")
        value = loader.construct_object(node)
        check_plain(value)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as exc:  # by a tag that does not fit
        raise Mistake(line, _("This value cannot be kept.")) from exc
    if value is not None and not isinstance(value, str | int | float | bool):
        raise Mistake(line, _("Only plain values are read, not %(tag)s.") % {"tag": node.tag[:60]})
    return value


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> Any:
        # written as they are, these would be read again as the end of a line
        style = '"' if any(sign in data for sign in LINE_ENDS) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(str, _Dumper.represent_str)


def dump(value: Any) -> str:
    """Values as YAML in the order that they have."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))
