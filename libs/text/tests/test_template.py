"""Chats as prompts: templates of several kinds, tools, broken histories."""

from __future__ import annotations

import json
from typing import Any

import pytest

from libs.text import ChatTemplate, MessageError, TemplateError, Tokenizer, TokenizerError
from libs.text.hermes import tools_text
from libs.text.template import Knowledge
from libs.text.tests.conftest import NOON

TOOL = {"type": "function", "function": {"name": "look", "description": "<&>", "parameters": {}}}
USER = {"role": "user", "content": "hi"}
NATIVE = """
{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
{% endif %}
{%- for m in messages %}[{{ m.role }}]
{%- if m.tool_calls %}{% for c in m.tool_calls %}
call {{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}
{%- endif %}{{ m.content }}
{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
ITERATES = NATIVE.replace(
    "{{ c.function.arguments | tojson }}",
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}",
)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, lambda: NOON)


def call(arguments: Any, content: Any = None) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    calls = [{"id": "c1", "type": "function", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(content: str, call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_the_demos_own_form(demo_template: ChatTemplate) -> None:
    assert demo_template.render([USER]).text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_demo_knows_no_tools_and_a_native_template_does(demo_template: ChatTemplate) -> None:
    assert demo_template.knows == Knowledge(tools=False, calls=False, results=False)
    assert template(NATIVE).knows == Knowledge(tools=True, calls=True, results=True)


def test_tools_go_into_the_system_message_in_the_hermes_form(demo_template: ChatTemplate) -> None:
    system = {"role": "system", "content": "Be kind."}
    text = demo_template.render([system, USER], [TOOL]).text
    assert text.startswith("<|im_start|>system\nBe kind.\n\n# Tools\n\n")
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    assert '{"name": <function-name>, "arguments": <args-json-object>}' in text
    assert text.endswith("</tool_call><|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
                         "<|im_start|>assistant\n")  # fmt: skip


def test_tools_without_a_system_message_get_one(demo_template: ChatTemplate) -> None:
    text = demo_template.render([USER], [TOOL]).text
    assert text.startswith(f"<|im_start|>system\n{tools_text([TOOL])}<|im_end|>\n<|im_start|>user")


def test_calls_and_results_in_the_hermes_form(demo_template: ChatTemplate) -> None:
    history = [USER, call('{"a":  1}', "Let me look."), result("one"), result("two"), USER]
    text = demo_template.render(history).text
    assert (
        "<|im_start|>assistant\nLet me look.\n<tool_call>\n"
        '{"name": "look", "arguments": {"a":  1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n"
        "<tool_response>\ntwo\n</tool_response><|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    ) in text


def test_a_native_template_gets_arguments_as_an_object() -> None:
    text = template(NATIVE).render([USER, call('{"a":  1}'), result("r")], [TOOL]).text
    assert 'call look({"a": 1})' in text
    assert f"<tools>{json.dumps(TOOL)}\n</tools>" in text
    assert "[tool]r" in text


BROKEN = ['{"value": ', "", None, "[1]", '"x"', "null", "7", "[" * 100_000]


@pytest.mark.parametrize("arguments", BROKEN, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("source", [NATIVE, ITERATES], ids=["tojson", "items"])
def test_broken_arguments_do_no_harm_to_native_templates(source: str, arguments: Any) -> None:
    text = template(source).render([USER, call(arguments), result("r")]).text
    assert "call look(" in text


@pytest.mark.parametrize("arguments", BROKEN, ids=lambda value: repr(value)[:12])
def test_broken_arguments_are_written_as_they_are(
    demo_template: ChatTemplate, arguments: Any
) -> None:
    text = demo_template.render([USER, call(arguments), result("r")]).text
    assert f'"arguments": {arguments or "{}"}}}\n</tool_call>' in text


def test_parts_of_text_are_joined_and_developers_are_systems(demo_template: ChatTemplate) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    text = demo_template.render([{"role": "developer", "content": parts}, USER]).text
    assert text.startswith("<|im_start|>system\nab<|im_end|>")


def test_the_old_function_forms_are_read(demo_template: ChatTemplate) -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    text = demo_template.render([USER, old, {"role": "function", "name": "f", "content": "r"}]).text
    assert '{"name": "f", "arguments": {}}' in text
    assert "<tool_response>\nr\n</tool_response>" in text


IMAGE = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (IMAGE, "messages[1].content[1].type"),
        ({"role": "user", "content": [5]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "robot", "content": ""}, "messages[1].role"),
        ({"content": ""}, "messages[1].role"),
        ({"role": ["user"], "content": ""}, "messages[1].role"),
        ({"role": "assistant", "tool_calls": 5}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"function": {}}]},
            "messages[1].tool_calls[0].function.name",
        ),
        ("hi", "messages[1]"),
    ],
)
def test_what_cannot_be_rendered_is_named(
    demo_template: ChatTemplate, message: Any, field: str
) -> None:
    with pytest.raises(MessageError) as caught:
        demo_template.render([USER, message])
    assert caught.value.field == field
    assert field in caught.value.message


def test_a_refusal_of_the_template_is_told_in_its_words() -> None:
    strict = template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="roles must alternate"):
        strict.render([USER])


def test_helpers_of_hugging_face_templates() -> None:
    source = (
        "{{ bos_token }}{{ strftime_now('%d %b %Y') }}{% generation %} g {% endgeneration %}"
        "{{ {'a': '<\u00e9>'} | tojson }}{% for m in messages %}{% break %}x{% endfor %}"
    )
    assert template(source).render([USER]).text == '<s>30 Nov 2026 g {"a": "<\u00e9>"}'


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(TemplateError):
        template(source).render([USER])


def test_a_broken_template_is_one_clear_sentence() -> None:
    with pytest.raises(TokenizerError, match="template is broken"):
        template("{% if %}")


def test_tools_nested_too_deeply_are_refused(demo_template: ChatTemplate) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    with pytest.raises(MessageError, match="nested too deeply"):
        demo_template.render([USER], [tool])


@pytest.mark.slow
def test_renders_as_transformers_does(demo: Tokenizer, demo_template: ChatTemplate) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(demo.files.tokenizer_json.parent))
    messages = [
        USER,
        {"role": "assistant", "content": " a\u00e9 "},
        {"role": "user", "content": ""},
    ]
    for prompt in (True, False):
        ids = theirs.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
        ours = demo_template.render(messages, add_generation_prompt=prompt).text
        assert demo.encode(ours) == list(ids)
