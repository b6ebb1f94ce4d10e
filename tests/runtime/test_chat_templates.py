"""Templates render what transformers renders, and nothing escapes the sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from spec_edge.models.contract import BadUsage, SpecError
from spec_edge.runtime import chat
from spec_edge.runtime.chat import Template, check_messages

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TALK = [
    {"role": "system", "content": "Be brief.  \n"},
    {"role": "user", "content": "  Hi <b>\"you\"</b> & 'me' – naïve 束 🙂 "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
    {"role": "user", "content": "x = {'a': 1}\n\n\n  12345678 {0} %s"},
]
TOOLS = [
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "get", "arguments": {"z": "é<&>", "a": [1, None]}}}],
    },
    {"role": "tool", "content": '{"t": 20}', "tool_call_id": "1"},
    {"role": "tool", "content": "windy", "tool_call_id": "2"},
]

STYLES = {
    "chatml": """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']
 + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "default_system": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\\nYou are helpful<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' ~ message['role'] ~ '\\n'
 ~ message['content'] | trim ~ '<|im_end|>\\n'}}{% endfor %}""",
    "header_ids": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}""",
    "instruct": """{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]
{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}{{ unknown_name }}""",
    "tool_loop": """{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- set call = call.function %}
            {{- '<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}{{- call.arguments | tojson(indent=2) }}
            {{- call | tojson(separators=(',', ':'), sort_keys=True, ensure_ascii=True) }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}{{ message.content }}{% endif %}
{%- endfor %}""",
    "loop_controls": """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}
{{ loop.index }}: {{ m.content | upper }}{% if loop.index > 2 %}{% break %}{% endif %}
{% endfor %}""",
    "macros": """{% macro turn(role, content, end=true) %}<{{ role }}>{{ content }}{% if end %}</{{ role }}>{% endif %}
{% endmacro %}
{% for m in messages %}{{ turn(m.role, m.content.strip(), end=not loop.last) }}{% endfor %}""",
    "namespace": """{%- set ns = namespace(seen=0, last='', tool=false) %}
{%- for m in messages %}{%- set ns.seen = ns.seen + 1 %}{%- set ns.last = m.role %}{%- endfor %}
{{- ns.seen }} {{ ns.last }} {{ ns.tool }} {{ messages | length }} {{ messages[::-1][0].role }}
{% set ns = namespace({'a': 1}, self=2) %}{{ ns.a }}{{ ns.self }}""",
    "generation": """{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set inner = m.content %}
{{ inner }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.role }}: {{ m.content }}{% endif %}{{ inner }}
{% endfor %}""",
    "reasoning": """{% for m in messages %}{% set content = m.content %}
{%- if m.role == 'assistant' and '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}[{{ reasoning }}]{%- endif %}
{{ content.replace('Hello', 'Bye') }} {{ "%s/%s" | format(m.role, loop.index) }} {{ '{}'.format(m.role) }}
{% endfor %}{{ ['a', 'b'] | join(', ') }} {{ range(3) | list }} {{ 7 % 3 }} {{ 2 ** 3 }} {{ '-' * 5 }}""",
    "filters": """{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ m | items | list | length }}
{{- m.content | indent(4) | replace('x', 'y') | center(30) | e }}
{% endfor %}{{ messages | map(attribute='role') | unique | list }}{{ none is none }}{{ messages is iterable }}
{# a comment #}
   {% set x = [1, 2] + [3] %}{{ x[-1] }} {{ dict(a=1).a }} {{ {'k': 'v'}.items() | list }}""",
}


@pytest.mark.parametrize("messages", [TALK, TOOLS, TALK[1:2]], ids=["talk", "tools", "one"])
@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_equals_transformers(style: str, add: bool, messages: list[dict[str, Any]]) -> None:
    source = STYLES[style]
    expected, _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=add, **TOKENS)
    assert Template(source).render(check_messages(messages), add, TOKENS) == expected[0]


def test_an_unset_token_is_empty_like_in_transformers() -> None:
    assert Template("{{ bos_token }}|{{ messages[0].content }}").render([TALK[0]]) == "|Be brief.  \n"


def test_the_template_may_refuse() -> None:
    source = "{% if messages[0].role != 'user' %}{{ raise_exception('Roles must\n alternate') }}{% endif %}"
    with pytest.raises(BadUsage, match="the chat template refuses these messages: Roles must alternate"):
        Template(source).render(TALK)


HOSTILE = {
    "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attr_filter": "{{ '' | attr('__class__') | attr('mro') }}",
    "brace_star": "{{ '{:{}}'.format(1, 1000000000) }}",
    "brace_name": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "mutate": "{% set _ = messages.append(1) %}",
    "namespace": "{% set ns = namespace(__class__=1) %}",
    "namespace_set": "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "repeat": "{{ 'a' * 10 ** 9 }}",
    "repeat_left": "{{ 100000000 * messages }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "double": "{% set n = namespace(t='ab') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "tilde": "{% set n = namespace(t='ab') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "output": "{% for i in range(99999) %}{{ '0123456789' * 100 }}{% endfor %}",
    "center": "{{ 'a' | center(1000000000) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent_star": "{{ '%*d' % (1000000000, 1) }}",
    "brace": "{{ '{:>1000000000}'.format(1) }}",
    "format_filter": "{{ '%1000000000d' | format(1) }}",
    "replace": "{% set s = 'a' * 100000 %}{{ s.replace('a', s) }}",
    "replace_filter": "{% set s = 'a' * 100000 %}{{ s | replace('a', s) }}",
    "join": "{% set s = 'a' * 100000 %}{{ s.join([1] * 100000) }}",
    "tojson": "{{ messages | tojson(indent=1000000000) }}",
    "undefined": "{{ nothing.at.all }}",
    "type": "{{ 1 + 'a' }}",
    "zero": "{{ 1 / 0 }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "syntax": "{% for %}",
    "unclosed": "{{ 'a",
    "tag": "{% nonsense %}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_and_broken_templates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are capped before anything is made: what ends these is a limit of size, never the one of time."""
    monkeypatch.setattr(chat, "SECONDS", 120.0)
    with pytest.raises(SpecError, match=r"^the chat template failed: .+; use --no-chat") as caught:
        Template(HOSTILE[name]).render(check_messages(TALK))
    assert "ran for more than" not in caught.value.message
    assert "\n" not in caught.value.message and len(caught.value.message) < 500


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages.index.__self__.__class__ }}",
        "{{ ('{0.__init__}' | attr('format'))(messages) }}",
    ],
)
def test_internals_are_not_there(source: str) -> None:
    assert Template(source).render(TALK) == ""


def test_an_endless_template_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SECONDS", 0.3)
    source = "{% for i in range(900) %}{% for j in range(900) %}{% set x = i %}{% endfor %}{% endfor %}"
    with pytest.raises(SpecError, match="ran for more than"):
        Template(source * 9).render(TALK)


def test_a_huge_template_is_refused() -> None:
    with pytest.raises(SpecError, match="the chat template has 262145 characters"):
        Template("a" * (256 * 1024 + 1))


def test_contents() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert [m["content"] for m in check_messages(messages)] == ["ab", ""]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "root", "content": ""}, "message 1 has role 'root'; known: system, user, assistant, tool"),
        ({"role": ["user"], "content": ""}, "has role"),
        ({"content": ""}, "has role None"),
        ({"role": "user", "content": 3}, "neither text nor a list"),
        ({"role": "user", "content": [{"type": "image", "url": "x"}]}, "reads text only"),
        ({"role": "user", "content": ["x"]}, "reads text only"),
        ({"role": "user", "content": "", "images": []}, "unknown key 'images'; known: role, content"),
        ("hi", "message 1 is not an object"),
    ],
)
def test_messages_that_are_none(message: Any, problem: str) -> None:
    with pytest.raises(BadUsage, match=problem):
        check_messages([message])
    with pytest.raises(BadUsage, match="there is no message"):
        check_messages([])
