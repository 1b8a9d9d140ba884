"""A small GPT, trained through Cairn. before.py is the same trainer with FSDP2; read `diff before.py after.py`.

    cairn local --shards 2 -- torchrun --standalone --nproc_per_node 2 after.py
"""

import argparse
from pathlib import Path

import torch

import cairn
from data import Batches, Text
from model import CONTEXT, GPT, evaluate, loss_of

LR, WARMUP, STEPS, CLIP = 3e-3, 6, 60, 1.0
ROWS, PASSES = 8, 2  # of a micro-batch, over all workers; micro-batches of a step
EVERY = 20  # steps between two evaluations and snapshots
LICENSE = Path(__file__).resolve().parents[3] / "LICENSE"


def flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=LICENSE, help="a file to train on")
    parser.add_argument("--job", default="fsdp_port", help="training goes on with it")
    return parser.parse_args()


def accumulate(model, batches):
    """The mean loss of this rank's part of a step, and its gradients."""
    mean = 0
    for _ in range(PASSES):
        loss = loss_of(model, batches.next())
        loss.backward()
        mean += loss.item() / PASSES
    return mean


def main():
    args = flags()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    batches = Batches(Text(args.text, CONTEXT), ROWS, PASSES, num_workers=1)
    unseen = Text(args.text, CONTEXT, evaluation=True)
    session = cairn.connect()
    model = GPT()
    optimizer = cairn.AdamW(lr=LR, weight_decay=0.1, schedule=cairn.cosine(STEPS, warmup_steps=WARMUP))
    m = session.attach(model, optimizer, name=args.job, stage=3, micro_batches=PASSES, clip_norm=CLIP)
    print(f"begins at step {m.version.step}", flush=True)
    while m.version.step < STEPS:
        try:
            here = m.begin()  # which step, and which of how many workers this one is: ask each time
            batches.seek(here.index, here.rank, here.world)
            loss = accumulate(model, batches)
            done = m.step()
            rank, step, norm, lr = here.rank, done.step, done.grad_norm, done.lr
            if rank == 0:
                print(f"step {step} loss {loss:.6f} norm {norm:.4f} lr {lr:.3e}", flush=True)
            if step % EVERY == 0:
                m.snapshot(wait=False)
                if rank == 0:
                    with m.pause("evaluating", at_most=600):  # the others wait, beyond their timeouts
                        print(f"step {step} evaluation loss {evaluate(model, unseen):.6f}", flush=True)
        except cairn.EpochChanged:
            continue  # somebody came or went: nothing was applied, the step is done again
    session.close()


if __name__ == "__main__":
    main()
