"""Saves a part of a state by async_save; prints the stall and all seconds.

argv: folder, elements, processes, which of them.
"""
import shutil, sys, time, torch
import torch.distributed as dist, torch.distributed.checkpoint as dcp
folder, elems, world, rank = sys.argv[1], *map(int, sys.argv[2:])
dcp.async_save
dist.init_process_group('gloo', init_method=f'file://{folder}/torch.meet', rank=rank, world_size=world)
state = {f'{k}.{rank}': torch.ones(elems // world) for k in ('param', 'exp_avg', 'exp_avg_sq')}
for i in range(2):
    dist.barrier()
    begin = time.monotonic()
    saving = dcp.async_save(state, checkpoint_id=f'{folder}/torch.dcp.{i}')
    stall = time.monotonic() - begin
    saving.result()
    whole = time.monotonic() - begin
    dist.barrier()
    if rank == 0: shutil.rmtree(f'{folder}/torch.dcp.{i}')
print(stall, whole)
