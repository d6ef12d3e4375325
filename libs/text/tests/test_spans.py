"""Where messages start: certain or not said."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.text import ChatTemplate, Tokenizer, tokenize_rendered
from libs.text.tests.test_template import NATIVE, TOOL, USER, call, result, template

SYSTEM = {"role": "system", "content": "Be kind."}
CHAT = [SYSTEM, USER, call("{}"), result("one"), result("two"), call("{}", "Again."), result("3"),
        {"role": "assistant", "content": "Done."}, USER]  # fmt: skip

DROPS_OLD_ANSWERS = """{% for m in messages %}[{{ m.role }}]
{%- if m.role != 'assistant' or loop.last %}{{ m.content }}{% endif %}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""

LOOKS_INSIDE = """{% for m in messages %}[{{ m.role }}]
{%- if m.content == 'hi' %}HELLO{% else %}{{ m.content }}{% endif %}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""


def starts(
    chat: ChatTemplate, messages: list[Any], tools: Any = None
) -> list[tuple[str, str, str]]:
    """(role, kind, the first characters) of each span."""
    rendered = chat.render(messages, tools)
    return [(s.role, s.kind, rendered.text[s.start :][:14]) for s in rendered.spans]


def test_every_message_of_an_agents_step_is_placed(demo_template: ChatTemplate) -> None:
    head = "<|im_start|>"
    assert starts(demo_template, CHAT, [TOOL]) == [
        ("system", "text", f"{head}sy"),
        ("system", "tools", 'look", "descri'),
        ("user", "text", f"{head}us"),
        ("assistant", "tool_call", f"{head}as"),
        ("tool", "tool_result", f"{head}us"),
        ("tool", "tool_result", "two\n</tool_res"),
        ("assistant", "tool_call", f"{head}as"),
        ("tool", "tool_result", f"{head}us"),
        ("assistant", "text", f"{head}as"),
        ("user", "text", f"{head}us"),
        ("assistant", "generation_prompt", f"{head}as"),
    ]


def test_tools_are_placed_where_a_native_template_puts_them() -> None:
    found = starts(template(NATIVE), [SYSTEM, USER, call("{}"), result("r")], [TOOL])
    assert [(role, kind) for role, kind, _ in found] == [
        ("system", "text"),
        ("system", "tools"),
        ("user", "text"),
        ("assistant", "tool_call"),
        ("tool", "tool_result"),
        ("assistant", "generation_prompt"),
    ]
    assert [text[:6] for _, _, text in found[2:]] == ["[user]", "[assis", "[tool]", "[assis"]


def test_token_starts_decode_to_the_message(demo: Tokenizer, demo_template: ChatTemplate) -> None:
    ids, spans = tokenize_rendered(demo, demo_template.render(CHAT))
    assert ids == demo.encode(demo_template.render(CHAT).text)
    users = [span.start_token for span in spans if span.role == "user"]
    assert [demo.decode(ids[start : start + 3], False) for start in users] == [
        "<|im_start|>user\n"
    ] * 2
    assert [span.start_token for span in spans] == sorted({span.start_token for span in spans})


def test_a_template_that_drops_old_answers_gives_only_what_is_certain() -> None:
    chat = template(DROPS_OLD_ANSWERS)
    messages = [USER, {"role": "assistant", "content": "a"}, USER]
    rendered = chat.render(messages)
    assert [(s.role, rendered.text[s.start :][:6]) for s in rendered.spans] == [
        ("user", "[user]"),
        ("assistant", "[assis"),
    ]


def test_a_template_that_looks_inside_content_is_measured_by_prefixes() -> None:
    rendered = template(LOOKS_INSIDE).render([USER, {"role": "assistant", "content": "a"}, USER])
    assert [rendered.text[s.start :][:5] for s in rendered.spans] == ["[user", "[assi", "[user"]


def test_hashes_tell_contents_apart_and_equal_ones_alike(demo_template: ChatTemplate) -> None:
    first = demo_template.render(CHAT, [TOOL]).spans
    changed = [*CHAT[:3], result("other"), *CHAT[4:]]
    second = demo_template.render(changed, [TOOL]).spans
    assert all(len(span.hash) == 16 for span in first)
    differ = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a.hash != b.hash]
    assert differ == [4]


def test_a_message_of_blanks_has_no_span_and_harms_no_other(demo_template: ChatTemplate) -> None:
    found = starts(demo_template, [USER, {"role": "assistant", "content": " "}, USER])
    assert [role for role, _, _ in found] == ["user", "user", "assistant"]


def test_text_full_of_marks_still_renders(demo_template: ChatTemplate) -> None:
    odd = {"role": "user", "content": "\ue000\ue8ff\uf0f0\uf8ff"}
    found = starts(demo_template, [odd, {"role": "assistant", "content": "a"}, odd])
    assert [role for role, _, _ in found] == ["user", "assistant", "user"]


def test_two_hundred_messages_are_all_placed(demo_template: ChatTemplate) -> None:
    messages = [SYSTEM]
    for n in range(100):
        messages += [USER, {"role": "assistant", "content": f"answer {n}"}]
    assert len(demo_template.render(messages).spans) == 202


TEXTS = st.text(st.sampled_from("ab \n<|>\u00e9\U0001f600"), max_size=8)
MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda text: {"role": "user", "content": text}, TEXTS),
        st.builds(lambda text: {"role": "assistant", "content": text}, TEXTS),
        st.builds(call, TEXTS, st.one_of(st.none(), TEXTS)),
        st.builds(result, TEXTS),
    ),
    min_size=1,
    max_size=8,
)


def changed(message: dict[str, Any]) -> dict[str, Any]:
    """Another message of the same form."""
    if "tool_calls" in message:
        return call("{}", "something else")
    return message | {"content": "something else"}


@given(messages=MESSAGES)
@settings(deadline=None, max_examples=150)
def test_nothing_before_a_messages_start_depends_on_it(
    demo_template: ChatTemplate, messages: list[Any]
) -> None:
    rendered = demo_template.render([SYSTEM, *messages], [TOOL])
    assert [s.start for s in rendered.spans] == sorted(s.start for s in rendered.spans)
    placed = [s for s in rendered.spans if s.kind not in ("tools", "generation_prompt")]
    # Messages of blanks alone are not placed.
    shown = [i for i, m in enumerate(messages) if m.get("tool_calls") or m["content"].strip()]
    assert len(placed) == 1 + len(shown)
    for span, index in zip(placed[1:], shown, strict=True):
        other = [*messages[:index], changed(messages[index]), *messages[index + 1 :]]
        before = rendered.text[: span.start]
        assert demo_template.render([SYSTEM, *other], [TOOL]).text.startswith(before)
