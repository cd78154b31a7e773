"""The network of the demo models in PyTorch: a llama (RMSNorm, rotary positions, grouped-query attention, SwiGLU, the output
matrix shared with the embedding), written so that its weights go into GGUF as they are.

Rotary positions turn neighboring pairs of a head's dimensions (2i, 2i+1), as GGUF's "llama" architecture expects.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    context: int = 512
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head_size(self):
        return self.width // self.heads


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        kv = shape.kv_heads * shape.head_size
        self.shape = shape
        self.attention_norm = nn.Parameter(torch.ones(shape.width))
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, kv, bias=False)
        self.value = nn.Linear(shape.width, kv, bias=False)
        self.attention_out = nn.Linear(shape.width, shape.width, bias=False)
        self.feed_forward_norm = nn.Parameter(torch.ones(shape.width))
        self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def attention(self, h, cos, sin):
        """What attention adds to the residual stream, for its normalized input h (batch x time x width)."""
        s = self.shape
        batch, time, width = h.shape

        def heads(y, count):
            return y.view(batch, time, count, s.head_size).transpose(1, 2)

        q = rotate(heads(self.query(h), s.heads), cos, sin)
        k = rotate(heads(self.key(h), s.kv_heads), cos, sin)
        v = heads(self.value(h), s.kv_heads)
        group = s.heads // s.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).reshape(batch, time, width))

    def forward(self, x, cos, sin):
        """x: batch x time x width; cos, sin: time x head_size/2."""
        s = self.shape
        x = x + self.attention(F.rms_norm(x, (s.width,), self.attention_norm, s.epsilon), cos, sin)
        h = F.rms_norm(x, (s.width,), self.feed_forward_norm, s.epsilon)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotate(x, cos, sin):
    """Turns the pair (2i, 2i+1) of each head by the angle of its position."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = nn.Parameter(torch.ones(shape.width))
        frequency = shape.rope_base ** (-torch.arange(0, shape.head_size, 2) / shape.head_size)
        angle = torch.arange(shape.context)[:, None] * frequency
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 if "embedding" in name else p.shape[1] ** -0.5)
            if name.endswith(("attention_out.weight", "down.weight")):
                p.data.mul_((2 * shape.layers) ** -0.5)

    def forward(self, tokens):
        """Logits (batch x time x vocabulary) of tokens (batch x time)."""
        time = tokens.shape[1]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos[:time], self.sin[:time])
        x = F.rms_norm(x, (self.shape.width,), self.output_norm, self.shape.epsilon)
        return F.linear(x, self.embedding.weight)

    def parameters_total(self):
        return sum(p.numel() for p in self.parameters())
