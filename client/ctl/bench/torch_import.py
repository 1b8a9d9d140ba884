"""Imports a file of torch.save, made by the first run and not in the page cache; prints seconds and bytes.

argv: folder, elements.
"""
import os, sys, time, torch, cairn
folder, elems, count = sys.argv[1], int(sys.argv[2]), 16
path = folder + '/import.pt'
names = [f't{i}' for i in range(count)]
model = torch.nn.ParameterDict({n: torch.ones(elems // count) for n in names})
if not os.path.exists(path):
    moments = {i: {'step': torch.tensor(10.), 'exp_avg': torch.full((elems // count,), .1),
                   'exp_avg_sq': torch.full((elems // count,), .2)} for i in range(count)}
    groups = [{'lr': 1e-3, 'params': list(range(count))}]
    torch.save({'model': model.state_dict(),
                'optimizer': {'state': moments, 'param_groups': groups}}, path)
fd = os.open(path, os.O_RDONLY)
os.fsync(fd)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
os.close(fd)
session = cairn.connect()
begin = time.monotonic()
m = cairn.import_checkpoint(session, path, model, cairn.AdamW(lr=1e-3), names=names,
                            name='bench.snapshot')
took = time.monotonic() - begin
m.close()
print(took, os.path.getsize(path), flush=True)
