"""A trainer process of the tests: trains gpt.py until each job is at a step, then writes what it saw.

usage: trainer.py OPTIONS_JSON     endpoint, rank, world, out, and jobs: a list of {name, steps, micro_batches, die_at,
                                   attach: options of attach}
"""

import json
import os
import sys

import torch

import cairn
import gpt


def train(session: cairn.Session, rank: int, world: int, job: dict) -> dict:
    model = gpt.gpt(seed=1 if rank == 0 else 99)  # only rank 0's initial state counts
    micros, redone = job.get("micro_batches", 1), 0
    m = session.attach(model, cairn.AdamW(lr=1e-3, weight_decay=0.1), name=job["name"], rank=rank, workers_min=world,
                       micro_batches=micros, timeout=60, **job.get("attach", {}))
    began = m.version.step
    print(job["name"], "attached at", began, flush=True)
    while m.version.step < job["steps"]:
        try:
            here = m.begin()
            if here.step == job.get("die_at"):
                os.kill(os.getpid(), 9)
            for micro in range(micros):
                gpt.loss_of(model, gpt.batch(here.step, here.rank, micro)).backward()
            m.step()
        except cairn.EpochChanged:
            redone += 1
    seen = {"state": m.state_dict(), "memory": m.memory()._asdict(), "redone": redone, "began": began}
    m.close()
    return seen


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    with cairn.connect(options["endpoint"]) as session:
        seen = {job["name"]: train(session, options["rank"], options["world"], job) for job in options["jobs"]}
    torch.save(seen, options["out"])


main()
