"""What before.py takes of FSDP2: torch's own, on the CPU from torch 2.7 on.

An older torch has no FSDP2 or one for GPUs alone. There the same names average the gradients of whole models, as
DistributedDataParallel does: the arithmetic of FSDP2 without its savings.
"""

import torch
import torch.distributed as dist

if hasattr(getattr(getattr(torch, "cpu", None), "Stream", None), "record_event"):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    HOW = f"FSDP2 of torch {torch.__version__}"

    def whole_norm(norm):
        return norm.full_tensor()

else:
    HOW = f"torch {torch.__version__} has no FSDP2 for the CPU: whole models, averaged gradients"

    def fully_shard(module):
        def average(gradient):
            gradient = gradient / dist.get_world_size()
            dist.all_reduce(gradient)
            return gradient

        for parameter in module.parameters():
            if parameter._backward_hooks is None:  # else it is a block's
                parameter.register_hook(average)

    def whole_norm(norm):
        return norm

    def StateDictOptions(**_):
        return None

    def get_state_dict(model, optimizer, options):
        return model.state_dict(), optimizer.state_dict()

    def set_state_dict(model, optimizer, *, model_state_dict, optim_state_dict, options):
        model.load_state_dict(model_state_dict)
        optimizer.load_state_dict(optim_state_dict)
