#!/usr/bin/env python3
"""Writes the seeds of tests/fuzz/corpus/ (files called seed-*) again. Findings have other names and stay."""
import os
import struct

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
STRING, ARRAY, U32, I32, F32, BOOL = 8, 9, 4, 5, 6, 7


def seed(target, name, content):
    os.makedirs(os.path.join(ROOT, target), exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
    with open(os.path.join(ROOT, target, "seed-" + name), "wb") as file:
        file.write(content)


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def key(name, kind, value):
    return string(name) + struct.pack("<I", kind) + value


def array(kind, values):
    pack = {STRING: string, F32: lambda v: struct.pack("<f", v), I32: lambda v: struct.pack("<i", v)}[kind]
    return struct.pack("<IQ", kind, len(values)) + b"".join(pack(v) for v in values)


def gguf(keys, tensors=()):
    table, data = b"", b""
    for name, shape, kind, size in tensors:
        table += string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
        table += struct.pack("<IQ", kind, len(data))
        data += bytes(size) + bytes(-size % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + table
    return head + bytes(-len(head) % 32) + data


CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def pieces():
    tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)] + ["\u2581", "t", "h", "e", "th", "the", "\u2581the"]
    types = [2, 3, 3] + [6] * 256 + [1] * 7
    return [
        key("general.architecture", STRING, string("llama")),
        key("tokenizer.ggml.model", STRING, string("llama")),
        key("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens)),
        key("tokenizer.ggml.scores", ARRAY, array(F32, [-float(i) for i in range(len(tokens))])),
        key("tokenizer.ggml.token_type", ARRAY, array(I32, types)),
        key("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 1)),
        key("tokenizer.ggml.add_bos_token", BOOL, b"\1"),
        key("tokenizer.chat_template", STRING, string("[INST] {{ messages[-1].content }} [/INST]{{ eos_token }}")),
    ]


def byte_pairs(pre):
    tokens = [chr(c) for c in range(33, 127)] + ["\u0120", "th", "the", "\u0120th", "<|im_start|>", "<|im_end|>"]
    types = [1] * (len(tokens) - 2) + [3, 3]
    return [
        key("general.architecture", STRING, string("qwen2")),
        key("tokenizer.ggml.model", STRING, string("gpt2")),
        key("tokenizer.ggml.pre", STRING, string(pre)),
        key("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens)),
        key("tokenizer.ggml.merges", ARRAY, array(STRING, ["t h", "th e", "\u0120 th"])),
        key("tokenizer.ggml.token_type", ARRAY, array(I32, types)),
        key("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", len(tokens) - 1)),
        key("tokenizer.chat_template", STRING, string(CHATML)),
    ]


TENSORS = [("token_embd.weight", (32, 4), 0, 512), ("blk.0.attn_q.weight", (32, 2), 8, 68), ("b", (3, 2), 1, 12)]
seed("gguf", "pieces", gguf(pieces(), TENSORS))
seed("gguf", "pairs", gguf(byte_pairs("qwen2"), TENSORS[:1]))
seed("gguf", "pairs-gpt2", gguf(byte_pairs("gpt-2")))
seed("gguf", "empty", gguf([]))

seed("jinja", "chatml", CHATML)
seed("jinja", "macro", "{% macro m(x, y=2) %}{{ x ~ y }}{{ caller() if caller }}{% endmacro %}"
     "{% call m(1) %}{{ [1, 2.5, 'a', {'k': none}] | tojson }}{% endcall %}")
seed("jinja", "loops", "{%- for k, v in messages[0].items() if v -%}{{ loop.index }}{{ k | upper }}={{ v[::-1] }}"
     "{%- else -%}none{%- endfor -%}{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 2 ** 5 // 3 %}{{ ns.n }}")
seed("jinja", "strings", "{{ '%05.2f|%s' % (1.5, 'x') }}{{ '{:>8}{0!r}'.format(3) }}{{ 'a,b'.split(',') | join('-') }}"
     "{{ raise_exception('no') if tools is not defined }}{{ strftime_now('%Y-%m-%d') }}\0"
     '{"messages": [], "tools": [1]}')

seed("row", "prompt", '{"prompt": "Hi", "id": "a", "max_tokens": 5, "temperature": 0.5, "stop": ["x", "y"], "seed": 7}')
seed("row", "messages", '{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": '
     '[{"type": "text", "text": "U\\u00e9"}]}], "top_k": 3, "min_p": 0.1}')
seed("row", "openai", '{"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", '
     '"messages": [{"role": "user", "content": "U"}], "n": 1}}')
seed("row", "written", '{"id":"a","line":1,"text":"t","prompt_tokens":2,"completion_tokens":1,"finish_reason":"stop"}')

# Two groups of layers (tests/support/toy_backend.h): a block has 32 tokens.
BLOCKS = 2
header = b"runnelKV" + struct.pack("<II", 4, 2) + struct.pack("<QQ", 1, 2) + struct.pack("<Q", 32 * BLOCKS)
body = header + struct.pack("<64i", *[i % 40 for i in range(64)])
for _ in range(2):
    body += struct.pack("<Q", 1024) + b"\1" * BLOCKS
body += struct.pack("<Q", 0)
seed("prompt_file", "blocks", b"\1" + body + bytes(2 * BLOCKS * 1024) + bytes(16))
seed("prompt_file", "empty", b"\1" + header[:32] + struct.pack("<Q", 0) + struct.pack("<QQQ", 1024, 1024, 0) + bytes(16))
seed("prompt_file", "damaged", b"\0" + body + bytes(100))
seed("prompt_file", "foreign", b"\0not a prompt cache")

# Two blocks of two groups, without their sums: the target adds them.
chunk = b"runnelPC" + struct.pack("<IIII", 1, 2, BLOCKS - 1, 0) + bytes(range(32)) + struct.pack("<64i", *[i % 40 for i in range(64)])
for _ in range(2):
    chunk += struct.pack("<Q", 1024) + b"\1" * BLOCKS
seed("stored_prompt", "blocks", b"\1" + chunk + struct.pack("<Q", 0) + bytes(5 * 16 + 2 * BLOCKS * 1024))
seed("stored_prompt", "state", b"\5" + chunk + struct.pack("<Q", 1) + bytes(6 * 16 + 2 * BLOCKS * 1024))
seed("stored_prompt", "gap", b"\1" + chunk[:-1] + b"\0" + struct.pack("<Q", 0) + bytes(100))
seed("stored_prompt", "damaged", b"\0" + chunk + bytes(200))
seed("stored_prompt", "foreign", b"\0not a chunk")

row = struct.pack("<ff6H", 0.0001, -6.0, 0, 10, 20, 30, 40, 0)
seed("logits_file", "chunk", b"_logits_" + struct.pack("<iii8i", 8, 5, 1, *[i % 5 for i in range(8)]) + row * 3)
seed("logits_file", "truncated", b"_logits_" + struct.pack("<iii8i", 8, 5, 2, *range(8)))

seed("config", "sections", 'temp = 0.5\n[run]\nthreads = 2\nsystem = "a \\"b\\""\n[chat]\nmodel = "m.gguf"\n')
seed("config", "list", "temp = [0.5, 1]\n; comment\n# comment\nsystem='''x\ny'''\n")
seed("config", "arguments", "-ngl\n99\n--config\nfile\n--\n-md=x\n1/4")

seed("transcript", "chat", '{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, '
     '{"role": "assistant", "content": "A", "reasoning_content": "R"}]}')
seed("transcript", "odd", '{"messages": [{"role": "user", "content": null}, {"content": []}, 3]}')

for index in range(4):
    seed("tokenizer", f"words-{index}", bytes([index, 5, 9, 1]) + b"the theta 1212 abab aaaa<|im_end|> \n  the\xff\xe4\xb8")
    seed("tokenizer", f"unicode-{index}", bytes([index, 1, 2, 0]) + "the \u00e9e\u0301 \u4e2d\u6587 \U0001f600\u200d".encode())
seed("utf8", "mixed", b"\2a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\xff\xc2\x9b31m\x1b[0m\n\t\x7f\xed\xa0\x80")
seed("utf8", "cut", b"\1\xe4\xb8\xf0\x9f\x98\xc3\xe4")

for kind in range(6):
    seed("cache", f"turns-{kind}", bytes([kind, 20, 0, 100, 6, 40, 1, 0, 14, 60, 4, 31, 4, 30, 3, 50, 5, 200, 7, 33, 2, 0,
                                        0, 120, 6, 69, 6, 69, 6, 69, 6, 69, 12, 8, 20, 9, 3, 77]))
# The format's number in the table, where to cut, the text.
for index, text in enumerate([
        '[TOOL_CALLS][{"name":"f","arguments":{"s":"x"},"id":"abc123def"}]', '[TOOL_CALLS]f[CALL_ID]1[ARGS]{"n":1}',
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>',
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>',
        '<|START_ACTION|>[{"tool_call_id":"0","tool_name":"f","parameters":{}}]<|END_ACTION|>',
        "<|tool_call_start|>[f(s='x', n=[1, None]), f()]<|tool_call_end|>",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">x'
        '</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>',
        '<|tool_call>call:f{s:<|"|>x<|"|>,n:1}<tool_call|>',
        '<minimax:tool_call><invoke name="f"><parameter name="s">x</parameter></invoke></minimax:tool_call>',
        '<seed:tool_call><function=f><parameter=s>x</parameter></function></seed:tool_call>',
        'a <tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>\n b',
        '<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n</tool_call>',
        'a <tool_call>\n{"name": "f", "arguments": {"s": "\\u00e9"}}\n</tool_call>\n<tool_call>{}',
        '<|tool_call|>[{"name":"f","arguments":"{}"}]', '<TOOLCALL>[{"name":"f","arguments":{}}]</TOOLCALL>',
        '<|tools_prefix|>[{"f":{}}]<|tools_suffix|>', 'functools[{"name":"f","arguments":{}}]',
        'Action:\n```json\n[{"tool_name":"f","parameters":{}}]\n```', '<function=f>{"n":2}</function> b',
        '[f(s="x"), get_weather()]', '{"name": "f", "parameters": {"n": 1}}']):
    seed("tool_calls", f"format-{index}", bytes([index, 9]) + text.encode())
seed("suffix_index", "repeats", bytes([0, 1, 2, 0, 1, 3, 0, 1, 2, 0, 1, 4] * 3))
seed("suffix_index", "one", bytes(20))

# Grammars of three kinds, each with NUL and a text behind it.
seed("grammar", "json", 'root ::= value\nvalue ::= object | array | string | "null"\n'
     'object ::= "{" (string ":" value ("," string ":" value)*)? "}"\narray ::= "[" (value ("," value)*)? "]"\n'
     'string ::= "\\"" ([^"\\\\\\x00-\\x1F] | "\\\\" ["\\\\bfnrt])* "\\""\n\0{"a":[null,"b"]}')
seed("grammar", "counts", 'root ::= ("a" | "aa"){5,10} [0-9]{2,} # comment\n  \nx ::= root "b"?\n\0aaaaaaa123')
seed("grammar", "tokens", 'root ::= <[7]> !<[8]>* "x" .\n\0x')
seed("grammar", "left", 'root ::= root "+" n | n\nn ::= [0-9]{1,3}\n\x001+22')
seed("schema", "object", '{"type":"object","properties":{"a":{"type":"integer","minimum":-3,"maximum":500},'
     '"b":{"type":"string","pattern":"^[a-z]+$","maxLength":7}},"required":["a"],"additionalProperties":{"type":"null"}}\0{"a":12')
seed("schema", "refs", '{"$defs":{"n":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/n2"}]},"n2":{"type":"array","items":{"$ref":"#/$defs/n"},'
     '"maxItems":3}},"oneOf":[{"$ref":"#/$defs/n2"},{"const":"x"}]}\0[[null],"')
seed("schema", "merge", '{"allOf":[{"type":"string","format":"date"},{"minLength":3}],"enum":["2024-01-01",1]}\0"2024')
seed("schema", "patterns", '{"type":"object","patternProperties":{"^x":{"multipleOf":0.5},"y$":true},"propertyNames":{"maxLength":4},"minProperties":1}\0{"x')
seed("regex", "classes", '^(?:[a-f\\d]{2,4}|\\bword\\b.*?)+$\0ab12word')
seed("regex", "unicode", '\\u{1F600}|[^\\x00-\\x7f]+(?<n>\\s)\\S\0\u00e9 x')
seed("regex", "counts", '((a*)*b?){2,50}c{3}$\0aabccc')
