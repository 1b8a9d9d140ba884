#!/usr/bin/env python3
"""DistributedDataParallel over gloo with bf16_compress_hook, and AdamW in full in both processes.

Inside the clock: a backward that computes nothing (its gradients are there), the copies into DDP's buckets, the hook
(cast to bf16, all-reduce, cast back), and AdamW on every parameter in each process: no parameter travels, but no state
is sharded either. Outside: the gradients.
"""

import peer


def make(asked):
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    import given

    try:  # the gloo of torch 1.13 refuses the type
        torch.distributed.all_reduce(torch.zeros(8, dtype=torch.bfloat16))
    except RuntimeError as why:
        raise peer.Absent(f"the gloo of torch {torch.__version__} has no all-reduce of bf16: {why}"[:200])
    model, parts = given.model_of(peer.shapes(asked), blocks=8)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    try:  # torch 2.6 wants NCCL for it
        wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    except TypeError as why:
        raise peer.Absent(f"torch {torch.__version__} has no bf16 hook over gloo: {why}"[:200])
    optimizer = torch.optim.AdamW(model.parameters(), **peer.ADAMW)

    def prepare():
        optimizer.zero_grad(set_to_none=True)
        for block, part in zip(model, parts):
            block.give(part)

    return given.step_with(wrapped, optimizer), prepare, {"optimizer": "AdamW, default", "wire": "bf16"}


if __name__ == "__main__":
    asked = peer.options_of(__doc__).parse_args()
    peer.run("torch.ddp.bf16", asked, make, processes=2, bytes_each=30)
