"""Fine-tunes a GPT of gpt.py from a safetensors file, with frozen embeddings.

    cairn local --shards 2 -- $launch --nproc_per_node 2 client/examples/gpt.py --save gpt.safetensors
    cairn local --shards 2 -- $launch --nproc_per_node 2 client/examples/finetune.py --weights gpt.safetensors

$launch is that of gpt.py.

Each shard reads its own part of the file, so no worker needs memory for it; the file must be in a folder that the
shards' import.folders allows (with `cairn local`, the working folder). With --put rank 0 reads it instead. Give
the sizes of the model that gpt.py was given.
"""

import argparse
import json
import os
from fnmatch import fnmatch

import torch

import cairn
from gpt import GPT, Text, evaluate


def read_weights(path):
    """{name: tensor} of a safetensors file in F32."""
    with open(path, "rb") as file:
        raw = bytearray(file.read())
    data = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:data])
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(raw, dtype=torch.float32, offset=data + tensor["data_offsets"][0],
                                   count=torch.Size(tensor["shape"]).numel()).view(tensor["shape"])
            for name, tensor in header.items()}


def flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--weights", required=True, help="a safetensors file, or a folder of Hugging Face's")
    add("--put", action="store_true", help="rank 0 reads the file, not the shards")
    add("--freeze", nargs="*", default=["token.*", "place.*"], help="patterns of parameters that are not trained")
    add("--text", default="/usr/share/common-licenses/GPL-3")
    add("--job", default="finetune")
    add("--steps", type=int, default=100)
    add("--batch", type=int, default=16, help="rows of a step, over all workers")
    add("--stage", type=int, default=2, choices=range(4))
    add("--width", type=int, default=128)
    add("--layers", type=int, default=3)
    add("--heads", type=int, default=4)
    add("--context", type=int, default=64)
    add("--lr", type=float, default=5e-4)
    return parser.parse_args()


def main():
    args, env = flags(), cairn.env()
    torch.set_num_threads(1)
    text, model = Text(args.text, args.context), GPT(args.width, args.layers, args.heads, args.context)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(fnmatch(name, pattern) for pattern in args.freeze))
    if args.put and env.rank == 0:  # attach puts what rank 0 has
        model.load_state_dict(read_weights(args.weights))
    init_from = None if args.put else os.path.abspath(args.weights)
    with cairn.connect() as session:
        m = session.attach(model, cairn.AdamW(lr=args.lr), name=args.job, stage=args.stage, init_from=init_from)
        before = m.state_dict()
        print(f"rank {env.rank} begins with evaluation loss {evaluate(model, text):.4f}", flush=True)
        model.train()
        while m.version.step < args.steps:
            try:
                here = m.begin()
                model.loss(text.batch(args.batch, here.index)[here.rank::here.world]).backward()
                m.step()
            except cairn.EpochChanged:
                continue  # nothing was applied; the step is done again
        print(f"rank {env.rank} done step {m.version.step} evaluation loss {evaluate(model, text):.4f}")
        after = m.state_dict()
    if env.rank == 0:
        same = [name for name in before if torch.equal(before[name], after[name])]
        print(f"unchanged: {' '.join(same) or 'none'}")
        print(f"trained: {len(before) - len(same)} tensors")


if __name__ == "__main__":
    main()
