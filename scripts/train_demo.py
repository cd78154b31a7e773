#!/usr/bin/env python3
"""Trains the demo model and its draft on a folder of plain-text stories.

  pip install torch numpy tokenizers
  scripts/train_demo.py --corpus ../shared/data/corpus --out /tmp/demo-train --minutes 75 --draft-minutes 20
  scripts/export_gguf.py /tmp/demo-train/demo.pt tests/models/demo-q8_0.gguf

Both are llamas with one byte-level BPE tokenizer. The demo learns from the stories as they are and as answers in
conversations (demo_corpus.py); the draft learns the demo's probabilities on the same text, so that speculation accepts
much of what it proposes. Prints the loss on the way and the perplexity of works held out of training.

The learning rate is constant, then falls to zero over the last part of the run, which takes --steps steps or
--minutes minutes. Seeds are fixed, so a run with --steps can be repeated on the same machine.
"""

import argparse
import dataclasses
import functools
import math
import random
import time
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import checkpoint
import demo_corpus
import demo_model

SEED = 1812
VOCABULARY = 2048
CONTEXT = 512
DEMO = demo_model.Shape(vocabulary=VOCABULARY, width=256, layers=4, heads=8, kv_heads=4, feed_forward=512, context=CONTEXT)
DRAFT = demo_model.Shape(vocabulary=VOCABULARY, width=96, layers=2, heads=3, kv_heads=1, feed_forward=256, context=CONTEXT)

WARMUP_STEPS = 60
FALL = 0.4  # the part of the run in which the learning rate falls
MUON_RATE, ADAM_RATE = 0.02, 3e-3
CONVERSATIONS, CONVERSATIONS_LAST = 3 / 8, 1 / 2  # their share of a batch, at first and while the rate falls
OTHERS = 1 / 8  # the share of books that are not tales


def train_tokenizer(texts, path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # GPT-2's pattern
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=demo_corpus.SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return tokenizer


class Windows:
    """Windows of `context` + 1 tokens over a text, each once per epoch in random order. Every epoch has another offset."""

    def __init__(self, tokens, generator, context, starts=None):
        self.tokens, self.generator, self.context, self.starts, self.queue = tokens, generator, context, starts, []

    def _epoch(self):
        if self.starts is None:
            at = numpy.arange(self.generator.integers(self.context), len(self.tokens) - self.context - 1, self.context)
        else:  # each window begins at the first of `starts` near or after the end of the one before
            at, end = [], self.generator.integers(self.context)
            for start in self.starts:
                if start >= end and start + self.context + 1 <= len(self.tokens):
                    at.append(start)
                    end = start + self.context - self.context // 4
        return list(self.generator.permutation(at))

    def take(self, count):
        rows = []
        for _ in range(count):
            self.queue = self.queue or self._epoch()
            at = int(self.queue.pop())
            rows.append(self.tokens[at : at + self.context + 1])
        return rows


def read_corpus(corpus, out):
    """The text as tokens, also kept in OUT/tokens.pt: books, other books and conversations, where these begin, and of each
    work held out its tokens and its size in bytes. Makes OUT/tokenizer.json if it is missing."""
    kept = out / "tokens.pt"
    if kept.exists():
        return torch.load(kept, weights_only=True)
    books = dict(demo_corpus.books(corpus))
    texts = list(books.values())
    tales = [text for name, text in books.items() if demo_corpus.is_tales(name)]
    others = [text for name, text in books.items() if not demo_corpus.is_tales(name)]
    short = [text for name, text in books.items() if demo_corpus.is_short_tales(name)]
    path = out / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path)) if path.exists() else train_tokenizer(texts, path)

    def encode(documents):
        return [torch.tensor(e.ids, dtype=torch.int32) for e in tokenizer.encode_batch(list(documents))]

    talks = encode(t for seed in (SEED, SEED + 1) for t in demo_corpus.conversations(short, random.Random(seed)))
    tokens = {
        "tales": torch.cat(encode(map(demo_corpus.plain_text, tales))),
        "others": torch.cat(encode(map(demo_corpus.plain_text, others))),
        "talks": torch.cat(talks),
        "talk_starts": torch.tensor([0] + [len(t) for t in talks]).cumsum(0)[:-1],
        "held_out": [
            (torch.tensor(tokenizer.encode(demo_corpus.END + text).ids), len(text.encode()))
            for _, text in demo_corpus.books(corpus, held_out=True)
        ],
    }
    torch.save(tokens, kept)
    return tokens


class Data:
    """The training text as tokens, and batches of it."""

    def __init__(self, corpus, out, context=CONTEXT):
        self.context = context
        tokens = read_corpus(corpus, out)
        generator = numpy.random.default_rng([SEED, 0])
        self.tales, self.others = (Windows(tokens[part].numpy(), generator, context) for part in ("tales", "others"))
        self.talks = Windows(tokens["talks"].numpy(), generator, context, tokens["talk_starts"].tolist())
        for name, windows in [("books of tales", self.tales), ("other books", self.others), ("conversations", self.talks)]:
            print(f"{name}: {len(windows.tokens)} tokens", flush=True)
        self.held_out = tokens["held_out"]

    def shuffle(self, step):
        """Starts new epochs in an order that depends on the step alone, so that a resumed run gets other windows."""
        generator = numpy.random.default_rng([SEED, step])
        for windows in (self.tales, self.others, self.talks):
            windows.generator, windows.queue = generator, []

    def batch(self, size, share):
        """size x (context + 1) tokens, `share` of them in conversations."""
        talks, others = round(size * share), round(size * OTHERS)
        rows = self.talks.take(talks) + self.others.take(others) + self.tales.take(size - talks - others)
        return torch.from_numpy(numpy.stack(rows).astype(numpy.int64))


@torch.no_grad()
def held_out_perplexity(model, data, most=12):
    """Perplexity by token and by byte, scoring the second half of each window, over about `most` windows."""
    model.eval()
    windows = [w for ids, _ in data.held_out for w in ids.split(data.context) if len(w) == data.context]
    windows = windows[:: max(1, len(windows) // most)]
    bytes_per_token = sum(size for _, size in data.held_out) / sum(len(ids) for ids, _ in data.held_out)
    total = 0.0
    for window in windows:
        with autocast():
            logits = model(window[None, :-1])[0, data.context // 2 - 1 :]
        total += F.cross_entropy(logits.float(), window[data.context // 2 :]).item()
    model.train()
    loss = total / len(windows)
    return math.exp(loss), math.exp(loss / bytes_per_token)


def autocast():
    return torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16)


class Optimizer:
    """Muon for the layers' matrices, AdamW for the embedding and the norms, or AdamW for all; both follow one schedule."""

    def __init__(self, model, muon):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        matrices = [p for n, p in named if muon and p.dim() == 2 and "embedding" not in n]
        chosen = set(map(id, matrices))
        others = [p for _, p in named if id(p) not in chosen]
        self.parts = [torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.01)]
        self.rates = [ADAM_RATE]
        if muon:
            self.parts.insert(0, torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.02, momentum=0.95))
            self.rates.insert(0, MUON_RATE)

    def step(self, scale):
        for part, rate in zip(self.parts, self.rates):
            for group in part.param_groups:
                group["lr"] = rate * scale
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self):
        return [part.state_dict() for part in self.parts]

    def restore(self, state):
        for part, stored in zip(self.parts, state):
            part.load_state_dict(stored)


class Clock:
    """Progress of a run from 0 to 1, by its steps or by its time limit."""

    def __init__(self, steps, minutes):
        self.steps, self.minutes, self.begin = steps, minutes, time.time()

    def elapsed(self):
        return time.time() - self.begin

    def progress(self, step):
        return step / self.steps if self.steps else self.elapsed() / 60 / self.minutes


@dataclasses.dataclass
class How:
    """How the weights change."""

    muon: bool = True  # for matrices; else AdamW, whose steps are cheaper
    rate: float = 1.0  # of the learning rates
    warmup: int = WARMUP_STEPS


def rate_scale(step, progress, warmup):
    return min(1.0, (step + 1) / warmup, max(0.0, (1 - progress) / FALL))


def loss_on(model, tokens, teacher):
    """Cross-entropy with the next token; with a teacher, mostly with the teacher's probabilities."""
    with autocast():
        logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    if teacher is None:
        return loss
    with torch.no_grad(), autocast():
        wanted = teacher(tokens[:, :-1]).float().softmax(-1)
    return 0.2 * loss + 0.8 * F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(0, 1))


FINAL_WINDOWS = 60  # of held-out text, scored at the end of a run


def perplexity_line(model, data, most=12):
    by_token, by_byte = held_out_perplexity(model, data, most)
    return f"held-out perplexity {by_token:.2f} by token, {by_byte:.4f} by byte"


def train(name, model, loss_on_batch, data, options, clock, measure=perplexity_line, how=How(), **facts):
    """Trains a model to a low loss_on_batch(model, tokens); writes it to OUT/name.pt every few minutes and at the end.
    measure(model, data, most windows) is a line that says how good it is; `facts` are saved with the model."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device)
    optimizer = Optimizer(model, how.muon)
    step, tokens_seen, saved = 0, 0, time.time()
    state_path = options.out / f"{name}-state.pt"
    if options.resume and state_path.exists():
        state = torch.load(state_path, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.restore(state["optimizer"])
        step, tokens_seen, clock.begin = state["step"], state["tokens"], time.time() - state["seconds"]
    data.shuffle(step)
    print(f"{name}: {model.parameters_total()} parameters", flush=True)
    loss_function = torch.compile(loss_on_batch) if options.compile else loss_on_batch

    def save():
        checkpoint.save(model, options.out / f"{name}.pt", steps=step, tokens=tokens_seen, **facts)
        state = {"model": model.state_dict(), "optimizer": optimizer.state(), "step": step, "tokens": tokens_seen, "seconds": clock.elapsed()}
        torch.save(state, state_path)

    while (progress := clock.progress(step)) < 1:
        share = CONVERSATIONS if progress < 1 - FALL else CONVERSATIONS_LAST
        tokens = data.batch(options.batch, share).to(device)
        loss = loss_function(model, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(how.rate * rate_scale(step, progress, how.warmup))
        step += 1
        tokens_seen += tokens.numel()
        if step % 20 == 0:
            print(f"{name} step {step} {progress:.1%} loss {loss.item():.3f}, {tokens_seen} tokens, {clock.elapsed():.0f} s", flush=True)
        if time.time() - saved > 60 * options.save_minutes:
            save()
            print(f"{name} {measure(model, data)}", flush=True)
            saved = time.time()
    save()
    print(f"{name} done: {step} steps, {measure(model, data, most=FINAL_WINDOWS)}", flush=True)
    return model


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default="../shared/data/corpus", help="folder of .txt books (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder for tokenizer.json, demo.pt and draft.pt")
    parser.add_argument("--minutes", type=float, default=75, help="how long to train the demo (default %(default)s)")
    parser.add_argument("--draft-minutes", type=float, default=20, help="how long to train the draft (default %(default)s)")
    parser.add_argument("--steps", type=int, help="train the demo for this many steps instead")
    parser.add_argument("--draft-steps", type=int, help="train the draft for this many steps instead")
    parser.add_argument("--width", type=int, default=DEMO.width, help="width of the demo, a multiple of 64 (default %(default)s)")
    parser.add_argument("--layers", type=int, default=DEMO.layers, help="layers of the demo (default %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help=f"sequences of {CONTEXT} tokens in a step (default %(default)s)")
    parser.add_argument("--only", choices=["demo", "draft"], help="train one of the two (the draft needs OUT/demo.pt)")
    add_common_arguments(parser)
    return parser.parse_args()


def add_common_arguments(parser):
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: all cores)")
    parser.add_argument("--save-minutes", type=float, default=4, help="time between checkpoints (default %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in OUT")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="without torch.compile (slower)")


def demo_shape(options):
    """The demo's shape, or a larger one with its head size and proportions."""
    return dataclasses.replace(
        DEMO,
        width=options.width,
        layers=options.layers,
        heads=DEMO.heads * options.width // DEMO.width,
        kv_heads=DEMO.kv_heads * options.width // DEMO.width,
        feed_forward=DEMO.feed_forward * options.width // DEMO.width,
    )


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.threads:
        torch.set_num_threads(options.threads)
    data = Data(options.corpus, options.out)
    if options.only != "draft":
        torch.manual_seed(SEED)
        model = demo_model.Llama(demo_shape(options))
        train("demo", model, functools.partial(loss_on, teacher=None), data, options, Clock(options.steps, options.minutes))
    if options.only != "demo":
        teacher, _ = checkpoint.load(options.out / "demo.pt")
        teacher.requires_grad_(False).eval().to("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(SEED)
        loss = functools.partial(loss_on, teacher=teacher)
        train("draft", demo_model.Llama(DRAFT), loss, data, options, Clock(options.draft_steps, options.draft_minutes))


if __name__ == "__main__":
    main()
