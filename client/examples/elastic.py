"""The elastic loop: workers come, go and are killed, and training goes on with those that are there.

    cairn local --shards 2                                           # prints the endpoint; it stays until Ctrl-C
    export CAIRN_ENDPOINT=/tmp/cairn-local.../coordinator.sock
    CAIRN_RANK=0 CAIRN_WORLD=1 python3 client/examples/elastic.py &
    CAIRN_RANK=1 CAIRN_WORLD=2 python3 client/examples/elastic.py &
    kill -9 %2                                                       # the first one goes on alone
    CAIRN_RANK=1 CAIRN_WORLD=2 python3 client/examples/elastic.py &

A step is --batch micro-batches, whoever is there: they are dealt to the workers of the round. What is in one, and what
is random in it, follows from its seed, so nothing is lost, nothing is trained on twice, and the parameters after a step
are the same to the bit, however many workers there were (`cairn job digest elastic`). A worker that is killed keeps
nothing that is missed; a new one begins with the servers' parameters, and one that is terminated (SIGTERM) finishes its
round. A shard that is killed and started again has lost its part of the job: the newest snapshot is restored, and the
workers go on from there.
"""

import argparse
import signal

import torch

import cairn
from gpt import GPT, Text, evaluate

leaving = []  # signals that ask for it


def train(m, model, text, steps, rows):
    while m.version.step < steps and not leaving:
        try:
            here, tokens = m.begin(), 0
            if here.step >= steps:
                break  # the others went on without this one: it had no micro-batch, or came late
            for k in here.micro_batches:  # those that this worker is dealt; none if others have them all
                torch.manual_seed(here.micro_seed(k))  # for dropout, if the model has some
                batch = text.batch(rows, here.micro_seed(k))
                count = batch[:, 1:].numel()
                loss = model.loss(batch) * count  # a sum, with its count as weight: the servers have the mean of all
                loss.backward()
                tokens += count
            done = m.step(weight=tokens)
            print(f"step {done.step} worker {here.rank} of {here.world} micro-batches {len(here.micro_batches)}",
                  flush=True)
        except cairn.EpochChanged as why:  # nothing was applied
            print(f"step {m.version.step + 1} is computed again: {why}", flush=True)
        except cairn.RolledBack as why:  # a shard was lost: the newest snapshot's step, whose batch begin() tells
            print(f"step {why.step + 1} comes next: {why}", flush=True)


def flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a file to train on; the King James Bible if not given")
    parser.add_argument("--job", default="elastic")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=4, help="micro-batches of a step, over all workers")
    parser.add_argument("--rows", type=int, default=3, help="of a micro-batch")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--snapshot-every", type=int, default=50, help="steps; the newest two snapshots are kept")
    return parser.parse_args()


def main():
    args = flags()
    signal.signal(signal.SIGTERM, lambda number, _: leaving.append(number))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    text, model = Text(args.text, context=64), GPT(args.width, layers=2, heads=4, context=64)
    with cairn.connect() as session:
        # A round opens with one worker, too. All others that are attached by then take part, 8 at most.
        m = session.attach(model, cairn.AdamW(lr=2e-3), name=args.job, workers=(1, 8), global_batch=args.batch,
                           snapshot_every=args.snapshot_every, snapshot_keep=2, on_shard_loss="restore-latest")
        print(f"attached at step {m.version.step}", flush=True)
        train(m, model, text, args.steps, args.rows)
        print(f"done step {m.version.step} evaluation loss {evaluate(model, text):.4f}", flush=True)


if __name__ == "__main__":
    main()
