"""A small GPT, trained with FSDP2. after.py is the same trainer with Cairn; read `diff before.py after.py`.

    torchrun --standalone --nproc_per_node 2 before.py
"""

import argparse
import copy
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_

import fsdp2
from data import Batches, Text
from fsdp2 import StateDictOptions, fully_shard, get_state_dict, set_state_dict, whole_norm
from model import CONTEXT, GPT, evaluate, loss_of

LR, WARMUP, STEPS, CLIP = 3e-3, 6, 60, 1.0
ROWS, PASSES = 8, 2  # of a micro-batch, over all workers; micro-batches of a step
EVERY = 20  # steps between two evaluations and checkpoints
LICENSE = Path(__file__).resolve().parents[3] / "LICENSE"
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=LICENSE, help="a file to train on")
    parser.add_argument("--checkpoint", default="checkpoint.pt", help="a file; training goes on with it")
    return parser.parse_args()


def cosine(step):
    if step < WARMUP:
        return step / WARMUP
    return (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2


def load(path, model, optimizer, scheduler):
    """The step that comes next."""
    if not os.path.exists(path):
        return 0
    saved = torch.load(path, map_location="cpu")
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"],
                   options=WHOLE)
    scheduler.load_state_dict(saved["scheduler"])
    return saved["step"]


def save(path, state):
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def accumulate(model, batches):
    """The mean loss of this rank's part of a step, and its gradients."""
    mean = 0
    for _ in range(PASSES):
        loss = loss_of(model, batches.next())
        (loss / PASSES).backward()
        mean += loss.item() / PASSES
    return mean


def main():
    args = flags()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    batches = Batches(Text(args.text, CONTEXT), ROWS, PASSES, num_workers=1)
    unseen = Text(args.text, CONTEXT, evaluation=True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = GPT()
    whole = copy.deepcopy(model) if rank == 0 else None  # rank 0 cannot evaluate a model of which it has a part
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine)
    step = load(args.checkpoint, model, optimizer, scheduler)
    if rank == 0:
        print(f"begins at step {step}; {fsdp2.HOW}", flush=True)
    batches.seek(step, rank, world)
    while step < STEPS:
        loss = accumulate(model, batches)
        norm, lr = whole_norm(clip_grad_norm_(model.parameters(), CLIP)), scheduler.get_last_lr()[0]
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            print(f"step {step} loss {loss:.6f} norm {norm:.4f} lr {lr:.3e}", flush=True)
        if step % EVERY == 0:
            parameters, moments = get_state_dict(model, optimizer, options=WHOLE)  # all ranks: it is a collective
            if rank == 0:
                save(args.checkpoint, {"step": step, "model": parameters, "optimizer": moments,
                                       "scheduler": scheduler.state_dict()})
                whole.load_state_dict(parameters)
                print(f"step {step} evaluation loss {evaluate(whole, unseen):.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
