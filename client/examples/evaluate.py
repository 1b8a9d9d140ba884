"""Evaluates a job of gpt.py while it trains: reads every K-th version, or the newest where that is gone already.

    python3 client/examples/evaluate.py --job gpt --every 50 --until 300

It is no worker: training neither waits for it nor notices when it ends. It needs CAIRN_ENDPOINT and the flags of the
model that gpt.py was given.
"""

import argparse
import time

import torch

import cairn
from gpt import GPT, Text, evaluate


def open_reader(job, timeout):
    """Once a trainer has created the job."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return cairn.reader(job, timeout=timeout)
        except cairn.NotFound:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--text", help="the file that gpt.py was given")
    add("--job", default="gpt")
    add("--every", type=int, default=50, help="steps between two evaluations")
    add("--until", type=int, default=300, help="the last step")
    add("--timeout", type=float, default=60.0, help="seconds to wait for the job, and for the next version")
    add("--width", type=int, default=128)
    add("--layers", type=int, default=3)
    add("--heads", type=int, default=4)
    add("--context", type=int, default=64)
    return parser.parse_args()


def main():
    args = flags()
    torch.set_num_threads(1)
    text, model = Text(args.text, args.context), GPT(args.width, args.layers, args.heads, args.context)
    with open_reader(args.job, args.timeout) as reader:
        version = reader.wait()  # until it has its initial parameters; then the newest
        while True:
            try:
                version = reader.load_into(model, version)
            except cairn.VersionGone:  # gone before it could be leased: training is faster
                version = reader.load_into(model)  # the newest, whichever that is now
            print(f"step {version.step} of generation {version.generation} evaluation loss "
                  f"{evaluate(model, text):.4f}", flush=True)
            if version.step >= args.until:
                return
            next_step = min(version.step + args.every, args.until)
            version = reader.wait(newer_than=cairn.Version(version.generation, next_step - 1))


if __name__ == "__main__":
    main()
