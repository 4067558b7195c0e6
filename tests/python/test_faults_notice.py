"""The notice of damage reaches a caller, and the handler that sends it is put back in front."""

import sys
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from support.process import output_of

# `cut()` truncates the file under `array`; `use(function)` says whether that raised.
BEGIN = """
import faulthandler, gc, os, queue, signal, sys, threading, weakref
import numpy as np
import pagestream
from pagestream import MappedFile
from pagestream.errors import MappedReadError
path = sys.argv[1]
f = MappedFile(path)
array = np.frombuffer(f, "u8")
sys.unraisablehook = lambda unraisable: unraised.append(unraisable.exc_type.__name__)
unraised = []

def raised(function):
    try:
        function()
        for _ in range(1000): pass
    except MappedReadError as error:
        assert error.filename == path
        return True
    return False
"""

CALLBACKS = {
    "finaliser": """
class Holder:
    def __del__(self): array.sum(); self.done = True
def act():
    holder = Holder()
    del holder
""",
    "weak reference": """
class Referent: pass
def act():
    referent = Referent()
    reference = weakref.ref(referent, lambda _: [array.sum()])
    del referent
""",
    "collector": """
def look(phase, info):
    if phase == "start": array.sum(); gc.callbacks.clear()
def act():
    gc.callbacks.append(look)
    gc.collect()
""",
    "fork": """
def look(): array.sum(); len("")
os.register_at_fork(after_in_parent=look)
def act():
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
""",
    "two finalisers": """
class Holder:
    def __del__(self):
        try:
            array.sum(); self.done = True
        except MappedReadError as error:
            raise RuntimeError("made of it") from error
def act():
    holders = [Holder(), Holder()]
    del holders
""",
}


@pytest.mark.parametrize("callback", CALLBACKS)
def test_a_notice_that_nobody_could_catch_is_raised_again(big_file: Path, callback: str) -> None:
    code = (
        BEGIN
        + CALLBACKS[callback]
        + """
os.truncate(path, 4096)
print(raised(act), "MappedReadError" in unraised or "RuntimeError" in unraised)
print(raised(lambda: array.sum()))  # it has reached a caller: that was all
"""
    )
    assert output_of(code, big_file).split() == ["True", "True", "False"]


def test_a_notice_that_was_caught_is_not_raised_again(big_file: Path) -> None:
    code = (
        BEGIN
        + """
class Holder:
    def __del__(self): raise KeyError
os.truncate(path, 4096)
first = raised(lambda: array.sum())
holder = Holder()
del holder
print(first, raised(lambda: array.sum()), unraised)
"""
    )
    assert output_of(code, big_file) == "True False ['KeyError']"


def test_a_hook_that_was_there_gets_what_it_got_before(big_file: Path) -> None:
    code = (
        BEGIN
        + CALLBACKS["finaliser"]
        + """
os.truncate(path, 4096)
assert raised(act)
class Other:
    def __del__(self): raise KeyError
Other()
print(*unraised)
"""
    )
    assert output_of(code, big_file) == "MappedReadError KeyError"


WAITS = {
    "join": "thread.join()",
    "queue": "results.get()",
    "lock": "lock.acquire()",
    "condition": "told.wait()",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_main_thread_that_waits_for_a_worker_hears_of_it_at_once(big_file: Path, wait: str) -> None:
    """The worker goes on only once the main thread has heard, or after a minute in vain."""
    code = (
        BEGIN
        + f"""
told, heard, results, lock = threading.Event(), threading.Event(), queue.Queue(), threading.Lock()
lock.acquire()
in_vain = []
def work():
    array.sum()
    if not heard.wait(60):
        in_vain.append(1)
        results.put(1); told.set(); lock.release()
thread = threading.Thread(target=work)
os.truncate(path, 4096)
def act():
    thread.start()
    {WAITS[wait]}
print(raised(act), in_vain)
heard.set()
"""
    )
    assert output_of(code, big_file) == "True []"


# --- in front again -------------------------------------------------------------------------------

HANDLERS = {
    "faulthandler": "faulthandler.enable()",
    "python": "signal.signal(signal.SIGBUS, lambda *_: None)",
    "default": "signal.signal(signal.SIGBUS, signal.SIG_DFL)",
}

CALLS = {
    "check": "f.check()",
    "read": "f.read(0, 1)",
    "read_into": "f.read_into(bytearray(1))",
    "view": "f.view(0, 1)",
    "advise": "f.advise('random', 0, 4096)",
    "residency": "f.residency(0, 4096)",
    "warm": "f.warm(0, 4096)",
    "evict": "f.evict()",
    "unlock": "f.unlock()",
    "refresh": "f.refresh()",
    "corpus": "tokens.check()",
    "tokens": "tokens[3]",
    "slice": "tokens[3:9]",
    "loader": "next(loader)",
    "checkpoint": "checkpoint.check()",
    "tensor": "weights.get_tensor('x')",
    "safe_open": "weights.check()",
    "guard": "pagestream.guard()",
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("call", CALLS)
def test_each_call_on_a_file_passes_a_handler_that_came_later(
    big_file: Path, tmp_path: Path, call: str, handler: str
) -> None:
    """Behind one of these handlers a fault kills, or never ends."""
    import numpy as np

    save_file({"x": np.ones(10, "f4")}, tmp_path / "x.safetensors")
    code = (
        BEGIN
        + f"""
from pagestream.safetensors import safe_open
weights = safe_open(sys.argv[2], "np")
checkpoint = pagestream.open_checkpoint(sys.argv[2])
tokens = pagestream.open_tokens(path)
loader = pagestream.TokenLoader(tokens, sequence_length=8, batch_size=2)
next(loader)
loader.close() if {call!r} != "loader" else None
{HANDLERS[handler]}
{CALLS[call]}
loader.close()
os.truncate(path, 4096)
print(raised(lambda: array.sum()))
"""
    )
    assert output_of(code, big_file, tmp_path / "x.safetensors", timeout_seconds=30) == "True"


def test_the_guard_says_when_it_is_off(big_file: Path) -> None:
    code = "import pagestream\nprint(pagestream.guard())"
    assert output_of(code, PAGESTREAM_FAULT_GUARD="off") == "False"
    assert output_of(code) == "True"


def test_a_worker_of_a_data_loader_that_only_slices_arrays_is_guarded(tmp_path: Path) -> None:
    """torch puts a handler of its own into each worker, after the fork."""
    program = Path(__file__).parent / "support/guarded_workers.py"
    code = (
        f"import runpy, sys\nsys.argv[0] = {str(program)!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    )
    assert output_of(code, tmp_path / "t.bin") == "MappedReadError"
    assert sys.executable
