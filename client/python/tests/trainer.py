"""A trainer process of the tests: trains gpt.py until the job is at a step, then writes what it saw.

usage: trainer.py OPTIONS_JSON     endpoint, job, rank, world, steps; micro_batches, stage, attach: options of attach
"""

import json
import os
import sys

import torch

import cairn
import gpt


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    model = gpt.gpt(seed=1 if options["rank"] == 0 else 99)  # only rank 0's initial state counts
    micros, redone = options.get("micro_batches", 1), 0
    with cairn.connect(options["endpoint"]) as c:
        m = c.attach(model, cairn.AdamW(lr=1e-3, weight_decay=0.1), name=options["job"], rank=options["rank"],
                     workers_min=options["world"], micro_batches=micros, timeout=30, **options.get("attach", {}))
        print("attached", m.version.step, flush=True)
        while m.version.step < options["steps"]:
            try:
                here = m.begin()
                if here.step == options.get("die_at"):
                    os.kill(os.getpid(), 9)
                for micro in range(micros):
                    gpt.loss_of(model, gpt.batch(here.step, here.rank, micro)).backward()
                m.step()
            except cairn.EpochChanged:
                redone += 1
        seen = {"state": m.state_dict(), "memory": tuple(m.memory()), "redone": redone, "version": tuple(m.version)}
        if "out" in options:
            torch.save(seen, options["out"])


main()
