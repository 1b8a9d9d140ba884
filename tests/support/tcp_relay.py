#!/usr/bin/env python3
"""A TCP relay whose connections can be cut: usage: tcp_relay.py TARGET_HOST:PORT READY_FILE

Writes its own address to READY_FILE. SIGUSR1 cuts every connection; the relay goes on for new ones. Ends
with its parent or on SIGTERM."""
import os
import selectors
import signal
import socket
import sys

target_host, target_port = sys.argv[1].rsplit(":", 1)
selector = selectors.DefaultSelector()
other = {}  # socket -> the one it is relayed to
cut_asked = False


def ask_cut(_signal, _frame):
    global cut_asked
    cut_asked = True


def cut(end):
    for s in (end, other.get(end)):
        if s in other:
            selector.unregister(s)
            del other[s]
            s.close()


def accept(listener):
    near, _ = listener.accept()
    far = socket.create_connection((target_host, int(target_port)))
    other[near], other[far] = far, near
    for s in (near, far):
        selector.register(s, selectors.EVENT_READ)


def relay(end):
    try:
        data = end.recv(1 << 16)
        if data:
            other[end].sendall(data)
    except OSError:
        data = b""
    if not data:
        cut(end)


def main():
    global cut_asked
    signal.signal(signal.SIGUSR1, ask_cut)
    signal.siginterrupt(signal.SIGUSR1, True)
    listener = socket.create_server(("127.0.0.1", 0))
    selector.register(listener, selectors.EVENT_READ)
    with open(sys.argv[2] + ".new", "w", encoding="ascii") as ready:
        ready.write("127.0.0.1:%d\n" % listener.getsockname()[1])
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    parent = os.getppid()
    while os.getppid() == parent:
        for key, _ in selector.select(timeout=0.1):
            if key.fileobj is listener:
                accept(listener)
            elif key.fileobj in other:
                relay(key.fileobj)
        if cut_asked:
            cut_asked = False
            for end in list(other):
                cut(end)


main()
