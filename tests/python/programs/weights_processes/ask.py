"""Asks for the files that are offered at a name, and prints how many came, or "refused" if nobody offers any.

    ask.py NAME USER

Acts as the user of this number.
"""

import os
import socket
import sys

MOST_FILES = 8

os.setuid(int(sys.argv[2]))

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
    try:
        asking.connect(b"\0" + sys.argv[1].encode())
    except ConnectionRefusedError:
        print("refused")
    else:
        try:
            _, files, _, _ = socket.recv_fds(asking, 1024, MOST_FILES)
        except ConnectionResetError:
            files = []
        print(len(files))
