"""Binds a name, prints "bound", and answers each request there.

    squat.py NAME USER MESSAGE [KIND:PATH ...]

Acts as the user with this ID. MESSAGE is hexadecimal, and is sent with a descriptor of each path. KIND says
how the path is opened.
"""

import contextlib
import os
import socket
import sys

name, user, message, *kinds_and_paths = sys.argv[1:]
given = [each.split(":", 1) for each in kinds_and_paths]
FLAGS = {
    "read": os.O_RDONLY,
    "write": os.O_WRONLY,
    "both": os.O_RDWR,
    "path": os.O_PATH,
    "direct": os.O_RDONLY | os.O_DIRECT,
}
os.setuid(int(user))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
    bound.bind(b"\0" + name.encode())
    bound.listen()
    print("bound", flush=True)
    while True:
        asking, _ = bound.accept()
        opened = [os.open(path, FLAGS[kind]) for kind, path in given]
        # A process that has seen the user ID does not wait for the answer.
        with asking, contextlib.suppress(OSError):
            socket.send_fds(asking, [bytes.fromhex(message)], opened)
        for descriptor in opened:
            os.close(descriptor)
