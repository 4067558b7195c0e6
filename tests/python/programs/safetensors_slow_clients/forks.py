"""Imports the packages of the other programs in this folder, and runs each program in a fork.

``forks.py [install]``: with `install`, `pagestream.safetensors` first takes the place of safetensors. Each
input line is JSON: the path of a program, relative to this folder, and its arguments. Each output line is
JSON too: the child's output and its exit status.
"""

import contextlib
import json
import os
import runpy
import sys
import traceback
import warnings
from pathlib import Path

FOLDER = Path(__file__).parent


def run(reading, writing, program, arguments):
    """Runs a program in this process, and then ends the process."""
    os.close(reading)
    os.dup2(writing, 1)
    os.close(writing)
    status = 1
    try:
        sys.argv = [program, *arguments]
        sys.path.insert(0, str((FOLDER / program).parent))
        runpy.run_path(str(FOLDER / program), run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)


warnings.simplefilter("ignore")
if sys.argv[1:] == ["install"]:
    import pagestream.safetensors

    pagestream.safetensors.install()

import accelerate  # noqa: F401 - for the children, like all imports below
import diffusers
import peft  # noqa: F401
import torch.distributed.checkpoint  # noqa: F401
import transformers

# First use of this name imports more modules.
transformers.LlamaForCausalLM
diffusers.UNet2DModel

for line in sys.stdin:
    program, *arguments = json.loads(line)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        run(reading, writing, program, arguments)
    os.close(writing)
    with os.fdopen(reading) as printed:
        output = printed.read()
    print(json.dumps([output, os.waitpid(child, 0)[1]]), flush=True)
