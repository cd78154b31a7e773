#!/usr/bin/env python3
"""Trains the hybrid demo (hybrid_model.py) on a folder of plain-text stories, beginning with the demo's weights.

  pip install torch numpy tokenizers gguf
  scripts/train_hybrid.py --corpus ../shared/data/corpus --out /tmp/hybrid-train --minutes 30 --draft-minutes 12
  scripts/export_gguf.py /tmp/hybrid-train/draft.pt tests/models/hybrid-q8_0.gguf --name "runnel hybrid demo"

The tokenizer, the embedding, the norms, the feed-forward parts and the attention of every fourth layer are the demo's. The
gated delta nets of the other layers are new: they first learn, each alone, what the demo's attention there gives for the same
input (OUT/mixers.pt). Then all weights of the trunk are trained (OUT/trunk.pt), then the draft block alone (OUT/draft.pt, the
whole model): it begins as a least-squares fit and learns the trunk's probabilities from the trunk's hidden states, and from
its own of the step before, as it is used.
"""

import argparse
from pathlib import Path

import gguf
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import checkpoint
import demo_corpus
import demo_model
import export_gguf
import hybrid_model
import train_demo

CONTEXT = 1024
FIT_WINDOWS = 32  # of CONTEXT tokens, to begin the draft block with
SECOND_STEP = 0.5  # weight of the loss of draft step 2
NEW = train_demo.How(muon=False, warmup=20)
CHANGED = train_demo.How(muon=False, rate=0.3, warmup=20)  # weights that were trained before


def write_tokenizer(reader, path):
    """Writes the tokenizer of a GGUF file as tokenizer.json."""
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    merges = [tuple(merge.split(" ")) for merge in reader.get_field("tokenizer.ggml.merges").contents()]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(demo_corpus.SPECIAL_TOKENS)
    tokenizer.save(str(path))


def matrix(reader, name):
    tensor = next(t for t in reader.tensors if t.name == name)
    return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())


def shape_like(reader):
    """The hybrid's shape for a demo: its sizes, and delta nets with half as many values as the width."""

    def key(name):
        return int(reader.get_field("llama." + name).contents())

    width, heads = key("embedding_length"), key("attention.head_count")
    return hybrid_model.Shape(
        vocabulary=len(reader.get_field("tokenizer.ggml.tokens").contents()),
        width=width,
        layers=key("block_count"),
        heads=heads,
        kv_heads=key("attention.head_count_kv"),
        head_size=width // heads,
        feed_forward=key("feed_forward_length"),
        key_heads=2,
        value_heads=4,
        state_size=width // 8,
    )


def halves(rows, head_size):
    """Rows of queries or keys whose pairs are (2i, 2i+1), in the order of pairs (i, i + head_size/2)."""
    return rows.view(-1, head_size // 2, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


@torch.no_grad()
def copy_layer(reader, i, layer, head_size):
    """Layer i of the demo; of the mixer, only attention. Its gates are 0.5 at first, which twice the output makes up for."""

    def part(name):
        return matrix(reader, f"blk.{i}.{name}.weight")

    layer.mixer_norm.copy_(part("attn_norm"))
    layer.feed_forward_norm.copy_(part("ffn_norm"))
    layer.gate.weight.copy_(part("ffn_gate"))
    layer.up.weight.copy_(part("ffn_up"))
    layer.down.weight.copy_(part("ffn_down"))
    if isinstance(layer.mixer, hybrid_model.GatedDelta):
        return
    queries = halves(part("attn_q"), head_size).view(-1, head_size, layer.mixer.query.weight.shape[1])
    layer.mixer.query.weight.copy_(torch.cat((queries, torch.zeros_like(queries)), 1).flatten(0, 1))
    layer.mixer.key.weight.copy_(halves(part("attn_k"), head_size))
    layer.mixer.value.weight.copy_(part("attn_v"))
    layer.mixer.out.weight.copy_(2 * part("attn_output"))


@torch.no_grad()
def from_demo(reader):
    torch.manual_seed(train_demo.SEED)
    shape = shape_like(reader)
    model = hybrid_model.Hybrid(shape)
    model.embedding.weight.copy_(matrix(reader, "token_embd.weight"))
    model.output_norm.copy_(matrix(reader, "output_norm.weight"))
    for i, layer in enumerate(model.layers):
        copy_layer(reader, i, layer, shape.head_size)
    return model


@torch.no_grad()
def begin_draft(model, data):
    """The draft block begins as a linear map, by least squares, from the token and the state before to the trunk's state. The
    attention and the feed-forward part behind it are those of the trunk's last layer, but add nothing yet."""
    draft, width = model.draft, model.shape.width
    draft.layer.load_state_dict(model.layers[-1].state_dict())
    draft.layer.mixer.out.weight.zero_()
    draft.layer.down.weight.zero_()
    draft.head_norm.copy_(model.output_norm)
    squares, products = 1e-3 * torch.eye(2 * width), torch.zeros(2 * width, width)
    for _ in range(FIT_WINDOWS):
        tokens = data.batch(1, 0)[:, :-1]
        hidden = model.hidden(tokens)
        joined = draft.joined(model.embedding(tokens), hidden)[0, 1:]
        squares += joined.T @ joined
        products += joined.T @ (hidden[0, 1:] / model.output_norm)
    draft.join.weight.copy_(torch.linalg.solve(squares, products).T)


def read_demo(reader, shape):
    """The demo, for contexts as long as those of its training."""
    demo = demo_model.Llama(
        demo_model.Shape(shape.vocabulary, shape.width, shape.layers, shape.heads, shape.kv_heads, shape.feed_forward)
    )
    weights = demo.state_dict()
    for name, own in weights.items():
        weights[name] = matrix(reader, export_gguf.gguf_tensor(name, own.numpy(), demo.shape)[0])
    demo.load_state_dict(weights)
    return demo.requires_grad_(False)


class MixerLoss:
    """The squared error of the delta nets' outputs relative to those of the demo's attention, mean over the layers."""

    def __init__(self, demo):
        self.demo = demo

    def __call__(self, model, tokens):
        shape = self.demo.shape
        tokens = tokens[:, :-1].reshape(-1, shape.context)
        x, losses = self.demo.embedding(tokens), []
        for own, layer in zip(model.layers, self.demo.layers):
            if isinstance(own.mixer, hybrid_model.GatedDelta):
                h = F.rms_norm(x, (shape.width,), layer.attention_norm, shape.epsilon)
                wanted = layer.attention(h, self.demo.cos, self.demo.sin)
                losses.append(F.mse_loss(own.mixer(h, None, None), wanted) / wanted.square().mean())
            x = layer(x, self.demo.cos, self.demo.sin)
        return torch.stack(losses).mean()


def trunk_loss(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def draft_rows(model, tokens):
    """Logits of the trunk, of draft step 1 and of draft step 2 for the same positions (batch x time - 2 x vocabulary)."""
    hidden = model.hidden(tokens)
    first = model.drafted(tokens, hidden)
    second = model.drafted(tokens, first)
    return [model.logits(h[:, 2:]) for h in (hidden, first, second)]


def draft_loss(model, tokens):
    """Cross-entropy of draft steps 1 and 2 with the trunk's probabilities. (Step 2 here also has keys and values of the
    draft's own states at all earlier positions.)"""
    wanted, *drafted = draft_rows(model, tokens[:, :-1])
    wanted = wanted.detach().softmax(-1).flatten(0, 1)
    first, second = (F.cross_entropy(logits.flatten(0, 1), wanted) for logits in drafted)
    return first + SECOND_STEP * second


@torch.no_grad()
def agreement_line(model, data, most=12):
    """How often the draft's most probable token is the trunk's on held-out text."""
    windows = [w for ids, _ in data.held_out for w in ids.split(data.context) if len(w) == data.context]
    windows = windows[:: max(1, len(windows) // most)]
    total = torch.zeros(2)
    for window in windows:
        wanted, *drafted = (logits.argmax(-1) for logits in draft_rows(model, window[None]))
        total += torch.tensor([(wanted == d).float().mean() for d in drafted])
    first, second = (total / len(windows)).tolist()
    return f"held-out agreement with the trunk {first:.1%} in step 1, {second:.1%} in step 2"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default="../shared/data/corpus", help="folder of .txt books (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder for tokenizer.json, trunk.pt and draft.pt")
    parser.add_argument("--start", default="tests/models/demo-q8_0.gguf", help="the demo to begin with (default %(default)s)")
    parser.add_argument("--mixer-minutes", type=float, default=5, help="how long to train the delta nets alone (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=30, help="how long to train the trunk (default %(default)s)")
    parser.add_argument("--draft-minutes", type=float, default=12, help="how long to train the draft block (default %(default)s)")
    parser.add_argument("--mixer-steps", type=int, help="train the delta nets alone for this many steps instead")
    parser.add_argument("--steps", type=int, help="train the trunk for this many steps instead")
    parser.add_argument("--draft-steps", type=int, help="train the draft block for this many steps instead")
    parser.add_argument("--batch", type=int, default=4, help=f"sequences of {CONTEXT} tokens in a step (default %(default)s)")
    parser.add_argument("--only", choices=["mixers", "trunk", "draft"], help="train one of the three (each needs the one before in OUT)")
    train_demo.add_common_arguments(parser)
    return parser.parse_args()


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.threads:
        torch.set_num_threads(options.threads)
    reader = gguf.GGUFReader(options.start)
    write_tokenizer(reader, options.out / "tokenizer.json")
    data = train_demo.Data(options.corpus, options.out, CONTEXT)
    for stage, run in {"mixers": train_mixers, "trunk": train_trunk, "draft": train_draft}.items():
        if options.only in (None, stage):
            run(reader, data, options)


def train_mixers(reader, data, options):
    model = from_demo(reader).requires_grad_(False)
    for layer in model.layers:
        layer.mixer.requires_grad_(isinstance(layer.mixer, hybrid_model.GatedDelta))
    loss = MixerLoss(read_demo(reader, model.shape))
    clock = train_demo.Clock(options.mixer_steps, options.mixer_minutes)
    train_demo.train("mixers", model, loss, data, options, clock, how=NEW)


def train_trunk(reader, data, options):
    model, _ = checkpoint.load(options.out / "mixers.pt")
    model.draft.requires_grad_(False)
    clock = train_demo.Clock(options.steps, options.minutes)
    train_demo.train("trunk", model, trunk_loss, data, options, clock, how=CHANGED)


def train_draft(reader, data, options):
    model, trunk = checkpoint.load(options.out / "trunk.pt")
    model.requires_grad_(False)
    model.draft.requires_grad_(True)
    begin_draft(model, data)
    facts = {"trunk_steps": trunk["steps"], "trunk_tokens": trunk["tokens"]}
    clock = train_demo.Clock(options.draft_steps, options.draft_minutes)
    train_demo.train("draft", model, draft_loss, data, options, clock, agreement_line, CHANGED, **facts)


if __name__ == "__main__":
    main()
