#!/usr/bin/env python3
"""Writes cases.jsonl: what Python's jinja2, set up as Hugging Face's apply_chat_template does it, makes of the
templates below. Needs jinja2 3.1."""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

CONTEXT = {
    "messages": [
        {"role": "system", "content": " Be kind. "},
        {"role": "user", "content": "Grüße, 世界 🙂"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.0, "é": [True, None]}}}]},
        {"role": "tool", "content": "{\"ok\": 1}"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}}}],
    "n": 7, "x": 2.5, "s": "a-b_c d", "nothing": None, "yes": True, "d": {"b": 2, "a": 1, "items": 3, "pop": 4},
    "l": [3, 1, 2], "words": ["b", "A", "c"], "add_generation_prompt": True, "bos_token": "<s>",
}

EXPRESSIONS = r"""
n // 2, n % 3, -n // 2, -n % 3, n / 2, 2 ** 10, 7.5 // -2, -7.5 % 2
x + n, x * 2, 1e16, 1e15, 1.5e-5, 0.0001, 123456789.123, 1/3, 1e100, -0.0, 5 // 0.3
'a' < 'b', [1, 2] < [1, 3], (1, 2) == [1, 2], 1 == 1.0, true == 1, 'a' == 1, none == false, 1 < 2 < 3, 3 > 2 > 2
not n == 7, not not yes, 1 in [1.0], 'x' not in 'abc', none in [none], n is odd and x is number
s.split('-'), s.split('_', 1), s.rsplit(None, 1), ' a  b '.split(None, 1), s.partition('_'), s.title(), s | title, s.swapcase()
'abc'[::-1], 'abc'[-2:], 'abcdef'[1:5:2], l[::-1], l[5:], l[-2:], 'abc'[10:], (1, 2, 3)[1:]
'%s|%5d|%-5s|%05.1f|%x|%r' % ('a', 42, 'b', 3.14159, 255, 'q'), '%(a)s' % {'a': 1}, '%%' % ()
'{} {0}'.format(1) if false else '{} {}'.format(1, 'b'), '{0}-{name:>5}|{1:05d}|{2:.2f}'.format('z', 42, 1.005, name='q')
'{:,}'.format(1234567), '{:<4}|{:^5}|{:>3}|{:+d}'.format('a', 'b', 'c', 5), '{!r}'.format('x')
words | sort, words | sort(case_sensitive=true), words | sort(reverse=true), l | sort, l | max, l | min, l | sum, words | max
messages | map(attribute='role') | join(', '), messages | selectattr('role', 'in', ['user', 'tool']) | list | length
messages | selectattr('tool_calls', 'defined') | map(attribute='tool_calls.0.function.name') | first
messages | rejectattr('content') | list | length, messages | groupby('role') | map('first') | list
d.items() | list, d.items is callable, d['items'], d.pop is defined, d.keys() | list, d | length, d.get('zz', 5), d.get('zz')
d | dictsort, d | items | list | length, dict(d, z=1), d == {'a': 1, 'b': 2, 'items': 3, 'pop': 4}
tools | tojson, tools | tojson(indent=2), messages[2] | tojson, messages[1].content | tojson, messages[1].content | tojson(ensure_ascii=true)
{'b': [], 'a': {}} | tojson(sort_keys=true, separators=(',', ':')), [1, 2.0, none, true, "q\"\\\n\t\u0007"] | tojson, {} | tojson(indent=2)
[1, [2, {'a': 'b'}]], {'k': none, 1: (1,), 'q': "it's"}, 'a\nb', ['a\nb', "it's", 'say "x"', "\u00e9\u200b\x01"]
messages[1].content | length, messages[1].content | upper, messages[0].content | trim, messages[0].content.strip() | lower
'straße' | upper, 'ÀÉ' | lower, 'hELLO wORLD' | capitalize, 'éa b' | title, 'ΑΣ'.lower()
'a,b' | replace(',', ';'), 'aaa'.replace('a', 'b', 2), 'abc'.replace('', '-'), 'x'.join(['1', '2']), [1, 2] | join('-')
'abc' | first, 'abc' | last, [] | first is defined, 'abc' | list, 'abc' | reverse, l | reverse | list
'  a\n b ' | indent(2), 'a\n\nb' | indent(2, true), 'a\n\nb' | indent(2, blank=true), 'x' | center(5) ~ '|', 'a' | indent('>>')
'3' | int, '3.7' | int, 'x' | int(5), '0x1f' | int(0, 16), 3.9 | int, '1e3' | float, none | int(4), true | int, ' 12 ' | int, '1_000' | int
2.5 | round, 3.14159 | round(2), 7 | round(1), 2.1 | round(0, 'ceil'), -1.5 | round, 1234.5 | round(-2), -3 | abs, 1e20 | int if false
nope | default('d'), '' | default('d'), '' | default('d', true), nothing | d('e'), nothing | d('e', true), nope is defined, nope.x is defined if nope
range(5) | list, range(5, 1, -2) | list, range(3), range(0, 10, 3) | length, range(3)[1], range(10)[2:5]
l | batch(2) | list, l | slice(2) | list, l | batch(2, 'x') | list, [1, 1, 2] | unique | list, words | unique | join
'a' is string, 1 is integer, 1.0 is float, true is integer, true is number, d is mapping, l is sequence, l is iterable, n is iterable, none is none
'A' is upper, 'a' is lower, 4 is divisibleby 2, 3 is even, 'a' is in 'abc', 1 is sameas 1, 1 is eq 1, 2 is gt 1, 2 is lessthan 1
'<a&"b\'>' | e, ('<' | e) ~ '<', ('<' | e) + '<', '<b>' | safe + '<', '<p>a <b>c</b>&amp;</p>' | striptags
'a b/c?é' | urlencode, {'q': 'a b', 'r': 1} | urlencode, 'one two three' | wordcount, 'aaa bbb ccc ddd' | truncate(9), 'aaa bbb' | truncate(5, true, '', 0)
1000 | filesizeformat, 1536 | filesizeformat(true), 123456789 | filesizeformat
'a' 'b' "c", 0x1F, 0b101, 0o17, 1_000, 'a' ~ 1 ~ none ~ 1.0, -2 ** 2, 2 ** 3 ** 2, 2 ** -1
'a' if n > 5 else 'b', 'a' if n > 9, ('x' if n == 1 else 'y' if n == 7 else 'z'), n if nothing is none else 0
messages[0]['content'], messages[-1].role, messages[99] is defined, d.a, d['a'], d.zz is defined, s[0], s[-1], l.0, l[0:2][1]
'abc'.startswith('ab'), 'abc'.endswith(('x', 'bc')), 'abc'.find('c'), 'abc'.index('b'), 'abcabc'.rfind('b'), 'aXbX'.count('X'), 'abc'.startswith('b', 1)
'12'.isdigit(), 'ab'.isalpha(), ' '.isspace(), 'A1'.isalnum(), 'AB'.isupper(), 'Ab'.istitle(), 'a\tb'.expandtabs(4), '42'.zfill(5), '-42'.zfill(5)
'x'.ljust(3) ~ '|', 'x'.rjust(3, '.'), 'a\nb\r\nc'.splitlines(), 'prefix-x'.removeprefix('prefix-'), 'x.py'.removesuffix('.py'), '  x '.lstrip() ~ '|'
(messages[1].content)[0:5], messages[1].content.split(', ')[1][::-1], 'a' in d, 3 in d.values(), ('a', 1) in d.items()
strftime_now('%d %B %Y'), strftime_now('%a %b %j'), strftime_now('')
cycler('a', 'b').next(), joiner()() ~ 'x', namespace(a=1).a, (namespace(a=1).b) is defined
[1, 2, 3] | select('odd') | list, [0, 1, ''] | reject | list, [1, 2] | map('string') | list, ['a'] | map('upper') | list, [[3], [1]] | map('sum') | list
l * 2, 'ab' * 2, [1] + [2], (1,) + (2,), 3 * 'x', 0 * [1], 'a' * -1
"""

TEMPLATES = [
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ ' last' if loop.last }} {{ m.role }}\n{% endfor %}x",
    "  {% if yes %}\n  a\n  {% else %}\n  b\n  {% endif %}\n  c\n",
    "a\n  {%- if yes -%}  b  {%- endif %}\n\n c",
    "a {%+ if yes +%}\n b {% endif %}\nc",
    "{# a comment #}\n  {# another -#}\n  x {{- ' y' -}}  \n z",
    "{% raw %}{{ x }}{% endraw %}\n{%- raw -%}  a {% if %}  {%- endraw -%}  b",
    "{% set ns = namespace(found=false, list=[]) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% set ns.list = ns.list + [m.role] %}{% endfor %}{{ ns.found }} {{ ns.list }}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}",
    "{% macro m(a, b=2, c='z') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, c='y') }}{{ m(*[4, 5], **{'c': 6}) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}",
    "{% macro t(v, depth=0) %}{% if v is mapping %}{% for k, w in v.items() %}{{ '  ' * depth }}{{ k }}:\n{{ t(w, depth + 1) }}{% endfor %}{% else %}{{ '  ' * depth }}{{ v }}\n{% endif %}{% endmacro %}{{ t(tools[0]) }}",
    "{% macro box(t) %}<{{ t }}>{{ caller('in') }}</{{ t }}>{% endmacro %}{% call(w) box('b') %}{{ w }} {{ n }}{% endcall %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.index0 }}{{ i }}{% else %}none{% endfor %} {% for i in [] %}x{% else %}none{% endfor %}",
    "{% for i in range(6) if i is odd %}{{ i }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }}{{ '' if loop.last else '&' }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3)), (4, (5, 6))] %}{{ a + b + c }} {% endfor %}",
    "{% for n in [{'v': 1, 'c': [{'v': 2}]}, {'v': 3}] recursive %}{{ loop.depth }}{{ n.v }}{{ loop(n.c) if n.c }}{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.changed(x > 1) }}{{ loop.cycle('a', 'b') }} {% endfor %}",
    "{% set t %} a {{ n }} {% endset %}[{{ t }}]{% set u | upper | trim %} b {% endset %}[{{ u }}]",
    "{% filter upper | replace('A', 'x') %}abc{{ s }}{% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% generation %}{{ n }}{% set q = 1 %}{% endgeneration %}\n{{ q is defined }}",
    "{% block content %}in {{ n }}{% endblock %}",
    "{% set a, b = l[0], l[1] %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}",
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System first') }}{% endif %}{{ m.role[0] }}{% endfor %}",
    "{% set m = messages | selectattr('role', 'equalto', 'user') %}{{ m | list | length }}{{ m | list | length }}",
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{%- macro r(c) -%}{%- if c is string -%}{{ c }}{%- elif c is none -%}none{%- else -%}{{ c | tojson }}{%- endif -%}{%- endmacro -%}{%- for m in messages %}{{ r(m.content) }}|{% endfor %}",
    "{% if x is defined and x > 2 %}big{% elif x %}small{% endif %}{% if nope %}a{% elif nothing is none %}b{% endif %}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}b{% endmacro %}{{ a() }}{{ a.name }}",
    "{% macro f(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{{ f(1) }}{{ x }}",
    "{% for i in [1, 2] %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% for i in [1, 2] %}{% for j in [1, 2] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% if false %}{{ 1 | nosuchfilter }}{% endif %}ok{{ 'x' if true else 1 | nosuchfilter }}",
    "line one\r\nline two\rline three\n",
]
ERRORS = [
    "{{ raise_exception('no ' ~ n) }}", "{{ nope.x }}", "{{ nope['x'] }}", "{{ nope() }}", "{{ nope + 1 }}", "{{ -nope }}",
    "{{ 'a' + 1 }}", "{{ 1 + 'a' }}", "{{ [] + {} }}", "{{ none + 1 }}", "{{ none | length }}", "{{ 5 | length }}", "{{ 1 // 0 }}",
    "{{ 1 < 'a' }}", "{{ none < 1 }}", "{{ 1 in 5 }}", "{{ 1 in 'a' }}", "{% for i in 5 %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}",
    "{{ l.append(1) }}", "{{ d.update({}) }}", "{{ d.pop('a') }}", "{{ l.sort() }}", "{{ 'a'.nope() }}", "{{ 1() }}",
    "{% set d.x = 1 %}", "{{ 'abc'.index('z') }}", "{{ ''.split('') }}", "{{ range(1000000) }}", "{{ {[]: 1} }}", "{{ [1, 'a'] | sort }}",
    "{{ messages | tojson(indent='a', nope=1) }}", "{{ nope | tojson }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
    "{% if %}", "{{ }}", "{{ 1 + }}", "{% for %}", "{% endif %}", "{% if x %}", "{{ x", "{% x", "{# x", "{% nosuch %}", "{{ 'a }}", "{{ a b }}", "{{ (1 }}", "{{ [1, 2 }}",
    "{{ 1 | nosuchfilter }}", "{{ 1 is nosuchtest }}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{% break %}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ 1 is odd is even }}", "{% raw %}x",
    "{{ [] | first | upper }}{{ nope.a.b }}", "{{ '%d' % 'a' }}", "{{ '%s %s' % 'a' }}", "{% call 1 %}{% endcall %}", "{{ d.items | first }}",
]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Raised(Exception):
    pass


def environment():
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[jinja2.ext.loopcontrols, Generation])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime(2025, 6, 1).strftime(f)
    return env


def case(template):
    result = {"template": template, "context": CONTEXT}
    try:
        result["expected"] = environment().from_string(template).render(**json.loads(json.dumps(CONTEXT)))
    except Raised as error:
        result.update(error=str(error), error_kind="raise")
    except (jinja2.TemplateSyntaxError, SyntaxError) as error:
        result.update(error=str(error), error_kind="syntax")
    except jinja2.sandbox.SecurityError as error:
        result.update(error=str(error), error_kind="security")
    except jinja2.UndefinedError as error:
        result.update(error=str(error), error_kind="undefined")
    except Exception as error:  # whatever Python refuses
        result.update(error=f"{type(error).__name__}: {error}", error_kind="runtime")
    return result


def main():
    def parts(line):  # top-level commas separate expressions
        depth, quote, start, i = 0, "", 0, 0
        while i < len(line):
            c = line[i]
            if quote:
                if c == "\\":
                    i += 1
                elif c == quote:
                    quote = ""
            elif c in "'\"":
                quote = c
            elif c in "([{":
                depth += 1
            elif c in ")]}":
                depth -= 1
            elif c == "," and depth == 0:
                yield line[start:i].strip()
                start = i + 1
            i += 1
        yield line[start:].strip()

    expressions = [e for line in EXPRESSIONS.strip().split("\n") for e in parts(line)]
    templates = ["[{{ " + e + " }}]" for e in expressions] + TEMPLATES + ERRORS
    out = pathlib.Path(__file__).with_name("cases.jsonl")
    with out.open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps({"context": CONTEXT}, ensure_ascii=False) + "\n")
        for template in templates:
            row = case(template)
            del row["context"]
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(len(templates), "cases")


main()
