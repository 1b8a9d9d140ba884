"""A small GPT on real text, trained through Cairn: data parallel, in four stages, with tensor parallelism 1 or 2.

    cairn local --shards 2 -- $launch --nproc_per_node 2 client/examples/gpt.py --stage 3
    cairn local --shards 2 -- $launch --nproc_per_node 2 client/examples/gpt.py --tp 2

The text is the King James Bible of Debian's packages bible-kjv and bible-kjv-text, or --text FILE. $launch is
torchrun --standalone, or with Debian's torch 1.13
    python3 -m torch.distributed.run --rdzv_backend c10d --rdzv_endpoint localhost:0 -r 1 -t 1
Without it start WORLD_SIZE processes with RANK set; --tp 2 also wants MASTER_ADDR and MASTER_PORT.
"""

import argparse
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import cairn


# ---- the text: bytes are the vocabulary ----

class Text:
    """The last tenth is for evaluation."""

    def __init__(self, path, context, device="cpu"):
        everything = torch.frombuffer(bytearray(read(path)), dtype=torch.uint8)
        if len(everything) < 20 * (context + 1):
            sys.exit(f"{path}: {len(everything)} bytes are too few for a context of {context}")
        self.context, self.device = context, device
        self.training, self.evaluation = everything.split([len(everything) * 9 // 10, -(-len(everything) // 10)])

    def batch(self, size, seed, evaluation=False):
        """(size, context + 1) bytes. The same for the same seed, in whatever process: a step can be done again."""
        part = self.evaluation if evaluation else self.training
        draw = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(part) - self.context, (size,), generator=draw)
        return torch.stack([part[at:at + self.context + 1] for at in starts.tolist()]).long().to(self.device)


def read(path):
    if path is not None:
        with open(path, "rb") as file:
            return file.read()
    try:
        return subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], stdout=subprocess.PIPE, check=True).stdout
    except FileNotFoundError:
        print("no program `bible`: apt install bible-kjv bible-kjv-text, or give --text FILE", file=sys.stderr)
        sys.exit(2)


# ---- tensor parallelism: each worker of a team has a part of the heads and of the hidden units ----

class Team:
    """`size` workers, `rank` of them this one, that compute one batch together."""

    def __init__(self, rank=0, size=1, group=None):
        self.rank, self.size, self.group = rank, size, group

    def part(self, shape, dim, std=0.02):
        """This worker's part of a tensor that is cut along `dim`. All draw the whole, so that the model does not
        depend on how it is cut; `.part` tells Cairn where this one lies."""
        mine = torch.empty(shape).normal_(std=std).chunk(self.size, dim)[self.rank]
        parameter = nn.Parameter(mine.contiguous())
        if self.size > 1:
            start = [0] * len(shape)
            start[dim] = self.rank * mine.shape[dim]
            parameter.part = cairn.Part(tuple(shape), tuple(start))
        return parameter

    def copy(self, x):
        return x if self.size == 1 else Copy.apply(x, self.group)

    def sum(self, x):
        return x if self.size == 1 else Sum.apply(x, self.group)


class Copy(torch.autograd.Function):
    """Into the parts: every worker has x, and each one's gradient of it is a part of the sum."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Sum(torch.autograd.Function):
    """Out of the parts."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


# ---- the model ----

class Block(nn.Module):
    def __init__(self, width, heads, layers, team):
        super().__init__()
        self.team, self.heads = team, heads // team.size
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        small = 0.02 / (2 * layers) ** 0.5
        self.qkv = team.part((3, width, width), dim=1)  # by columns: q, k and v of this worker's heads
        self.out = team.part((width, width), dim=1, std=small)  # by rows: gives a part of the sum
        self.up = team.part((4 * width, width), dim=0)
        self.down = team.part((width, 4 * width), dim=1, std=small)

    def attend(self, x):  # (batch, time, width)
        q, k, v = (F.linear(x, weight).unflatten(-1, (self.heads, -1)).transpose(1, 2) for weight in self.qkv)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # (batch, heads, time, time)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return F.linear(y.transpose(1, 2).flatten(-2), self.out)

    def forward(self, x):
        x = x + self.team.sum(self.attend(self.team.copy(self.norm1(x))))
        hidden = F.gelu(F.linear(self.team.copy(self.norm2(x)), self.up))
        return x + self.team.sum(F.linear(hidden, self.down))


class GPT(nn.Module):
    def __init__(self, width, layers, heads, context, team=Team()):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, layers, team) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for weight in (self.token.weight, self.place.weight, self.head.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):  # (batch, time) -> (batch, time, 256)
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, tokens):
        """The mean over all tokens but the first of each row. Calls the module itself, whose hooks are Cairn's."""
        return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


# ---- training ----

def flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--text", help="a file to train on; the King James Bible if not given")
    add("--job", default="gpt")
    add("--steps", type=int, default=300)
    add("--batch", type=int, default=16, help="rows of a step, over all workers")
    add("--global-batch", type=int, default=0, metavar="K",
        help="the batch is K parts, dealt to the workers that there are: the same bits for any number (stages 2 and 3)")
    add("--stage", type=int, default=2, choices=range(4))
    add("--tp", type=int, default=1, choices=(1, 2), help="workers that share one batch and the blocks' weights")
    add("--device", default="cpu", help="where the model computes: cpu, or cuda with --tp 1")
    add("--width", type=int, default=128)
    add("--layers", type=int, default=3)
    add("--heads", type=int, default=4)
    add("--context", type=int, default=64)
    add("--lr", type=float, default=2e-3)
    add("--every", type=int, default=20, help="steps between two lines; their loss is of rank 0's rows")
    add("--timeline", help="a file for a Chrome trace of this run's pushes, fetches and passes; of rank 0")
    add("--save", help="a safetensors file for the parameters in the end; finetune.py begins with one")
    return parser.parse_args()


def join_team(tp, env):
    """Ranks 0 and 1 are a team, 2 and 3 the next. Only activations go between its workers."""
    if env.world % tp != 0:
        sys.exit(f"--tp {tp} with {env.world} workers; give a multiple of {tp}")
    if tp == 1:
        return Team()
    os.environ.setdefault("USE_LIBUV", "0")  # Debian 13's torch asks for libuv, and is built without it
    dist.init_process_group("gloo")
    groups = [dist.new_group(list(range(first, first + tp))) for first in range(0, env.world, tp)]
    return Team(env.rank % tp, tp, groups[env.rank // tp])


def phase(timeline, name, call):
    """What the call gives, recorded if there is a timeline."""
    if timeline is None:
        return call()
    with timeline.span(name):
        return call()


def rows_of(here, k, text, args):
    """Of micro-batch k of this worker: a part of the step's batch."""
    batch = text.batch(args.batch, here.index)
    return batch[k::here.global_batch] if here.global_batch else batch[here.rank // args.tp::here.world // args.tp]


@torch.no_grad()
def evaluate(model, text):
    """The same rows at every step and in every run."""
    model.eval()
    return sum(model.loss(text.batch(16, seed, evaluation=True)).item() for seed in range(4)) / 4


def save(path, state):
    """The safetensors format: the length of a JSON header, the header, the bytes of the tensors."""
    header, end = {}, 0
    for name, tensor in state.items():
        begin, end = end, end + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in state.values():
            host = tensor.cpu()
            file.write(ctypes.string_at(host.data_ptr(), 4 * host.numel()))


def main():
    args, env = flags(), cairn.env()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    team, text = join_team(args.tp, env), Text(args.text, args.context, args.device)
    model = GPT(args.width, args.layers, args.heads, args.context, team).to(args.device)
    optim = cairn.AdamW(lr=args.lr, weight_decay=0.1, betas=(0.9, 0.95),
                        groups={"*norm*": dict(weight_decay=0.0)},
                        schedule=cairn.cosine(args.steps, warmup_steps=args.steps // 20, lr_min=args.lr / 10))
    parts = {name: p.part for name, p in model.named_parameters() if hasattr(p, "part")}
    with cairn.connect() as session, contextlib.ExitStack() as cleanup:
        m = session.attach(model, optim, name=args.job, stage=args.stage, clip_norm=1.0, parts=parts,
                           counts=team.rank == 0, global_batch=args.global_batch)
        began, timeline = time.monotonic(), None
        if args.timeline and env.rank == 0:
            timeline = cleanup.enter_context(cairn.Timeline(m))
        while m.version.step < args.steps:
            try:
                here = m.begin()
                for k in here.micro_batches:  # one, or those of the global batch that this worker is dealt
                    mine = rows_of(here, k, text, args)
                    loss = phase(timeline, "forward", lambda: model.loss(mine))
                    phase(timeline, "backward", loss.backward)
                done = phase(timeline, "step", m.step)
            except cairn.EpochChanged:
                continue  # somebody came or went: nothing was applied, the step is done again
            if env.rank == 0 and (done.step % args.every == 0 or done.step == 1):
                speed = args.batch * args.context * args.every / (time.monotonic() - began)
                print(f"step {done.step} loss {loss.item():.4f} lr {done.lr:.2e} tokens/s {speed:.0f}", flush=True)
                began = time.monotonic()
        if timeline is not None:
            cleanup.close()
            timeline.write(args.timeline, env.rank)
            print(f"{100 * timeline.overlap('backward'):.0f} % of the push time is within the backward passes")
            if args.stage == 3:
                print(f"{100 * timeline.ahead():.0f} % of the fetches of units began while another one was used")
        loss = evaluate(model, text)
        if env.rank == 0:
            print(f"done step {m.version.step} evaluation loss {loss:.4f}")
            if args.save:
                save(args.save, m.state_dict())  # whole tensors in fp32, from the servers, whatever stage and tp


if __name__ == "__main__":
    main()
