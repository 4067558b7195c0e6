"""Takes a name, prints "bound", and answers each that asks there with the wrong message and file.

    squat.py NAME USER

Acts as the user of this number.
"""

import contextlib
import os
import socket
import sys

os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
    bound.bind(b"\0" + sys.argv[1].encode())
    bound.listen()
    print("bound", flush=True)
    while True:
        asking, _ = bound.accept()
        # One that has seen the user does not wait.
        with asking, open("/etc/hostname", "rb") as file, contextlib.suppress(OSError):
            socket.send_fds(asking, [bytes(64)], [file.fileno()])
