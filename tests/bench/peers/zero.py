#!/usr/bin/env python3
"""ZeRO in the trainers: ZeroRedundancyOptimizer(AdamW) over gloo, two processes of a thread each on two cores.

Inside the clock: what DistributedDataParallel does with gradients (a division by the number of processes and an
all-reduce of each bucket of 25 MiB, all under way at once), then optimizer.step(), which updates the process's own half
of the parameters and broadcasts it. Outside: the gradients, which lie in the buckets already (no copy of DDP's).
"""

import peer

BUCKET_BYTES = 25 << 20


def buckets_of(params):
    """Each parameter's gradient becomes a view of a bucket; as DDP has them with gradient_as_bucket_view."""
    import torch

    buckets, waiting = [], []
    for param in params:
        waiting.append(param)
        if sum(p.numel() * 4 for p in waiting) >= BUCKET_BYTES or param is params[-1]:
            bucket = torch.empty(sum(p.numel() for p in waiting)).uniform_(-2e-3, 2e-3)
            for p, part in zip(waiting, bucket.split([p.numel() for p in waiting])):
                p.grad = part.view_as(p)
            buckets.append(bucket)
            waiting = []
    return buckets


def make(asked):
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in peer.shapes(asked)]
    chosen = {} if asked.kind == "default" else {asked.kind: True}
    if asked.kind == "fused":
        try:
            probe = torch.nn.Parameter(torch.zeros(8))
            probe.grad = torch.zeros(8)
            torch.optim.AdamW([probe], fused=True).step()
        except (TypeError, RuntimeError) as why:
            raise peer.Absent(f"torch {torch.__version__} has no fused AdamW for the CPU: {why}"[:200])
    optimizer = ZeroRedundancyOptimizer(params, torch.optim.AdamW, parameters_as_bucket_view=asked.flat,
                                        **peer.ADAMW, **chosen)
    buckets = buckets_of(params)

    def step():
        under_way = [dist.all_reduce(bucket.div_(2), async_op=True) for bucket in buckets]
        for reduction in under_way:
            reduction.wait()
        optimizer.step()

    return step, peer.nothing, {"optimizer": f"ZeroRedundancyOptimizer(AdamW, {asked.kind})", "wire": "f32",
                                "flat": asked.flat}


if __name__ == "__main__":
    parser = peer.options_of(__doc__)
    parser.add_argument("--kind", choices=("default", "foreach", "fused"), default="default", help="of AdamW")
    parser.add_argument("--flat", action="store_true", help="parameters_as_bucket_view=True")
    asked = parser.parse_args()
    peer.run("torch.zero" if asked.kind == "default" else f"torch.zero.{asked.kind}", asked, make, processes=2,
             bytes_each=28)
