"""Completes the OpenAPI document: words for every answer, an example for every body, headers that ninja lacks."""

from typing import Any

from django.utils.translation import gettext_noop as _

ABOUT = (
    "Everything that the pages show and do, for programs. Send a token as `Authorization: Bearer …`. Every answer that"
    " is not what was asked for has the shape of Problem; its texts follow Accept-Language (en, zh-hans). Lists come in"
    " parts of `limit` items; give `next` back as `cursor`. Times are UTC, sizes MiB or bytes as their names say."
)
TAGS = {
    "deployments": _("Models that run, or should."),
    "runs": _("Each start, with its record and its log."),
    "models": _("What could run."),
    "hosts": _("Machines and the engines on them."),
    "events": _("Who did what."),
    "accounts": _("People and their tokens."),
}
STATUS = {
    200: _("What was asked for."),
    201: _("Made."),
    202: _("Noted; it goes on by itself."),
    204: _("Done; there is nothing to say."),
    400: _("The request could not be read."),
    401: _("No token, or one that opens nothing."),
    403: _("This token, or its owner's role, may not."),
    404: _("There is nothing here, or the token does not reach it."),
    409: _("It does not go together with what is there."),
    413: _("The request is too large."),
    422: _("Some values are not possible; `fields` says which."),
    424: _("A hub that was asked gave no usable answer."),
    500: _("Something went wrong inside the panel."),
}
TEXT = {"type": "string"}
# What a problem of each status looks like; the texts are those that the panel gives.
PROBLEMS: dict[str, dict[str, Any]] = {
    "400": {"code": "api.unreadable", "message": "The body of this request could not be read."},
    "401": {"code": "token.missing", "message": "The API is opened by a token, and none was sent."},
    "403": {"code": "denied", "message": "Your role does not allow this."},
    "404": {"code": "not_found", "message": "There is nothing here, or it is not yours to see."},
    "409": {"code": "conflict", "message": "Someone changed this a moment ago."},
    "413": {"code": "request.too_large", "message": "This request is larger than anything that the panel takes."},
    "422": {"code": "invalid", "message": "Some values are not possible.", "fields": {"name": "This is needed."}},
    "500": {"code": "panel.error", "message": "Something went wrong inside the panel.", "incident": "5f3c09aa"},
}
# What texts of these names look like.
TEXTS = {
    "name": "team-chat", "user": "ada", "host": "quay", "model": "Qwen3-0.6B", "prefix": "berth_Xy12ab",
    "via": "token nightly",
    "token": "berth_Xy12ab…", "url": "https://berth.example.org/v1", "engine": "vLLM", "engine_version": "0.32.0",
    "version": "0.32.0", "deployment": "team-chat", "created_by": "ada", "wanted_by": "ada", "started_by": "ada",
    "cause": "person", "actor": "ada", "target": "team-chat", "target_kind": "deployment", "target_id": "12",
    "address": "192.0.2.7", "text": "", "step": "weights", "path": "/models/Qwen3-0.6B", "label": "bfloat16",
    "format": "hf",
    "device": "cuda", "executable": "/opt/vllm/bin/vllm", "language": "en", "action": "changed", "run": "", "hint": "",
    "code": "exit.code", "message": "The engine ended with exit code 1.", "python": "3.12", "origin": "path",
    "notes": "",
    "os": "Debian GNU/Linux 12", "machine": "x86_64", "cpu_model": "a CPU", "agent_version": "0.1.0",
    "uuid": "GPU-6f0c…",
    "job": "0b2f6c1e-6d0f-4f0a-9a55-2f8f4f0e3c11", "next": "50",
}  # fmt: skip


def whole(document: dict[str, Any]) -> dict[str, Any]:
    """The document of ninja, completed; `document` is changed."""
    document["info"]["description"] = ABOUT
    document["info"]["license"] = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    document["servers"] = [{"url": "/"}]
    parts = document["components"]["schemas"]
    for operations in document["paths"].values():
        for operation in operations.values():
            _complete(operation, parts)
    for name in [name for name in parts if name.endswith("Filter") or name == "Paging"]:
        del parts[name]  # parameters are told one by one
    return document


def _complete(operation: dict[str, Any], parts: dict[str, Any]) -> None:
    operation["responses"] = {str(code): answer for code, answer in sorted(operation["responses"].items())}
    for code, answer in operation["responses"].items():
        answer["description"] = STATUS[int(code)]
        if code in PROBLEMS:
            answer["content"]["application/json"]["example"] = {"hint": "", **PROBLEMS[code]}
        _examples(answer, parts)
    if "requestBody" in operation:
        _examples(operation["requestBody"], parts)
    if "401" in operation["responses"]:
        operation["responses"]["401"]["headers"] = {"WWW-Authenticate": {"schema": TEXT}}
    if any(parameter["name"] == "Idempotency-Key" for parameter in operation["parameters"]):
        text = "true: this is the answer of an earlier request with the same key."
        operation["responses"]["201"].setdefault("headers", {})["Idempotency-Replayed"] = {
            "schema": TEXT,
            "description": text,
        }


def _examples(body: dict[str, Any], parts: dict[str, Any]) -> None:
    for media in body.get("content", {}).values():
        if "schema" in media:
            media.setdefault("example", sample(media["schema"], parts))


NAMED: dict[str, Any] = {
    "date-time": "2026-11-30T14:02:09Z",
    "uuid": "0b2f6c1e-6d0f-4f0a-9a55-2f8f4f0e3c11",
    "integer": 1,
    "number": 1.0,
    "string": "…",
    "boolean": True,
    "null": None,
}


def sample(schema: dict[str, Any], parts: dict[str, Any], depth: int = 0) -> Any:
    """A value of this schema, made of its own examples, defaults and types."""
    if "$ref" in schema:
        return sample(parts[schema["$ref"].rsplit("/", 1)[-1]], parts, depth + 1)
    for word in ("examples", "enum"):
        if schema.get(word):
            return schema[word][0]
    if "const" in schema or "default" in schema:
        return schema.get("const", schema.get("default"))
    for word in ("allOf", "anyOf", "oneOf"):
        if schema.get(word):
            return sample(schema[word][0], parts, depth + 1)
    kind = schema.get("type", "")
    if kind == "object" and "properties" in schema:
        return {name: _named(name, part, parts, depth) for name, part in schema["properties"].items()}
    if kind == "object":
        return {}
    if kind == "array":
        return [sample(schema["items"], parts, depth + 1)] if schema.get("items") and depth < 6 else []
    return NAMED.get(schema.get("format", ""), NAMED.get(kind))


def _named(name: str, schema: dict[str, Any], parts: dict[str, Any], depth: int) -> Any:
    value = sample(schema, parts, depth + 1)
    return TEXTS.get(name, value) if value == NAMED["string"] else value
