"""Programs that need torch, each run in a fork of a process that has imported torch.

Importing torch takes two seconds of processor time, and forking a hundredth of that. In other respects, the
program runs as if Python had just started it: `__main__`, arguments, folder, environment and streams are its
own, and an exit or a crash ends only the fork. A fork cannot measure imports, memory or Python's startup.
Tests of these start a new Python process.
"""

import atexit
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

SERVER = Path(__file__).parents[1] / "programs/torch_server.py"

_lock = threading.RLock()


@functools.cache
def _server():
    """Returns the socket of this process's server. The first program starts the server."""
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # Libraries read these variables when they load. A fork would lose their threads.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        server = subprocess.Popen(
            [sys.executable, str(SERVER), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(_end, requests, server)
    return requests


@functools.cache
def _server_with_brief_ends():
    """Returns the socket of a fork of the server, whose children have brief ends."""
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = TorchProcess(SERVER, 0, "brief", stdin=theirs, stdout=subprocess.DEVNULL)
    atexit.register(_end, requests, server)
    return requests


def _end(requests, server):
    with contextlib.suppress(OSError):
        requests.shutdown(socket.SHUT_RDWR)
    server.wait()


def _python_variables(environment):
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "LD_")) and name != "PYTHONPATH"
    }


def run_torch(code, *arguments, **options):
    """Works like `subprocess.run` for a program that needs torch, and captures its output as text."""
    pipe = subprocess.PIPE
    with TorchProcess(code, *arguments, stdout=pipe, stderr=pipe, text=True, **options) as process:
        try:
            output, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


class TorchProcess(subprocess.Popen):
    """Works like `subprocess.Popen` for a Python program, but forks the server.

    With `has_brief_end`, the program ends without taking the server's modules apart. This is for tests that
    do not examine the end of the interpreter.
    """

    def __init__(self, code, *arguments, has_brief_end=False, **options):
        self._has_brief_end = has_brief_end
        self._code = None if isinstance(code, Path) else code
        program = "-c" if self._code is not None else str(code)
        super().__init__([program, *map(str, arguments)], **options)

    def _execute_child(
        self,
        args,
        executable,
        preexec_fn,
        close_fds,
        pass_fds,
        cwd,
        env,
        startupinfo,
        creationflags,
        shell,
        p2cread,
        p2cwrite,
        c2pread,
        c2pwrite,
        errread,
        errwrite,
        restore_signals,
        gid,
        gids,
        uid,
        umask,
        start_new_session,
        *process_group,
    ):
        environment = dict(os.environ if env is None else env)
        assert _python_variables(environment) == _python_variables(os.environ), (
            "Python reads them as it starts"
        )
        request = {
            "arguments": args,
            "code": self._code,
            "folder": os.path.abspath(cwd or "."),
            "environment": environment,
            "new_session": start_new_session,
        }
        self._status, theirs = socket.socketpair()
        streams = [place if end == -1 else end for place, end in enumerate((p2cread, c2pwrite, errwrite))]
        with _lock:
            requests = _server_with_brief_ends() if self._has_brief_end else _server()
        with theirs:
            socket.send_fds(requests, [json.dumps(request).encode()], [*streams, theirs.fileno()])
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self.pid = int.from_bytes(self._status.recv(4), "little")
        assert self.pid, "the server has ended"
        self._child_created = True

    def _try_wait(self, wait_flags):
        try:
            status = self._status.recv(4, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        assert status, "the server has ended"
        self._status.close()
        return self.pid, int.from_bytes(status, "little")

    def _internal_poll(self, _deadstate=None, **_):
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    number, status = self._try_wait(os.WNOHANG)
                    if number:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode
