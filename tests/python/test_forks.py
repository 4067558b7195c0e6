"""Forks of a process whose threads are at work: no child waits for a thread that it does not have."""

from __future__ import annotations

import os

import numpy as np
import pytest

from support import real
from support.process import output_of
from support.weight_files import entry, weight_file

pytestmark = pytest.mark.timeout(240)

# A child that hangs is killed by its alarm, and its status tells.
FORKING = """
import os, signal, sys, threading, time
import numpy as np
from pagestream import TokenLoader, open_tokens

def forked(act):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            act()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

BATCHES = """
statuses = []
for turn in range(60):
    tokens = open_tokens(sys.argv[1])
    loader = TokenLoader(tokens, sequence_length=64, batch_size=16, threads=4)
    time.sleep(turn % 6 / 1000)
    def act():
        for _ in range(40):
            next(loader)
        loader.close()
        tokens.close()
    statuses.append(forked(act))
    if statuses[-1]: print(turn, statuses[-1], flush=True)
    loader.close()
    tokens.close()
print(statuses.count(0), len(statuses))
"""

CLOSE = """
tokens = open_tokens(sys.argv[1])
stop = threading.Event()
def work():
    while not stop.is_set():
        tokens.read(0, 20_000)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
statuses = [forked(tokens.close) for _ in range(150)]
stop.set()
for thread in threads: thread.join()
print(statuses.count(0), len(statuses))
"""

TENSORS = """
from pagestream.safetensors import safe_open
from pagestream.safetensors.numpy import save_file
path = sys.argv[1] + "/weights.safetensors"
save_file({str(i): np.zeros(1000) for i in range(10)}, path)
statuses = []
for turn in range(150):
    with safe_open(path, "np") as file:
        thread = threading.Thread(target=lambda: [file.get_tensor(str(i)) for i in range(10)])
        thread.start()
        statuses.append(forked(lambda: [file.get_tensor(str(i)) for i in range(10)] and file.__exit__()))
        thread.join()
print(statuses.count(0), len(statuses))
"""


# The lock of a buffer, by a thread that asks all the time. More mappings make /proc/self/smaps longer.
STAGING = """
from pagestream import StagingBuffer
buffer = StagingBuffer(1 << 20)
others = [StagingBuffer(4096, huge_pages="never") for _ in range(2000)]
stop = threading.Event()
def poll():
    while not stop.is_set():
        buffer.huge_page_bytes
threads = [threading.Thread(target=poll) for _ in range(2)]
for thread in threads: thread.start()
def act(): assert len(buffer) == buffer.nbytes == len(memoryview(buffer)) == 1 << 20
statuses = [forked(act) for _ in range(20)]
stop.set()
for thread in threads: thread.join()
print(statuses.count(0), len(statuses))
"""


@pytest.fixture
def shards(tmp_path):
    """400 files of 5,000 tokens."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(400):
        np.arange(5000, dtype="u2").tofile(folder / f"{number}.bin")
    return folder


@pytest.mark.parametrize(
    "code", [BATCHES, CLOSE, TENSORS, STAGING], ids=["batches", "close", "tensors", "staging"]
)
@pytest.mark.stress
def test_a_child_can_go_on_with_what_its_parents_threads_use(shards, code):
    output = output_of(FORKING + code, shards, timeout_seconds=200)
    found, count = output.splitlines()[-1].split()
    assert found == count, output


UNMAPPING = """
from pagestream.safetensors import safe_open

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) >> 10

def leftovers():
    return sum(sys.argv[1] in line for line in open("/proc/self/maps"))

def opened(number):
    with safe_open(f"{sys.argv[1]}/{number}.safetensors", "np", mmap_mode="private") as file:
        return file.get_tensor("t")

def dirtied():
    arrays = [opened(number) for number in range(4)]
    for array in arrays:
        array[::4096] = 1
    return arrays

found = []
for turn in range(20):
    arrays = dirtied()
    assert anonymous() >= 400, anonymous()
    def act():
        assert (leftovers(), anonymous() < 100) == (0, True), (leftovers(), anonymous())
        if turn % 5 == 0:
            # Here threads unmap as they do in the parent, and forks find what they should.
            arrays = dirtied()
            del arrays
            def again():
                assert (leftovers(), anonymous() < 100) == (0, True), (leftovers(), anonymous())
            assert forked(again) == 0
            for _ in range(500):
                if not leftovers(): break
                time.sleep(0.01)
            assert leftovers() == 0
    del arrays
    found.append(forked(act))
    for _ in range(500):
        if not leftovers(): break
        time.sleep(0.01)
    assert leftovers() == 0
print(found.count(0), len(found))
"""


@pytest.mark.stress
def test_a_child_keeps_nothing_of_what_its_parents_threads_unmap(tmp_path):
    size = 100 << 20
    for number in range(4):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(weight_file({"t": entry("U8", [size], 0, size)}))
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size + size)
    found, count = output_of(FORKING + UNMAPPING, tmp_path, timeout_seconds=200).splitlines()[-1].split()
    assert found == count


# Both are the first process of their namespace: their ids are the same.
NAMESPACES = """
import ctypes, faulthandler
from pagestream import TokenLoader, open_tokens
assert os.getpid() == 1
loader = TokenLoader(open_tokens(sys.argv[1]), sequence_length=64, batch_size=16, threads=2)
next(loader)
CLONE_NEWPID = 0x20000000
assert ctypes.CDLL(None).unshare(CLONE_NEWPID) == 0
child = os.fork()
if child == 0:
    # No other alarm ends the first process of a namespace.
    faulthandler.dump_traceback_later(30, exit=True)
    assert os.getpid() == 1
    for _ in range(20): next(loader)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_with_the_id_of_its_parent_is_no_less_a_child(shards):
    if os.geteuid() != 0:
        real.missing("root, for namespaces of process ids")
    unshare = real.need_tool("unshare")
    code = "import os, sys\n" + NAMESPACES
    wrapper = (unshare, "--pid", "--fork", "--kill-child")
    assert output_of(code, shards, wrapper=wrapper, timeout_seconds=120) == "0"
