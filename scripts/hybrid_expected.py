#!/usr/bin/env python3
"""Writes tests/models/hybrid-expected.json: what PyTorch and llama.cpp say about the hybrid demo, which runnel's tests compare
with.

  pip install torch numpy tokenizers gguf xllamacpp
  scripts/hybrid_expected.py --tokenizer /tmp/hybrid-train/tokenizer.json

PyTorch computes with the weights of the GGUF file, in F32 (hybrid_model.py). llama.cpp is that of the PyPI package xllamacpp.
"""

import argparse
import json
import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import demo_corpus
import export_gguf
import hybrid_model

ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "tests/data/held-out.txt"
CONTEXT, CHUNKS = 1024, 4
PEER_CHUNKS = 1  # llama.cpp's server is asked once per token
DRAFT_TOKENS = 600
PROMPTS = [("Once upon a time there was a king who", 40), ("The wolf said to the", 40), ("And so the little boy", 40)]


def read_model(path):
    """The network with the weights of a GGUF file."""
    reader = gguf.GGUFReader(path)

    def key(name):
        return reader.get_field("qwen35." + name).contents()

    shape = hybrid_model.Shape(
        vocabulary=len(reader.get_field("tokenizer.ggml.tokens").contents()),
        width=key("embedding_length"),
        layers=key("block_count") - key("nextn_predict_layers"),
        heads=key("attention.head_count"),
        kv_heads=key("attention.head_count_kv"),
        head_size=key("attention.key_length"),
        feed_forward=key("feed_forward_length"),
        key_heads=key("ssm.group_count"),
        value_heads=key("ssm.time_step_rank"),
        state_size=key("ssm.state_size"),
        attention_interval=key("full_attention_interval"),
        conv=key("ssm.conv_kernel"),
        context=key("context_length"),
        rope_base=key("rope.freq_base"),
        epsilon=key("attention.layer_norm_rms_epsilon"),
    )
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    model = hybrid_model.Hybrid(shape)
    weights = model.state_dict()
    for name, own in weights.items():
        stored, _ = export_gguf.gguf_tensor(name, numpy.zeros(own.shape), shape)
        values = tensors[stored]
        weights[name] = torch.from_numpy(numpy.log(-values) if stored.endswith("ssm_a") else values.copy())
    model.load_state_dict(weights)
    return model.eval()


def chunks(ids, begin, count):
    """Chunks of the text as llama-perplexity makes them: BOS replaces the first token."""
    parts = torch.tensor(ids[: CONTEXT * count]).view(count, CONTEXT).clone()
    parts[:, 0] = begin
    return parts


@torch.no_grad()
def torch_perplexity(model, parts):
    logits = torch.cat([model(part[None]) for part in parts])[:, CONTEXT // 2 : -1]
    return math.exp(F.cross_entropy(logits.flatten(0, 1), parts[:, CONTEXT // 2 + 1 :].flatten()).item())


@torch.no_grad()
def agreement(model, ids):
    """At how many positions from the third on the draft block's most probable token, in step 1, is the trunk's."""
    tokens = torch.tensor([ids])
    hidden = model.hidden(tokens)
    drafted = model.drafted(tokens, hidden)
    wanted, found = (model.logits(h[0, 2:]).argmax(-1) for h in (hidden, drafted))
    return (wanted == found).float().mean().item()


def peer_perplexity(model, ids, begin, count):
    """From the logits that scripts/xllamacpp-perplexity saves (a scale, a least value, and 16 bits for each token)."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "logits"
        command = [sys.executable, ROOT / "scripts/xllamacpp-perplexity", "-m", model, "-f", TEXT, "--kl-divergence-base", out]
        subprocess.run([*command, "-c", str(CONTEXT), "--chunks", str(count)], check=True, stdout=subprocess.DEVNULL)
        saved = out.read_bytes()
    _, vocabulary, _ = struct.unpack_from("<iii", saved, 8)
    at = 20 + 4 * CONTEXT * count
    total, scored = 0.0, 0
    for part in chunks(ids, begin, count).tolist():
        for token in part[CONTEXT // 2 + 1 :]:
            step, least = struct.unpack_from("<ff", saved, at)
            (value,) = struct.unpack_from("<H", saved, at + 8 + 2 * token)
            total -= least + step * value
            scored += 1
            at += 8 + 2 * (vocabulary + vocabulary % 2)
    return math.exp(total / scored)


def peer_texts(model):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = 512
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 2
    params.verbosity = 0
    server = xllamacpp.Server(params)
    for prompt, count in PROMPTS:
        reply = server.handle_completions({"prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": False})
        yield {"prompt": prompt, "n": count, "text": reply["choices"][0]["text"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of train_hybrid.py")
    parser.add_argument("--model", type=Path, default=ROOT / "tests/models/hybrid-q8_0.gguf", help="default %(default)s")
    parser.add_argument("--out", type=Path, default=ROOT / "tests/models/hybrid-expected.json", help="default %(default)s")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    begin = tokenizer.token_to_id(demo_corpus.END)
    ids = [begin] + tokenizer.encode(TEXT.read_text(encoding="utf-8").removesuffix("\n")).ids
    model = read_model(options.model)
    found = {
        "made_with": "PyTorch and llama.cpp on the CPU, by scripts/hybrid_expected.py",
        "perplexity": {"context": CONTEXT, "chunks": CHUNKS, "torch": torch_perplexity(model, chunks(ids, begin, CHUNKS))},
        "peer_perplexity": {"context": CONTEXT, "chunks": PEER_CHUNKS, "llama.cpp": peer_perplexity(options.model, ids, begin, PEER_CHUNKS)},
        "draft_agreement": {"tokens": DRAFT_TOKENS, "torch": agreement(model, ids[:DRAFT_TOKENS])},
        "continuations": list(peer_texts(options.model)),
    }
    options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{options.out}: written")


if __name__ == "__main__":
    main()
