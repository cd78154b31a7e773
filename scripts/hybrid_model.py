"""The network of the hybrid demo in PyTorch: GGUF's architecture "qwen35" (gated delta nets, every fourth layer gated
attention, SwiGLU, the output matrix shared with the embedding) with a block that predicts the token after next, written so
that its weights go into GGUF as they are.

The delta rule is computed in chunks (Yang et al. 2024, "Parallelizing linear transformers with the delta rule", with the
decay of "Gated delta networks"). Value head h uses key head h mod key_heads. Rotary positions turn the dimensions i and
i + head_size/2 of a head.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 64


@dataclass
class Shape:
    vocabulary: int
    width: int
    layers: int  # without the draft block
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    key_heads: int
    value_heads: int
    state_size: int  # of a key and of a value of the delta rule
    attention_interval: int = 4
    conv: int = 4
    context: int = 2048
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    def recurrent(self, layer):
        return (layer + 1) % self.attention_interval != 0 and layer < self.layers


def norm(x, weight, epsilon):
    return F.rms_norm(x, (x.shape[-1],), weight, epsilon)


def rotate(x, cos, sin):
    """Turns the pair (i, i + head_size/2) of each head by the angle of its position."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


def delta_rule(q, k, v, log_decay, strength):
    """Outputs of the gated delta rule. q, k, v: batch x heads x time x state_size, log_decay and strength: batch x heads x
    time; time is a multiple of CHUNK. For each token, with the state S (zero at first):
      S = exp(log_decay) S;  S = S + k (strength (v - S^T k))^T;  out = S^T q
    """
    batch, heads, time, size = q.shape

    def chunks(x):
        return x.reshape(batch, heads, time // CHUNK, CHUNK, *x.shape[3:])

    q, k, v, strength = chunks(q), chunks(k), chunks(v), chunks(strength)[..., None]
    total = chunks(log_decay).cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -math.inf).exp()
    system = (strength * between * (k @ k.transpose(-1, -2))).tril(-1) + torch.eye(CHUNK, device=q.device)
    right = torch.cat((strength * v, strength * total.exp()[..., None] * k), -1)
    own, of_state = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True).chunk(2, -1)
    within = between * (q @ k.transpose(-1, -2))
    q_decayed = total.exp()[..., None] * q
    k_decayed = ((total[..., -1:] - total).exp()[..., None] * k).transpose(-1, -2)
    last = total[..., -1].exp()[..., None, None]
    state, out = q.new_zeros(batch, heads, size, size), []
    for i in range(time // CHUNK):
        deltas = own[:, :, i] - of_state[:, :, i] @ state
        out.append(q_decayed[:, :, i] @ state + within[:, :, i] @ deltas)
        state = last[:, :, i] * state + k_decayed[:, :, i] @ deltas
    return torch.cat(out, 2)


class GatedDelta(nn.Module):
    def __init__(self, s):
        super().__init__()
        keys, values = s.key_heads * s.state_size, s.value_heads * s.state_size
        self.shape, self.parts = s, [keys, keys, values]
        self.qkv = nn.Linear(s.width, 2 * keys + values, bias=False)
        self.gate = nn.Linear(s.width, values, bias=False)
        self.alpha = nn.Linear(s.width, s.value_heads, bias=False)
        self.beta = nn.Linear(s.width, s.value_heads, bias=False)
        self.conv = nn.Parameter(torch.randn(2 * keys + values, s.conv) * s.conv**-0.5)
        # Decays of exp(-0.002) to exp(-0.5) per token at first, so that some heads remember long.
        step = torch.logspace(math.log10(0.002), math.log10(0.5), s.value_heads)
        self.step_bias = nn.Parameter(step.expm1().log())
        self.rate_log = nn.Parameter(torch.zeros(s.value_heads))
        self.norm = nn.Parameter(torch.ones(s.state_size))
        self.out = nn.Linear(values, s.width, bias=False)

    def forward(self, x, cos, sin):
        s = self.shape
        batch, time, _ = x.shape
        padding = -time % CHUNK  # tokens that change nothing behind the text
        mixed = F.pad(self.qkv(x), (0, 0, s.conv - 1, padding))
        mixed = F.silu(sum(self.conv[:, j] * mixed[:, j : j + time + padding] for j in range(s.conv)))

        def heads(y, count):
            return y.view(batch, time + padding, count, s.state_size).transpose(1, 2)

        def unit(y):
            return y * (y.square().sum(-1, keepdim=True) + s.epsilon).rsqrt()

        q, k, v = mixed.split(self.parts, -1)
        repeat = s.value_heads // s.key_heads
        q = unit(heads(q, s.key_heads)).repeat(1, repeat, 1, 1) * s.state_size**-0.5
        k = unit(heads(k, s.key_heads)).repeat(1, repeat, 1, 1)
        log_decay = -self.rate_log.exp() * F.softplus(self.alpha(x) + self.step_bias)
        log_decay, strength = (
            F.pad(y, (0, 0, 0, padding)).transpose(1, 2) for y in (log_decay, self.beta(x).sigmoid())
        )
        out = delta_rule(q, k, heads(v, s.value_heads), log_decay, strength)[:, :, :time].transpose(1, 2)
        out = norm(out, self.norm, s.epsilon) * F.silu(self.gate(x).view(out.shape))
        return self.out(out.reshape(batch, time, -1))


class GatedAttention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.shape = s
        self.query = nn.Linear(s.width, 2 * s.heads * s.head_size, bias=False)  # per head: the query, then its gate
        self.key = nn.Linear(s.width, s.kv_heads * s.head_size, bias=False)
        self.value = nn.Linear(s.width, s.kv_heads * s.head_size, bias=False)
        self.query_norm = nn.Parameter(torch.ones(s.head_size))
        self.key_norm = nn.Parameter(torch.ones(s.head_size))
        self.out = nn.Linear(s.heads * s.head_size, s.width, bias=False)

    def forward(self, x, cos, sin):
        s = self.shape
        batch, time, _ = x.shape
        q, gate = self.query(x).view(batch, time, s.heads, 2 * s.head_size).chunk(2, -1)
        k, v = (y.view(batch, time, s.kv_heads, s.head_size).transpose(1, 2) for y in (self.key(x), self.value(x)))
        q = rotate(norm(q.transpose(1, 2), self.query_norm, s.epsilon), cos, sin)
        k = rotate(norm(k, self.key_norm, s.epsilon), cos, sin)
        group = s.heads // s.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.out((out * gate.sigmoid()).reshape(batch, time, -1))


class Layer(nn.Module):
    def __init__(self, shape, recurrent):
        super().__init__()
        self.epsilon = shape.epsilon
        self.mixer_norm = nn.Parameter(torch.ones(shape.width))
        self.mixer = GatedDelta(shape) if recurrent else GatedAttention(shape)
        self.feed_forward_norm = nn.Parameter(torch.ones(shape.width))
        self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x, cos, sin):
        """x: batch x time x width; cos, sin: time x head_size/2."""
        x = x + self.mixer(norm(x, self.mixer_norm, self.epsilon), cos, sin)
        h = norm(x, self.feed_forward_norm, self.epsilon)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class DraftBlock(nn.Module):
    """Predicts the token after next. Its input at a position is the token there and the hidden state of the position before
    (zeros at the first one): the trunk's behind output_norm, or this block's own in further draft steps."""

    def __init__(self, shape):
        super().__init__()
        self.epsilon = shape.epsilon
        self.token_norm = nn.Parameter(torch.ones(shape.width))
        self.hidden_norm = nn.Parameter(torch.ones(shape.width))
        self.join = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.layer = Layer(shape, recurrent=False)
        self.head_norm = nn.Parameter(torch.ones(shape.width))

    def forward(self, embedded, hidden, cos, sin):
        """Hidden states (batch x time x width) of embedded tokens and the trunk's hidden states, both batch x time x width."""
        x = self.join(self.joined(embedded, hidden))
        return norm(self.layer(x, cos, sin), self.head_norm, self.epsilon)

    def joined(self, embedded, hidden):
        """The input of `join`: each token's embedding, and the hidden state of the position before."""
        before = F.pad(hidden[:, :-1], (0, 0, 1, 0))
        return torch.cat((norm(embedded, self.token_norm, self.epsilon), norm(before, self.hidden_norm, self.epsilon)), -1)


class Hybrid(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape, shape.recurrent(i)) for i in range(shape.layers))
        self.output_norm = nn.Parameter(torch.ones(shape.width))
        self.draft = DraftBlock(shape)
        frequency = shape.rope_base ** (-torch.arange(0, shape.head_size, 2) / shape.head_size)
        angle = torch.arange(shape.context)[:, None] * frequency
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if name.endswith(".weight"):
                nn.init.normal_(p, std=0.02 if "embedding" in name else p.shape[1] ** -0.5)
            if name.endswith(("out.weight", "down.weight")):
                p.data.mul_((2 * shape.layers) ** -0.5)

    def hidden(self, tokens):
        """Hidden states (batch x time x width) of tokens (batch x time), behind output_norm."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, *self._angles(tokens))
        return norm(x, self.output_norm, self.shape.epsilon)

    def drafted(self, tokens, hidden):
        """Hidden states of the draft block for tokens and the hidden states of the same positions."""
        return self.draft(self.embedding(tokens), hidden, *self._angles(tokens))

    def logits(self, hidden):
        return F.linear(hidden, self.embedding.weight)

    def forward(self, tokens):
        """Logits (batch x time x vocabulary) of tokens (batch x time), in F32, which the delta rule needs."""
        with torch.autocast(tokens.device.type, enabled=False):
            return self.logits(self.hidden(tokens))

    def parameters_total(self):
        return sum(p.numel() for p in self.parameters())

    def _angles(self, tokens):
        return self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
