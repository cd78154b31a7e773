#!/usr/bin/env python3
"""Writes a model trained by train_demo.py or train_hybrid.py as a GGUF file.

  pip install torch numpy gguf
  scripts/export_gguf.py /tmp/demo-train/demo.pt tests/models/demo-q8_0.gguf --name "runnel demo"
  scripts/export_gguf.py /tmp/demo-train/draft.pt tests/models/demo-draft-q8_0.gguf --name "runnel demo draft"
  scripts/export_gguf.py /tmp/hybrid-train/draft.pt tests/models/hybrid-q8_0.gguf --name "runnel hybrid demo"

The tokenizer is read from tokenizer.json beside the checkpoint. A file with --type F16 (matrices; norms stay F32) is the
best source for other formats.
"""

import argparse
import datetime
import json
from pathlib import Path

import gguf
import numpy

import checkpoint
import demo_corpus
import demo_model
import hybrid_model

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRAINING_DATA = (
    "72 public-domain books (some 22 MB) of English fairy tales, folk tales, myths and children's stories, and requests for "
    "stories derived from the same text"
)
FEED_FORWARD = {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
LLAMA_PARTS = FEED_FORWARD | {
    "attention_norm": "attn_norm",
    "feed_forward_norm": "ffn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "attention_out": "attn_output",
}
HYBRID_PARTS = FEED_FORWARD | {
    "mixer_norm": "attn_norm",
    "feed_forward_norm": "post_attention_norm",
    "mixer.query": "attn_q",
    "mixer.key": "attn_k",
    "mixer.value": "attn_v",
    "mixer.query_norm": "attn_q_norm",
    "mixer.key_norm": "attn_k_norm",
    "mixer.qkv": "attn_qkv",
    "mixer.gate": "attn_gate",
    "mixer.alpha": "ssm_alpha",
    "mixer.beta": "ssm_beta",
    "mixer.conv": "ssm_conv1d",
    "mixer.norm": "ssm_norm",
}
KEPT = ("ssm_conv1d.weight", "ssm_alpha.weight", "ssm_beta.weight")  # small matrices that stay F32
DRAFT_PARTS = {
    "join": "nextn.eh_proj",
    "token_norm": "nextn.enorm",
    "hidden_norm": "nextn.hnorm",
    "head_norm": "nextn.shared_head_norm",
}


def description(facts):
    run = f"{facts['steps']} steps, {facts['tokens']} tokens"
    if "trunk_steps" not in facts:
        return f"Trained from scratch by scripts/train_demo.py: {run} of {TRAINING_DATA}."
    trunk = f"{facts['trunk_steps']} steps, {facts['trunk_tokens']} tokens"
    return f"Made from the runnel demo by scripts/train_hybrid.py: {trunk}, and {run} for the draft block (begun by least squares), of {TRAINING_DATA}."


def add_metadata(writer, options, shape, facts):
    writer.add_type("model")
    writer.add_name(options.name)
    writer.add_author("the runnel authors")
    writer.add_license("MIT")
    writer.add_languages(["en"])
    writer.add_tags(["text-generation"])
    writer.add_string("general.date", options.date)
    writer.add_string("general.training_data", TRAINING_DATA)
    writer.add_description(description(facts))
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{options.type}"])
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(shape.vocabulary)
    if isinstance(shape, hybrid_model.Shape):
        add_hybrid_metadata(writer, shape)
    else:
        writer.add_block_count(shape.layers)


def add_hybrid_metadata(writer, shape):
    writer.add_block_count(shape.layers + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    third = shape.head_size // 6  # text has one position, so how the pairs are divided among three does not matter
    writer.add_rope_dimension_sections([shape.head_size // 2 - 2 * third, third, third, 0])
    writer.add_full_attention_interval(shape.attention_interval)
    writer.add_ssm_conv_kernel(shape.conv)
    writer.add_ssm_state_size(shape.state_size)
    writer.add_ssm_group_count(shape.key_heads)
    writer.add_ssm_time_step_rank(shape.value_heads)
    writer.add_ssm_inner_size(shape.value_heads * shape.state_size)


def add_tokenizer(writer, path):
    stored = json.loads(path.read_text(encoding="utf-8"))["model"]
    ids = {id: text for text, id in stored["vocab"].items()}
    tokens = [ids[i] for i in range(len(ids))]
    special = [t in demo_corpus.SPECIAL_TOKENS for t in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in stored["merges"]]
    end, end_of_turn = tokens.index(demo_corpus.END), tokens.index(demo_corpus.END_OF_TURN)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if s else gguf.TokenType.NORMAL for s in special])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_eot_token_id(end_of_turn)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)


def gguf_tensor(name, values, shape):
    """The tensor's name in GGUF and its values there. (The embedding is the output matrix too: llama readers share it where
    output.weight is missing.)"""
    if name == "embedding.weight":
        return "token_embd.weight", values
    if name == "output_norm":
        return "output_norm.weight", values
    if isinstance(shape, demo_model.Shape):
        _, layer, part = name.removesuffix(".weight").split(".")
        return f"blk.{layer}.{LLAMA_PARTS[part]}.weight", values
    if name.startswith("draft."):
        layer, part = shape.layers, name.removeprefix("draft.").removeprefix("layer.")
    else:
        _, layer, part = name.split(".", 2)
    part = part.removesuffix(".weight")
    if part == "mixer.rate_log":
        return f"blk.{layer}.ssm_a", -numpy.exp(values)
    if part == "mixer.step_bias":
        return f"blk.{layer}.ssm_dt.bias", values
    if part == "mixer.out":
        own = "ssm_out" if shape.recurrent(int(layer)) else "attn_output"
        return f"blk.{layer}.{own}.weight", values
    return f"blk.{layer}.{(HYBRID_PARTS | DRAFT_PARTS)[part]}.weight", values


def add_tensors(writer, model, type_name):
    matrix_type = gguf.GGMLQuantizationType[type_name]
    for name, tensor in model.state_dict().items():
        name, values = gguf_tensor(name, tensor.float().numpy(), model.shape)
        if values.ndim == 1 or name.endswith(KEPT):
            writer.add_tensor(name, values.astype(numpy.float32))
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, matrix_type), raw_dtype=matrix_type)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="demo.pt or draft.pt of train_demo.py, or draft.pt of train_hybrid.py")
    parser.add_argument("output", type=Path, help="the GGUF file to write")
    parser.add_argument("--type", choices=["F16", "BF16", "Q8_0"], default="Q8_0", help="format of the matrices (default %(default)s)")
    parser.add_argument("--name", default="runnel demo", help="general.name (default %(default)s)")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="general.date (default: today)")
    options = parser.parse_args()
    model, facts = checkpoint.load(options.checkpoint)
    writer = gguf.GGUFWriter(options.output, "qwen35" if isinstance(model, hybrid_model.Hybrid) else "llama")
    add_metadata(writer, options, model.shape, facts)
    add_tokenizer(writer, options.checkpoint.parent / "tokenizer.json")
    add_tensors(writer, model, options.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{options.output}: {model.parameters_total()} parameters, {options.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
