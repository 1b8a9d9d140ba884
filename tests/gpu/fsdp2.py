"""One way of a training step of a transformer of about 1 G parameters on one card: 8,192 tokens in two micro-batches.

    bare    forward and backward passes alone: no optimizer, gradients are dropped
    fsdp2   torch's fully_shard with one rank, bf16 with fp32 masters and sums, clip_grad_norm_, fused AdamW
    cairn   the model in bf16, its masters and moments on a shard of the same card (CAIRN_ENDPOINT says where)

Prints one line of JSON: seconds a step, the card's memory, the last loss. Each way is a process of its own: none finds
another one's memory. Exit status 77: this torch, or the card, has not what it needs.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MICRO_BATCHES = 2
CLIP, LR, BETAS, DECAY = 1.0, 1e-4, (0.9, 0.95), 0.1


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):  # (batch, time, width)
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, width, layers, heads, context, words):
        super().__init__()
        self.token, self.place = nn.Embedding(words, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        for weight in (self.token.weight, self.place.weight, self.head.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Batches:
    """Two of them, the same in every step and way: what is learned of them shows that the ways do the same."""

    def __init__(self, args):
        draw = torch.Generator().manual_seed(7)
        rows = args.tokens // args.context // MICRO_BATCHES
        if rows < 1:
            sys.exit(f"--tokens {args.tokens}: less than a row of {args.context} each micro-batch")
        shape = (MICRO_BATCHES, rows, args.context + 1)
        self.tokens = torch.randint(args.words, shape, generator=draw).to(args.device)

    def loss(self, model, i):
        logits = model(self.tokens[i][:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), self.tokens[i][:, 1:].flatten())


# ---- the ways: each gives a function that makes a step, and its loss ----

def bare(model, batches):
    model = model.to(torch.bfloat16)

    def step():
        for i in range(MICRO_BATCHES):
            loss = batches.loss(model, i)
            loss.backward()
        model.zero_grad(set_to_none=True)
        return loss
    return step


def fsdp2(model, batches):
    import torch.distributed as dist
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:
        print(f"skip: torch {torch.__version__} has no fully_shard (it came with 2.6)")
        sys.exit(77)
    on_card = batches.tokens.device.type == "cuda"
    dist.init_process_group("nccl" if on_card else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in [*model.blocks, model]:
        # With one rank there is nothing to gain by letting go of gathered parameters.
        fully_shard(module, mp_policy=policy, reshard_after_forward=False)
    optim = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=DECAY, fused=True)

    def step():
        for i in range(MICRO_BATCHES):
            model.set_requires_gradient_sync(i + 1 == MICRO_BATCHES)
            loss = batches.loss(model, i)
            (loss / MICRO_BATCHES).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optim.step()
        optim.zero_grad(set_to_none=True)
        return loss
    return step


def cairn(model, batches):
    import cairn as c
    session = c.connect()
    m = session.attach(model.to(torch.bfloat16), c.AdamW(lr=LR, betas=BETAS, weight_decay=DECAY), name="fsdp2",
                       stage=2, micro_batches=MICRO_BATCHES, clip_norm=CLIP, workers=1)

    def step():
        for i in range(MICRO_BATCHES):
            loss = batches.loss(model, i)
            loss.backward()
        m.step()
        return loss
    step.stats = m.job.stats
    return step


# ---- measured ----

class Card:
    """What is asked of the device; nothing of it where that is the host's."""

    def __init__(self, device):
        self.is_there = device.type == "cuda"
        self.free = torch.cuda.mem_get_info(device)[0] if self.is_there else 0
        self.device = device

    def wait(self):
        if self.is_there:
            torch.cuda.synchronize(self.device)

    def figures(self):
        if not self.is_there:
            return {}
        free, total = torch.cuda.mem_get_info(self.device)
        return {"card": torch.cuda.get_device_name(self.device), "torch_peak_bytes": torch.cuda.max_memory_allocated(),
                "card_used_bytes": total - free}


def measure(args):
    device = torch.device(args.device)
    torch.manual_seed(1)
    card = Card(device)
    if card.is_there and card.free < args.room:
        print(f"skip: {card.free} bytes of the card are free, {args.room} are needed")
        return 77
    with device:
        model = Transformer(args.width, args.layers, args.heads, args.context, args.words)
    params = sum(p.numel() for p in model.parameters())
    step = {"bare": bare, "fsdp2": fsdp2, "cairn": cairn}[args.way](model, Batches(args))
    times, loss = [], None
    for i in range(args.warm + args.steps):
        card.wait()
        began = time.perf_counter()
        loss = step()
        card.wait()
        if i >= args.warm:
            times.append(time.perf_counter() - began)
    out = {"way": args.way, "torch": torch.__version__, "params": params, "tokens": args.tokens,
           "seconds": statistics.median(times), "seconds_min": min(times), "seconds_max": max(times),
           "loss": loss.item(), **card.figures()}
    if hasattr(step, "stats"):
        out.update({name: value for name, value in step.stats()._asdict().items() if name.endswith("ed_bytes")})
    print(json.dumps(out), flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("way", choices=("bare", "fsdp2", "cairn"))
    add("--device", default="cuda")
    add("--tokens", type=int, default=8192)
    add("--context", type=int, default=2048)
    add("--width", type=int, default=2048)
    add("--layers", type=int, default=17)
    add("--heads", type=int, default=16)
    add("--words", type=int, default=32000)
    add("--warm", type=int, default=3)
    add("--steps", type=int, default=10)
    add("--room", type=int, default=40 << 30, help="bytes of the card that must be free")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("skip: torch sees no card")
        return 77
    status = measure(args)
    sys.stdout.flush()
    if args.way == "fsdp2":
        os._exit(status)  # what a process group does as a process ends is nothing to wait for
    return status


if __name__ == "__main__":
    sys.exit(main())
