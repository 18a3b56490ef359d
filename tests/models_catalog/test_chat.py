"""Chat templates of models: real ones come out right, hostile ones harm nobody."""

import time

import pytest

from models_catalog import chat

CHATML = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""
TOOLS = """{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% for m in messages %}{% if m.tool_calls %}
{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}
{% if m.role == 'system' %}{% continue %}{% endif %}{% endfor %}{{ strftime_now('%Y') }}"""


def test_a_usual_template_shows_what_the_model_receives() -> None:
    found = chat.render(CHATML)
    assert found.works and found.system and not found.tools and found.error is None
    assert (
        found.of("plain").text == "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "法国的首都是哪里？" in found.of("chinese").text


def test_tools_loop_controls_and_marks_of_training() -> None:
    found = chat.render(TOOLS)
    assert found.works and found.tools
    assert '"city": "Paris"' in found.of("tools").text and "generation" not in found.of("tools").text


def test_a_template_that_refuses_a_system_text() -> None:
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no <b>system</b>') }}{% endif %}{{ messages[0].content }}"
    found = chat.render(strict)
    assert found.works and not found.system
    words = found.of("system").words
    assert words is not None and "no <b>system</b>" in words.text


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "chat.too_much"),
        ("{{ 'x' * 99999999999 }}", "chat.too_much"),
        (
            "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "chat.too_much",
        ),
        ("{{" + "(" * 3000 + ")" * 3000 + "}}", "chat.too_much"),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "chat.too_long"),
        ("{{ ().__class__.__bases__[0].__subclasses__() }}", "chat.failed"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "chat.failed"),
        ("{% include '/etc/passwd' %}", "chat.failed"),
        ("{{ messages.append(1) }}", "chat.failed"),
        ("{{ 1 / 0 }}", "chat.failed"),
        ("{% if %}", "chat.syntax"),
    ],
)
def test_hostile_templates_end_with_a_sentence(template: str, code: str) -> None:
    begin = time.monotonic()
    found = chat.render(template)
    assert not found.works
    assert found.error is not None and found.error.code == code and found.error.text
    assert time.monotonic() - begin < chat.LONGEST_S + 5


def test_a_template_of_ollama_is_shown_and_not_rendered() -> None:
    found = chat.render("{{ .Prompt }}", "ollama")
    assert found.error is not None and found.error.code == "chat.foreign"
