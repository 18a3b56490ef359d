"""The API's description as a page of the panel: made on the server from the schema, so that it works offline."""

import json
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _

from panel.accounts.access import can
from panel.accounts.actor import Actor
from panel.accounts.nextpage import to_login
from panel.audit.wording import NAMES
from panel.core import pages


def page(request: HttpRequest, document: dict[str, Any]) -> HttpResponseBase:
    """For anyone who is signed in; a stranger is led to the sign-in page."""
    if not can(Actor.from_request(request), "deployments.view"):
        return to_login(request)
    return pages.page(request, "api/docs.html", context(document))


def context(document: dict[str, Any]) -> dict[str, Any]:
    groups: dict[str, list[dict[str, Any]]] = {tag["name"]: [] for tag in document["tags"]}
    parts = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups[operation["tags"][0]].append(_operation(path, method, operation, parts))
    titles = {
        "deployments": _("Deployments"),
        "runs": _("Starts and logs"),
        "models": _("Models"),
        "hosts": _("Hosts and engines"),
        "events": _("Record"),
        "accounts": _("People and tokens"),
    }
    about = {tag["name"]: _(tag["description"]) for tag in document["tags"]}
    return {
        "section": "api",
        "base": f"{settings.BERTH_PUBLIC_URL}/api/v1",
        "groups": [
            {"tag": tag, "title": titles[tag], "about": about[tag], "operations": found}
            for tag, found in groups.items()
            if found
        ],
    }


def _operation(path: str, method: str, operation: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    text = operation.get("description", "")
    bodies = operation.get("requestBody", {}).get("content", {})
    media, body = next(iter(bodies.items()), ("", {}))
    answers = sorted(operation["responses"].items())
    good = next((answer for code, answer in answers if code.startswith("2")), {})
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": _(operation["summary"]),
        "about": _(text) if text else "",
        "parameters": [_parameter(parameter) for parameter in operation["parameters"]],
        "media": media,
        "fields": _fields(body.get("schema", {}), parts),
        "example": _shown(body.get("example")) if body else "",
        "answer": _shown(good.get("content", {}).get("application/json", {}).get("example")),
        "answers": [{"code": code, "text": _(answer["description"])} for code, answer in answers],
    }


def _parameter(parameter: dict[str, Any]) -> dict[str, Any]:
    schema = parameter["schema"]
    text = parameter.get("description") or schema.get("description", "")
    return {
        "name": parameter["name"],
        "kind": _kind(schema),
        "needed": parameter["required"],
        "about": _(text) if text else "",
    }


def _fields(schema: dict[str, Any], parts: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of a body, those of an object in it one level further."""
    schema = _resolved(schema, parts)
    found: list[dict[str, Any]] = []
    for name, part in schema.get("properties", {}).items():
        inner = _resolved(part, parts)
        text = part.get("description", "")  # a class's own words are for programmers
        about = _(text) if text else str(NAMES.get(name, ""))
        needed = name in schema.get("required", [])
        found.append({"name": name, "kind": _kind(inner), "needed": needed, "about": about})
        if inner.get("properties") and inner is not schema:
            found += [{**field, "name": f"{name}.{field['name']}"} for field in _fields(inner, parts)]
    return found


def _resolved(schema: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    for word in ("allOf", "anyOf"):
        if schema.get(word):
            return _resolved(schema[word][0], parts)
    return parts[schema["$ref"].rsplit("/", 1)[-1]] if "$ref" in schema else schema


def _kind(schema: dict[str, Any]) -> str:
    """Which values are possible, in a few signs."""
    if "enum" in schema:
        return " | ".join(str(value) or "“”" for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if schema.get("anyOf"):
        return " | ".join(_kind(part) for part in schema["anyOf"])
    if schema.get("type") == "array":
        return f"[{_kind(schema.get('items', {}))}]"
    low, high = schema.get("minimum"), schema.get("maximum")
    kind = str(schema.get("format") or schema.get("type", ""))
    return f"{kind} {low} … {high}" if low is not None and high is not None and high < 10**9 else kind


def _shown(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) if value not in (None, "", "…") else ""
