"""The elastic loop: workers come, go and are killed, and training goes on with those that are there.

    cairn local --shards 2                                           # prints the endpoint; it stays until Ctrl-C
    export CAIRN_ENDPOINT=/tmp/cairn-local.../coordinator.sock
    CAIRN_RANK=0 CAIRN_WORLD=1 python3 client/examples/elastic.py &
    CAIRN_RANK=1 CAIRN_WORLD=2 python3 client/examples/elastic.py &
    kill -9 %2                                                       # the first one goes on alone
    CAIRN_RANK=1 CAIRN_WORLD=2 python3 client/examples/elastic.py &

A step has the same batch whoever computes it: row i is that of worker i modulo the number of workers. So nothing is
lost and nothing is trained on twice. A worker that is killed keeps nothing that is missed; a new one begins with the
servers' parameters. A shard that is killed and started again has lost its part of the job: the newest snapshot is
restored, and the workers go on from there.
"""

import argparse

import torch

import cairn
from gpt import GPT, Text, evaluate


def train(m, model, text, steps, rows):
    while m.version.step < steps:
        try:
            here = m.begin()  # which batch, and which of how many workers this one is: ask each time
            mine = text.batch(rows, here.index)[here.rank::here.world]
            tokens = mine[:, 1:].numel()
            loss = model.loss(mine) * tokens  # a sum, with its count as weight: however the rows are cut,
            loss.backward()  # the servers have the mean over all of them
            done = m.step(weight=tokens)
            print(f"step {done.step} worker {here.rank} of {here.world} rows {len(mine)}", flush=True)
        except cairn.EpochChanged as why:  # nothing was applied
            print(f"step {m.version.step + 1} is computed again: {why}", flush=True)
        except cairn.RolledBack as why:  # a shard was lost: the newest snapshot's step, whose batch begin() tells
            print(f"step {why.step + 1} comes next: {why}", flush=True)


def flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a file to train on; the King James Bible if not given")
    parser.add_argument("--job", default="elastic")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=12, help="rows of a step, over all workers")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--snapshot-every", type=int, default=50, help="steps; the newest two snapshots are kept")
    return parser.parse_args()


def main():
    args = flags()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    text, model = Text(args.text, context=64), GPT(args.width, layers=2, heads=4, context=64)
    with cairn.connect() as session:
        # A round opens with one worker, too. All others that are attached by then take part, 8 at most.
        m = session.attach(model, cairn.AdamW(lr=2e-3), name=args.job, workers=(1, 8),
                           snapshot_every=args.snapshot_every, snapshot_keep=2, on_shard_loss="restore-latest")
        print(f"attached at step {m.version.step}", flush=True)
        train(m, model, text, args.steps, args.batch)
        print(f"done step {m.version.step} evaluation loss {evaluate(model, text):.4f}", flush=True)


if __name__ == "__main__":
    main()
