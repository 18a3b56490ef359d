"""Examples that work as pasted, with the token in $BERTH_API_KEY."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Snippet:
    language: str
    code: str


def snippets(task: str, name: str, base_url: str) -> list[Snippet]:
    """curl, Python and JavaScript for what this deployment does. `name` holds only letters, digits, dots, dashes."""
    path, body = _request(task, name)
    return [
        Snippet("curl", _curl(base_url + path, body)),
        Snippet("Python", _python(task, name, base_url, path, body)),
        Snippet("JavaScript", _javascript(base_url + path, body)),
    ]


def _request(task: str, name: str) -> tuple[str, dict[str, Any]]:
    # A small model may go on until its context is full, and a first example should end soon.
    if task == "embed":
        return "/embeddings", {"model": name, "input": "Hello"}
    if task == "score":
        return "/rerank", {"model": name, "query": "Which is a fruit?", "documents": ["an apple", "a chair"]}
    return "/chat/completions", {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 200}


def _curl(url: str, body: dict[str, Any]) -> str:
    return (
        f"curl {url} \\\n"
        '  -H "Authorization: Bearer $BERTH_API_KEY" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d '{_spread(body)}'"
    )


def _python(task: str, name: str, base_url: str, path: str, body: dict[str, Any]) -> str:
    if task == "score":
        return (
            "import json, os, urllib.request\n\n"
            f"request = urllib.request.Request(\n    {json.dumps(base_url + path)},\n"
            f"    data=json.dumps({body!r}).encode(),\n"
            '    headers={"Authorization": "Bearer " + os.environ["BERTH_API_KEY"],\n'
            '             "Content-Type": "application/json"},\n'
            ")\nprint(json.load(urllib.request.urlopen(request)))"
        )
    head = (
        "# pip install openai\nimport os\nfrom openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{base_url}", api_key=os.environ["BERTH_API_KEY"])\n'
    )
    if task == "embed":
        return (
            head
            + f'answer = client.embeddings.create(model="{name}", input="Hello")\nprint(answer.data[0].embedding[:5])'
        )
    return head + (
        f'answer = client.chat.completions.create(\n    model="{name}",\n'
        '    messages=[{"role": "user", "content": "Hello"}],\n    max_tokens=200,\n'
        ")\nprint(answer.choices[0].message.content)"
    )


def _javascript(url: str, body: dict[str, Any]) -> str:
    return (
        f'const answer = await fetch("{url}", {{\n  method: "POST",\n'
        "  headers: {\n    Authorization: `Bearer ${process.env.BERTH_API_KEY}`,\n"
        '    "Content-Type": "application/json",\n  },\n'
        f"  body: JSON.stringify({_spread(body)}),\n}});\nconsole.log(await answer.json());"
    )


def _spread(body: dict[str, Any]) -> str:
    """JSON with one line for each key, to fit into a narrow box."""
    lines = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in body.items()]
    return "{\n" + ",\n".join(lines) + "\n  }"
