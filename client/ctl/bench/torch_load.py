"""Saves a state by torch.save and loads it; prints the seconds. argv: folder, elements."""
import os, sys, time, torch
path = sys.argv[1] + '/torch.pt'
state = {k: torch.zeros(int(sys.argv[2])) for k in ('param', 'exp_avg', 'exp_avg_sq')}
begin = time.monotonic()
torch.save(state, path)
torch.load(path)
print(time.monotonic() - begin, 0)
os.remove(path)
