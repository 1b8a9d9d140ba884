#!/usr/bin/env python3
"""FSDP2 (fully_shard) over gloo: parameters, gradients and AdamW's state are sharded over two processes.

Inside the clock: the forward's all-gathers of parameters (kept for the backward, as ZeRO 2 does), a backward that
computes nothing (its gradients are there), its reduce-scatters, and AdamW on each process's half. Outside: the
gradients. With --wire bf16 parameters are gathered and gradients reduced in bf16. Eight blocks, each a unit of its own.
"""

import peer


def make(asked):
    import torch
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as why:
        raise peer.Absent(f"torch {torch.__version__} has no FSDP2: {why}")

    import given

    model, parts = given.model_of(peer.shapes(asked), blocks=8)
    dtype = torch.bfloat16 if asked.wire == "bf16" else torch.float32
    options = dict(mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=False,
                   mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype))
    for block in model:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), **peer.ADAMW)

    def prepare():
        optimizer.zero_grad(set_to_none=True)
        for block, part in zip(model, parts):
            block.give(part, dtype)

    step = given.step_with(model, optimizer)

    def run():
        try:
            return step()
        except AttributeError as why:  # torch 2.6 asks the CPU for a stream's events
            raise peer.Absent(f"FSDP2 of torch {torch.__version__} does not run on the CPU: {why}"[:200])

    return run, prepare, {"optimizer": "AdamW, default", "wire": asked.wire}


if __name__ == "__main__":
    parser = peer.options_of(__doc__)
    parser.add_argument("--wire", choices=("f32", "bf16"), default="f32")
    asked = parser.parse_args()
    peer.run(f"torch.fsdp2.{asked.wire}", asked, make, processes=2, bytes_each=36)
