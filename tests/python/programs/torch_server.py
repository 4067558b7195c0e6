"""A server that imports torch once and forks a child for each requested program.

``torch_server.py DESCRIPTOR [brief]`` takes requests from this socket. A request is JSON with four
descriptors: the three standard streams of the child, and a socket. The server writes the process ID of the
child to that socket, and the exit status when the child ends. It ends when its own socket is closed. It does
not import pagestream: each child does.

With ``brief`` children end as Python does, but do not take apart the modules of the server: that costs half a
second of a processor.
"""

import atexit
import gc
import json
import os
import selectors
import socket
import sys
import threading
import types

import numpy  # noqa: F401 - for the children, like all imports below
import torch
import torch.distributed.checkpoint
import torch.distributed.checkpoint.quantized_hf_storage
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.utils.data


def next_program(requests):
    """Forks children. Returns, in each child, the program to run."""
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not requests:
                status_to, number = key.data
                status_to.send(os.waitpid(number, 0)[1].to_bytes(4, "little"))
                selector.unregister(key.fd)
                os.close(key.fd)
                status_to.close()
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
            if not message:
                os._exit(0)
            *streams, status_to = descriptors
            number = os.fork()
            if not number:
                for other in list(selector.get_map().values()):
                    os.close(other.fd)
                    if other.data:
                        other.data[0].close()
                requests.detach()
                selector.close()
                os.close(status_to)
                for place, stream in enumerate(streams):
                    os.dup2(stream, place)
                    os.close(stream)
                return json.loads(message)
            for stream in streams:
                os.close(stream)
            status_to = socket.socket(fileno=status_to)
            status_to.send(number.to_bytes(4, "little"))
            selector.register(os.pidfd_open(number), selectors.EVENT_READ, (status_to, number))


def become(program):
    """Makes this process look as if Python had just started a program. Returns the program's code."""
    if program["new_session"]:
        os.setsid()
    os.chdir(program["folder"])
    os.environ.clear()
    os.environ.update(program["environment"])
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.argv = program["arguments"]
    sys.orig_argv = [sys.executable, *sys.argv]
    path, code = sys.argv[0], program["code"]
    sys.path[0] = "" if path == "-c" else os.path.dirname(os.path.abspath(path))
    paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[1:1] = [each for each in paths if each not in sys.path]
    module = types.ModuleType("__main__")
    if path != "-c":
        module.__file__ = path
        with open(path, "rb") as file:
            code = file.read()
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module
    return compile(code, "<string>" if path == "-c" else path, "exec", dont_inherit=True), module.__dict__


def run_with_brief_end(code, names):
    """Runs a program. Python handles its exceptions."""
    status = 0
    try:
        exec(code, names)
    except SystemExit as error:
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    names.clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


has_brief_ends = sys.argv[2:] == ["brief"]
if has_brief_ends:
    # Optimizers and distributed tensors import this, which takes a second. Triton complains at a normal exit.
    import torch._dynamo
# The present objects live forever. Without this, reference counts in children would copy their pages.
gc.collect()
gc.freeze()
program = become(next_program(socket.socket(fileno=int(sys.argv[1]))))
if has_brief_ends:
    run_with_brief_end(*program)
exec(*program)
