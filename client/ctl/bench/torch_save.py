"""Saves a state by torch.save, three times; prints the median of the seconds. argv: folder, elements."""
import os, sys, time, torch
path = sys.argv[1] + '/torch.pt'
state = {k: torch.ones(int(sys.argv[2])) for k in ('param', 'exp_avg', 'exp_avg_sq')}
took = []
for _ in range(3):
    begin = time.monotonic()
    with open(path, 'wb') as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    took.append(time.monotonic() - begin)
    os.remove(path)
print(sorted(took)[1], 0)
