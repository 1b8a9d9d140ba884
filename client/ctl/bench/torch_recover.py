"""A trainer under torchrun is killed, starts again, loads a checkpoint and makes a step: prints seconds, and 0.

argv: folder, elements. Run once, it starts torchrun, which runs it again as the worker: that makes the
checkpoint (kept in the folder for the next run), steps, and kills itself. The worker after it loads, and steps.
"""
import ctypes, os, sys, time
folder, elems, count = sys.argv[1], int(sys.argv[2]), 32
source = open('/proc/self/cmdline', 'rb').read().split(b'\0')[2].decode()
if 'TORCHELASTIC_RESTART_COUNT' not in os.environ:
    import torch.distributed.checkpoint as dcp
    dcp.load
    os.environ.update(TMPDIR=folder, CAIRN_BENCH_TORCHRUN=str(os.getpid()))
    os.execv(sys.executable, [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=1',
                              '--max-restarts=1', '--no-python', sys.executable, '-c', source, *sys.argv[1:]])
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: a bench that is interrupted kills torchrun, which kills nobody
if os.getppid() != int(os.environ['CAIRN_BENCH_TORCHRUN']):
    sys.exit(1)
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
dist.init_process_group('gloo')
path, killed = folder + '/torch.recover', folder + '/torch.killed'
model = torch.nn.ParameterDict({f't{i}': torch.zeros(elems // count) for i in range(count)})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
def step():
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    optimizer.step()
if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':
    step()
    if not os.path.exists(path):
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({'model': weights, 'optimizer': moments}, checkpoint_id=path)
    with open(killed, 'w') as file:
        file.write(repr(time.monotonic()))
    os.kill(os.getpid(), 9)
weights, moments = get_state_dict(model, optimizer)
dcp.load({'model': weights, 'optimizer': moments}, checkpoint_id=path)
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
step()
print(time.monotonic() - float(open(killed).read()), 0, flush=True)
