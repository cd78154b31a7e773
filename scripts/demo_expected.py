#!/usr/bin/env python3
"""Writes tests/models/expected.json: other programs' results for the demo models, which runnel's tests compare with.

  pip install tokenizers
  scripts/demo_expected.py --tokenizer /tmp/demo-train/tokenizer.json --peer PATH/llama.cpp/build/bin

Tokens come from the library that made the vocabulary; perplexities and greedy continuations from llama.cpp. Rounding differs
between programs, so their texts differ after a place where two tokens are about equally probable: for other models, find
other PROMPTS.
"""

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
MODELS = ["demo-q8_0.gguf", "demo-draft-q8_0.gguf"]
CHUNKS = 13
# Prompts, and how many tokens to generate: further on, two tokens are about equally probable.
PROMPTS = [('The old king said to his daughter, "', 40), ("The wolf said to the", 40), ("And so the little boy", 40), ("Long ago, in a country far away,", 14)]
TEXTS = [
    "Once upon a time there was a king.",
    "  two  blanks, a\ttab\n\nand \"quotes\"--it's Dorothy's 12345 apples...\n",
    "Naïve façade: smörgåsbord, Ærøskøbing, Příliš žluťoučký kůň",
    "Привет, мир! Γειά σου. שלום. مرحبا",
    "你好，世界。こんにちは 안녕하세요",
    "🦊🪣 emoji 👩‍👩‍👧‍👦 and \u200bzero width",
    "if (x != 0) { return a[i] << 3; }  // code\r\n",
    "We'll they've I'D don't 'twas",
    "\u00a0no-break\u3000ideographic   trailing   ",
]


def run(*command):
    with tempfile.TemporaryDirectory() as scratch:  # the programs leave log files where they run
        return subprocess.run(command, cwd=scratch, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)


def perplexity(peer, model):
    result = run(peer / "llama-perplexity", "-m", model, "-f", ROOT / "tests/data/held-out.txt", "-c", "512", "--chunks", str(CHUNKS), "-t", "2")
    return float(re.search(r"Final estimate: PPL = ([0-9.]+)", result.stdout + result.stderr)[1])


def continuation(peer, prompt, count):
    result = run(peer / "llama-cli", "-m", ROOT / "tests/models" / MODELS[0], "-p", prompt, "-n", str(count), "--temp", "0", "-no-cnv",
                 "--no-display-prompt", "-c", "512", "-t", "2")
    return result.stdout.removesuffix("\n\n").removesuffix(" [end of text]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of train_demo.py")
    parser.add_argument("--peer", type=Path, required=True, help="folder of llama-perplexity and llama-cli")
    options = parser.parse_args()
    tokenizer, peer = Tokenizer.from_file(str(options.tokenizer)), options.peer.resolve()
    found = {
        "made_with": "llama.cpp on the CPU (perplexity, greedy text) and Hugging Face tokenizers, by scripts/demo_expected.py",
        "perplexity": [
            {"model": m, "chunks": CHUNKS, "value": perplexity(peer, ROOT / "tests/models" / m)} for m in MODELS
        ],
        "continuations": [{"prompt": p, "n": n, "text": continuation(peer, p, n)} for p, n in PROMPTS],
        "tokens": [{"text": t, "ids": tokenizer.encode(t).ids} for t in TEXTS],
    }
    path = ROOT / "tests/models/expected.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path}: written")


if __name__ == "__main__":
    main()
