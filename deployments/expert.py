"""The expert settings of the deploy page: what the runtime's own parser has, in the words of `expert_words.py`."""

from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext, pgettext

from deployments.engines import parsers
from deployments.engines.options import RANGES, Option, Schema, to_text
from deployments.expert_words import GROUPS, SAID, TOUCHES
from panel.core.mask import mask

PREFIX = "o."  # of the form's fields; the rest is the option's name
OWN_FIELDS = frozenset({"max_model_len", "max_num_seqs", "gpu_memory_utilization", "dtype"})  # of the form itself
LONGEST_VALUE = 4000


@dataclass(frozen=True)
class Setting:
    """One row of the page: an option of this engine, with its value as text ("" leaves it to the engine)."""

    name: str
    flag: str
    label: str
    text: str
    kind: str  # choice, number or text
    value: str = ""
    default: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    low: float | None = None
    high: float | None = None
    whole: bool = True
    example: str = ""
    touches: str = ""  # a kind of the memory bar
    effect: str = ""  # on memory, until the plan says it in numbers

    @property
    def field(self) -> str:
        return PREFIX + self.name


@dataclass(frozen=True)
class Group:
    key: str
    title: str
    rows: tuple[Setting, ...]

    @property
    def chosen(self) -> bool:
        """Whether any of them is set."""
        return any(row.value for row in self.rows)


@dataclass
class Page:
    """All rows: those in plain words by group, those that are set beside them, and the names of the rest."""

    groups: list[Group] = field(default_factory=list)
    set_too: list[Setting] = field(default_factory=list)
    rest: list[Setting] = field(default_factory=list)
    chosen: int = 0


def page(schema: Schema, values: dict[str, Any], *, rest: bool = True, kinds: tuple[str, ...] = ()) -> Page:
    """What a runtime offers. A value whose option it has no more stays visible, so that it can be taken back.

    `kinds` tells the chosen model's family (engines/parsers.py).
    """
    hidden = {name: mask(value, name) for name, value in values.items() if name not in OWN_FIELDS}
    found = Page(chosen=len(hidden))
    by_group: dict[str, list[Setting]] = {}
    for name, said in SAID.items():
        option = schema.get(name)
        if option is not None and not option.denied:
            by_group.setdefault(said.group, []).append(_setting(option, hidden.get(name), kinds))
    found.groups = [Group(key, gettext(GROUPS[key]), tuple(rows)) for key, rows in by_group.items()]
    for name, value in hidden.items():
        option = schema.get(name)
        if name not in SAID or option is None:
            found.set_too.append(_setting(option or _gone(name), value, kinds))
    if rest:
        plain = [o for o in schema.options if not o.denied and o.name not in {*SAID, *OWN_FIELDS, *hidden}]
        found.rest = [_setting(option, None) for option in sorted(plain, key=lambda option: option.name)]
    return found


def _gone(name: str) -> Option:
    return Option(name, "--" + name.replace("_", "-"), (), "text")


def _setting(option: Option, value: Any, kinds: tuple[str, ...] = ()) -> Setting:
    said = SAID.get(option.name)
    low, high = RANGES.get(option.name, (None, None))
    if said is not None:
        low, high = (said.low if said.low is not None else low), (said.high if said.high is not None else high)
    touches, effect = TOUCHES[said.touches] if said is not None else ("", "")
    choices: tuple[tuple[str, str], ...] = ()
    kind = "number" if option.kind in ("int", "float") and not option.many else "text"
    if option.kind == "bool":
        kind, choices = "choice", (("true", pgettext("a switch", "On")), ("false", pgettext("a switch", "Off")))
    elif (option.choices or option.known) and not option.many:
        kind, choices = "choice", _choices(option, value, kinds)
    return Setting(
        name=option.name,
        flag=option.flag,
        label=gettext(said.label) if said else option.flag,
        text=gettext(said.text) if said else option.help,
        kind=kind,
        value="" if value is None else _shown(value),
        default=_default(option),
        choices=choices,
        low=low,
        high=high,
        whole=option.kind != "float",
        example=said.example if said and not choices else "",
        touches=touches,
        effect=str(effect),
    )


def _choices(option: Option, value: Any, kinds: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """What it takes. Of names that plug-ins may add to, one that is set and not known stays to be seen; the one that
    fits the model comes first.
    """
    if option.choices:
        return tuple((choice, choice) for choice in option.choices)
    fits = parsers.fitting(option.name, kinds, option.known)
    now = "" if value is None else _shown(value)
    first = [(fits, gettext("%(name)s: made for this model") % {"name": fits})] if fits else []
    rest = [(name, name) for name in option.known if name != fits]
    gone = [(now, gettext("%(name)s: this engine has none") % {"name": now})] if now and now not in option.known else []
    return (*first, *gone, *rest)


def _shown(value: Any) -> str:
    return " ".join(map(to_text, value)) if isinstance(value, list) else to_text(value)


def _default(option: Option) -> str:
    """The engine's own value as far as it can be told in a word."""
    if option.kind == "bool" and option.default in ("True", "False"):
        return pgettext("a switch", "On") if option.default == "True" else pgettext("a switch", "Off")
    return option.default if len(option.default) <= 24 and not option.default.startswith(("<", "{", "[")) else ""


def read(data: Any, kept: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Options of the form's fields beside `kept`: those with a field here are replaced, an empty field takes one back.

    Numbers and switches become what the schema says they are; the engine's adapter checks every value with its name.
    """
    found = dict(kept)
    for key in data:
        name = key.removeprefix(PREFIX)
        if key == name or name in OWN_FIELDS or not name.isidentifier() or len(name) > 80:
            continue
        text = str(data[key]).strip()[:LONGEST_VALUE]
        old = kept.get(name)
        if not text:
            found.pop(name, None)
        elif old is None or _shown(mask(old, name)) != text:
            found[name] = _typed(text, schema.get(name))
    return found


def _typed(text: str, option: Option | None) -> Any:
    """What cannot be read stays as it was typed, for the adapter to refuse with its name."""
    if option is None:
        return text
    if option.kind == "bool" and text in ("true", "false"):
        return text == "true"
    if option.many and option.kind != "json":
        return [_number(word, option.kind) for word in text.split()]
    return _number(text, option.kind)


def _number(text: str, kind: str) -> Any:
    try:
        if len(text) < 20:
            return int(text) if kind in ("int", "size") else float(text) if kind == "float" else text
    except ValueError:
        pass
    return text
