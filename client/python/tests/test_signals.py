"""What a process does on a signal is the same before the library is loaded, after that, while a session is open and
when it is closed: with handlers of its own, and with none."""

import os
import subprocess
import sys
import unittest

from cluster import Cluster
from runner import main

CHILD = """
import ctypes, signal, sys

libc = ctypes.CDLL(None)

class Action(ctypes.Structure):  # struct sigaction of glibc
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ubyte * 128), ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p)]

RESTORER = 0x04000000  # how a handler returns: the C library's business

def actions():
    found = {}
    for number in range(1, 65):
        action = Action()
        if libc.sigaction(number, None, ctypes.byref(action)) == 0:
            found[number] = (action.handler, bytes(action.mask)[:8], action.flags & ~RESTORER)  # of 64 signals
    return found

@ctypes.CFUNCTYPE(None, ctypes.c_int)
def own(number):
    pass

if sys.argv[2] == "own":
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    for number in (signal.SIGHUP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGUSR1):
        libc.signal(number, ctypes.cast(own, ctypes.c_void_p))
before = actions()

def check(when):
    changed = [number for number, action in actions().items() if action != before[number]]
    if changed:
        sys.exit(f"{when}: the actions of signals {changed} are others")

import cairn
from cairn import _c
_c.lib()
check("loaded")
with cairn.connect(sys.argv[1]) as session:
    check("open")
check("closed")
if sys.argv[2] != "own":
    libc.kill(libc.getpid(), signal.SIGHUP)
    sys.exit("it survived SIGHUP")
"""


class Signals(unittest.TestCase):
    def run_child(self, how: str, endpoint: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-c", CHILD, endpoint, how], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ))

    def test_the_signals_of_a_process_are_its_own(self):
        with Cluster(shards=1) as cluster:
            own = self.run_child("own", cluster.endpoint)
            self.assertEqual((own.returncode, own.stderr), (0, ""))
            none = self.run_child("none", cluster.endpoint)
            self.assertEqual(none.returncode, -1, none.stderr)  # SIGHUP


if __name__ == "__main__":
    main()
