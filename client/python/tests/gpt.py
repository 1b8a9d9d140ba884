"""A GPT of two layers with a tied head, small enough for a test, and batches that follow from (step, rank, micro)."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, CONTEXT, BATCH = 61, 32, 12, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm1(x)).split(WIDTH, dim=-1)
        weights = (q @ k.transpose(-1, -2) / WIDTH ** 0.5 + mask).softmax(-1)
        x = x + self.out(weights @ v)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers: int = 2):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1))

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(CONTEXT))
        for block in self.blocks:
            x = block(x, mask=self.mask.to(x.dtype))
        return self.head(self.norm(x))


def gpt(layers: int = 2, seed: int = 1) -> GPT:
    torch.manual_seed(seed)
    return GPT(layers)


def batch(step: int, rank: int, micro: int = 0):
    draw = torch.Generator().manual_seed(step * 1000 + rank * 10 + micro)
    return torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=draw)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.float().reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
