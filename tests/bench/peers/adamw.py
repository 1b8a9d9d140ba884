#!/usr/bin/env python3
"""AdamW alone on the CPU, one process with a thread a core: torch.optim.AdamW(foreach=True) or (fused=True).

Inside the clock: optimizer.step(). The gradients are there, fp32, as `cairn bench update --only adamw` has them.
"""

import peer


def make(asked):
    import torch

    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in peer.shapes(asked)]
    for param in params:
        param.grad = torch.empty_like(param).uniform_(-2e-3, 2e-3)
    try:
        optimizer = torch.optim.AdamW(params, **peer.ADAMW, **{asked.kind: True})
        optimizer.step()
    except (TypeError, RuntimeError) as why:
        raise peer.Absent(f"torch {torch.__version__} has no {asked.kind} AdamW for the CPU: {why}"[:200])
    return optimizer.step, peer.nothing, {"optimizer": f"AdamW, {asked.kind}"}


if __name__ == "__main__":
    parser = peer.options_of(__doc__)
    parser.add_argument("--kind", choices=("foreach", "fused"), default="foreach")
    asked = parser.parse_args()
    peer.run(f"torch.adamw.{asked.kind}", asked, make, processes=1, bytes_each=40)
