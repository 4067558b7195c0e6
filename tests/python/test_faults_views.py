"""Arrays and views of a file that is cut, or fails, while they are used: an exception and no dead process."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pagestream import MappedFile
from pagestream.errors import MappedReadError

from support import real
from support.process import PROGRAMS, output_of, run_python

# Each 8 bytes of the 16 MiB hold their own number. What is gone is used within `use`.
VIEW = """
import errno, os, signal, sys, threading
import numpy as np
from pagestream import MappedFile
from pagestream.errors import FileChangedError, MappedReadError
path, mode = sys.argv[1], sys.argv[2]
f = MappedFile(path, mode=mode)
array = np.frombuffer(f, "u8")

def use(function):
    try:
        function()
        for _ in range(100): pass
    except MappedReadError as error:
        assert error.errno == errno.EIO and error.filename == path, error
        return error
    raise AssertionError("nothing was raised")

def refused(function):
    try:
        function()
    except (MappedReadError, FileChangedError) as error:
        assert error.filename == path
    else:
        raise AssertionError("nothing was raised")
"""


@pytest.fixture(params=["shared", "private"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_an_array_of_a_cut_file_raises_where_it_is_used_and_from_then_on(big_file: Path, mode: str) -> None:
    code = (
        VIEW
        + """
os.truncate(path, 4096)
error = use(lambda: array.sum())
assert (error.offset, error.length) == (4096, 16777216 - 4096), (error.offset, error.length)
assert "the file of 16777216 bytes was truncated there" in str(error)
assert array[511] == 511 and array[512] == 0
for call in (lambda: np.frombuffer(f), lambda: f.view(0, 8), lambda: memoryview(f), f.check,
             lambda: f.read(0, 8), lambda: f.read(1 << 20, 8)):
    refused(call)
array[1 << 20]; array.sum()
for _ in range(100): pass
print("once")
"""
    )
    assert output_of(code, big_file, mode) == "once"


def test_an_array_that_is_gone_when_its_use_is_over_raises_as_well(big_file: Path, mode: str) -> None:
    code = (
        VIEW
        + """
arrays = [array]
del array
f.close()
os.truncate(path, 4096)
use(lambda: arrays.pop().tobytes())
print("raised")
"""
    )
    assert output_of(code, big_file, mode) == "raised"


USES_IN_ONE_EXPRESSION = {
    "numpy": "numpy.load_file(path)['x'] * 1",
    "copyto": "np.copyto(out, numpy.load_file(path)['x'])",
    "checkpoint": "pagestream.open_checkpoint(path)['x'] + 0",
    "clone": "torch.load_file(path)['x'].clone()",
}


@pytest.mark.parametrize("use", USES_IN_ONE_EXPRESSION)
def test_a_tensor_that_is_used_and_dropped_where_storage_fails_raises(tmp_path: Path, use: str) -> None:
    """The mapping is gone by the time that Python raises."""
    source = tmp_path / "source"
    source.mkdir()
    save_file({"x": np.ones(1 << 18, "f4")}, source / "f")
    code = f"""
    import os, sys
    import numpy as np
    import pagestream
    from pagestream.errors import MappedReadError
    from pagestream.safetensors import numpy
    if "torch" in {USES_IN_ONE_EXPRESSION[use]!r}: from pagestream.safetensors import torch
    path = sys.argv[1]
    out = np.empty(1 << 18, "f4")
    try:
        {USES_IN_ONE_EXPRESSION[use]}
        for _ in range(100): pass
    except MappedReadError as error:
        print(error.filename == path, "its storage failed while" in str(error))
    """
    with real.slow_fuse(source, tmp_path / "mount", fail_range=(400 << 10, 500 << 10)) as slow:
        assert output_of(code, slow.path / "f") == "True True"


def test_on_tmpfs_and_fuse_as_well(big_file: Path, cached_mount: Path, mode: str) -> None:
    code = VIEW + "os.truncate(path, 4096)\nprint(use(lambda: array.sum()).offset)\n"
    places = {"tmpfs": Path(f"/dev/shm/pagestream-{os.getpid()}-views-{mode}"), "fuse": cached_mount / "f"}
    for kind, path in places.items():
        assert real.file_system_type(path.parent).startswith(kind)
        path.write_bytes(big_file.read_bytes())
        try:
            assert output_of(code, path, mode) == "4096"
        finally:
            path.unlink()


def test_on_a_fuse_mount_without_a_page_cache_as_well(big_file: Path, direct_mount: Path) -> None:
    path = direct_mount / "f"
    path.write_bytes(big_file.read_bytes())
    code = (
        VIEW + "assert f.mode == 'private'\nos.truncate(path, 4096)\nprint(use(lambda: array.sum()).offset)\n"
    )
    assert output_of(code, path, "auto") == "4096"


@pytest.mark.parametrize("order", ["pages", "pages[::-1]", "generator.permutation(pages)"])
def test_a_cut_costs_one_mapping_in_whatever_order_pages_are_used(
    tmp_path: Path, mode: str, order: str
) -> None:
    """One mapping for each page would end at vm.max_map_count, 65530."""
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    code = (
        VIEW
        + f"""
def mappings(): return sum(line.split()[4] == "0" or "sparse" in line for line in open("/proc/self/maps"))
generator = np.random.default_rng(0)
pages = np.arange(0, array.size, 512)[:: 130]
order = {order}
before = mappings()
os.truncate(path, 5000 * 4096)
error = use(lambda: sum(int(array[place]) for place in order))
assert error.offset == 5000 * 4096 and error.length == (1 << 30) - 5000 * 4096, (error.offset, error.length)
print(mappings() - before)
"""
    )
    assert int(output_of(code, path, mode)) <= 3  # NumPy and malloc have some of their own


def test_a_cut_costs_few_mappings_where_the_kernel_does_not_tell_what_is_in_memory(big_file: Path) -> None:
    """It answers a user without write permission that all of the file is in memory."""
    if os.geteuid() != 0:
        real.missing("root, to become another user")
    for parent in [big_file, *list(big_file.parents)[:-2]]:
        parent.chmod(0o755)
    with big_file.open("r+b") as file:
        file.truncate(1 << 30)
        code = (
            """
import errno, os, signal, sys, threading
import numpy as np, numpy.random
import pagestream
writer = int(sys.argv[3])
os.setgroups([]); os.setgid(65534); os.setuid(65534)  # Python's own files may not be theirs
"""
            + VIEW
            + """
def mappings(): return sum(line.split()[4] == "0" or path in line for line in open("/proc/self/maps"))
pages = np.random.default_rng(0).permutation(np.arange(0, array.size, 512))
before = mappings()
os.ftruncate(writer, 4096)
use(lambda: array[pages].sum())
assert not array[512:].any()
print(mappings() - before)
"""
        )
        command = [sys.executable, "-c", code, str(big_file), "shared", str(file.fileno())]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=90, pass_fds=[file.fileno()]
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 500


def test_what_replaces_a_page_has_its_protection(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"x": np.arange(1 << 20, dtype="f4")}, path)
    code = PROGRAMS / "faults_views/what_replaces_a_page_has_its_protection.py"
    assert output_of(code, path) == "read-only"


# What is opened, and what is taken out of it.
WAYS = {
    "numpy": ("safe_open(path, 'np')", "opened.get_tensor('x')"),
    "torch": ("safe_open(path, 'pt')", "opened.get_tensor('x')"),
    "load_file": (
        "__import__('pagestream.safetensors.torch').safetensors.torch.load_file(path)",
        "opened['x']",
    ),
    "checkpoint": ("pagestream.open_checkpoint(path)", "opened['x']"),
    "slice": ("safe_open(path, 'np')", "opened.get_slice('x')[10:]"),
    "torch slice": ("safe_open(path, 'pt')", "opened.get_slice('x')[10:]"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ["", "del opened; gc.collect()"], ids=["open", "closed"])
def test_a_tensor_of_a_cut_file_raises_whether_the_file_is_open_or_not(
    tmp_path: Path, way: str, end: str
) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"x": np.ones(1 << 20, "f4")}, path)
    opener, tensor = WAYS[way]
    code = f"""
    import gc, os, sys
    import pagestream
    from pagestream.errors import MappedReadError
    from pagestream.safetensors import safe_open
    path = sys.argv[1]
    opened = {opener}
    tensor = {tensor}
    {end}
    os.truncate(path, 4096)
    try:
        tensor.sum()
        for _ in range(100): pass
    except MappedReadError as error:
        print(error.filename == path, error.offset)
    """
    assert output_of(code, path) == "True 4096"


@pytest.mark.parametrize("way", WAYS)
def test_no_more_is_handed_out_of_a_file_that_was_cut(tmp_path: Path, way: str) -> None:
    """Asking for other tensors of the file raises; `load_file` finds the file too short."""
    path = tmp_path / "w.safetensors"
    save_file({"x": np.ones(1 << 20, "f4")}, path)
    opener, tensor = WAYS[way]
    again = tensor if way != "load_file" else opener
    code = f"""
    import os, sys
    import pagestream
    from pagestream.errors import MappedReadError, SafetensorError
    from pagestream.safetensors import safe_open
    path = sys.argv[1]
    opened = {opener}
    tensor = {tensor}
    os.truncate(path, 4096)
    raised = 0
    try:
        tensor.sum()
        for _ in range(100): pass
    except MappedReadError as error:
        raised += 1
    try:
        {again}
    except (MappedReadError, SafetensorError) as error:
        raised += path in str(error)
    print(raised)
    """
    assert output_of(code, path) == "2"


def test_no_other_array_is_made_of_memory_that_was_handed_out_before(tmp_path: Path) -> None:
    """The file is closed: the object on which the first array stands refuses."""
    path = tmp_path / "w.safetensors"
    save_file({"x": np.ones(1 << 20, "f4")}, path)
    code = PROGRAMS / "faults_views/no_other_array_is_made_of_memory.py"
    assert output_of(code, path) == "2"


def test_threads_that_use_a_cut_file_go_on_and_the_main_thread_hears_of_it(big_file: Path, mode: str) -> None:
    code = (
        VIEW
        + """
done = []
def worker(seed):
    order = np.random.default_rng(seed).permutation(array.size)
    for _ in range(3):
        array[order].sum()
    done.append(seed)
threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(4)]
def work():
    for thread in threads: thread.start()
    os.truncate(path, 4096)
    while len(done) < 4: pass
use(work)
for thread in threads: thread.join()
for _ in range(100): pass
print(len(done))
"""
    )
    assert output_of(code, big_file, mode) == "4"


HANDLERS = {
    "faulthandler": "import faulthandler; faulthandler.enable()",
    "a Python handler": "signal.signal(signal.SIGBUS, lambda *_: None)",
    "the default": "signal.signal(signal.SIGBUS, signal.SIG_DFL)",
    "torch's worker handler": "import torch; torch._C._set_worker_signal_handlers()",
}


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_that_comes_later_is_passed_when_the_next_view_is_taken(
    big_file: Path, handler: str
) -> None:
    code = (
        VIEW
        + f"{HANDLERS[handler]}\nf.view(0, 8)\nos.truncate(path, 4096)\nuse(array.sum)\nprint('raised')\n"
    )
    assert output_of(code, big_file, "shared") == "raised"


@pytest.mark.parametrize("handler", HANDLERS)
def test_such_a_handler_is_passed_when_a_writable_tensor_is_taken_from_a_new_file(
    tmp_path: Path, handler: str
) -> None:
    for name in ("first", "second"):
        save_file({"x": np.ones(1 << 20, "f4")}, tmp_path / name)
    code = f"""
    import os, signal, sys
    from pagestream.errors import MappedReadError
    from pagestream.safetensors import safe_open
    first, second = (f"{{sys.argv[1]}}/{{name}}" for name in ("first", "second"))
    safe_open(first, "np").get_tensor("x")
    {HANDLERS[handler]}
    tensor = safe_open(second, "np").get_tensor("x")
    os.truncate(second, 4096)
    try:
        tensor.sum()
        for _ in range(100): pass
    except MappedReadError as error:
        print(error.filename == second)
    """
    assert output_of(code, tmp_path) == "True"


def test_torch_workers_survive_a_cut_file(tmp_path: Path) -> None:
    """A worker installs a handler of its own when it begins."""
    path = tmp_path / "w.safetensors"
    save_file({f"x{number}": np.ones(1 << 18, "f4") for number in range(8)}, path)
    code = PROGRAMS / "faults_views/torch_workers_survive_a_cut_file.py"
    assert output_of(code, path) == "MappedReadError True"


def test_a_forked_child_survives_and_its_parent_is_not_touched(big_file: Path, mode: str) -> None:
    code = (
        VIEW
        + """
os.truncate(path, 4096)
child = os.fork()
if child == 0:
    use(array.sum)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
use(array.sum)
print("both")
"""
    )
    assert output_of(code, big_file, mode) == "both"


def test_with_the_guard_off_a_cut_file_ends_the_process(big_file: Path) -> None:
    code = VIEW + "os.truncate(path, 4096)\narray.sum()\nprint('alive')\n"
    done = run_python(code, big_file, "shared", PAGESTREAM_FAULT_GUARD="off")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_a_mapping_of_somebody_else_is_not_guarded(big_file: Path) -> None:
    """Not even at an address where a mapping of ours lay before."""
    code = (
        VIEW
        + """
del array
f.close()
foreign = np.memmap(path, "u8", "r")
os.truncate(path, 4096)
foreign.sum()
print("alive")
"""
    )
    done = run_python(code, big_file, "shared")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_of_many_mappings_the_right_one_is_damaged(tmp_path: Path) -> None:
    """There are more mappings than one chunk of slots has."""
    code = PROGRAMS / "faults_views/of_many_mappings_the_right_one_is.py"
    assert output_of(code, tmp_path) == "right"


def test_pages_that_a_disk_cannot_read_are_replaced_and_no_others(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    pages = np.repeat(np.arange(1, 257, dtype="u8"), 512)
    pages.tofile(source / "f")
    code = PROGRAMS / "faults_views/pages_that_a_disk_cannot_read_are.py"
    with real.slow_fuse(source, tmp_path / "mount", fail_range=(100 * 4096, 101 * 4096)) as slow:
        assert output_of(code, slow.path / "f") == "raised"


def test_what_was_written_beside_a_page_that_cannot_be_read_stays(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    save_file({"x": np.ones(1 << 18, "f4")}, source / "f")
    code = PROGRAMS / "faults_views/what_was_written_beside_a_page_that.py"
    with real.slow_fuse(source, tmp_path / "mount", fail_range=(100 * 4096, 102 * 4096)) as slow:
        assert output_of(code, slow.path / "f") == "True"


def test_what_is_in_memory_stays_where_all_of_the_storage_is_gone(tmp_path: Path) -> None:
    """A server died. The last page cannot be read either, as in a file that was cut."""
    if os.geteuid() != 0:
        real.missing("root, to drop caches and to unmount")
    code = PROGRAMS / "faults_views/what_is_in_memory_stays_where_all.py"
    with real.stoppable_bindfs(tmp_path) as (mount, daemon):
        save_file({"x": np.ones(1 << 20, "f4")}, tmp_path / "behind" / "f")
        command = [sys.executable, str(code), str(mount / "f")]
        pipe = subprocess.PIPE
        try:
            with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                # What the kernel has of the file besides.
                Path("/proc/sys/vm/drop_caches").write_text("1")
                daemon.kill()
                daemon.wait()
                output, _ = process.communicate("\n", timeout=90)
        finally:
            subprocess.run(["umount", "-l", mount], check=True)
    assert (process.returncode, output.split()) == (0, ["1", "True"])


def test_a_file_that_is_the_same_again_can_be_mapped_again(tmp_path: Path) -> None:
    """`refresh` makes a mapping without the zeros; arrays on the old one keep them."""
    path = tmp_path / "f"
    np.ones(1 << 16, "u8").tofile(path)
    before = os.stat(path)
    f = MappedFile(path)
    old = np.frombuffer(f, "u8")
    os.truncate(path, 4096)
    with pytest.raises(MappedReadError):
        sum(int(old[place]) for place in range(0, old.size, 512))
    np.ones(1 << 16, "u8").tofile(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(MappedReadError):
        np.frombuffer(f, "u8")
    with pytest.raises(MappedReadError):
        f.check()
    assert f.read(1 << 16, 8) == (1).to_bytes(8, "little")  # copies do not go by the mapping any more
    assert f.refresh() == 1 << 19
    assert (np.frombuffer(f, "u8") == 1).all()
    f.check()
    assert old[-1] == 0


def test_opening_and_closing_leaves_no_slot_taken(tmp_path: Path) -> None:
    """Otherwise these would take 40 chunks of slots, of 20 KiB each, and a path each."""
    code = PROGRAMS / "faults_views/opening_and_closing_leaves_no_slot_taken.py"
    assert int(output_of(code, tmp_path / "f")) < 512


# A signal as the kernel makes it: `send(code, address)`. A process may send itself any.
SIGNALS = """
import ctypes, platform, struct
libc = ctypes.CDLL(None, use_errno=True)
rt_tgsigqueueinfo = {"x86_64": 297, "aarch64": 240}[platform.machine()]
ADDRESS_ERROR = 2  # BUS_ADRERR
def send(code, address):
    cause = struct.pack("iiixxxxQ", signal.SIGBUS, 0, code, address).ljust(128, bytes(1))
    assert libc.syscall(rt_tgsigqueueinfo, os.getpid(), threading.get_native_id(), signal.SIGBUS, cause) == 0
"""


def test_a_page_that_can_be_read_after_all_is_left_as_it_is(big_file: Path, mode: str) -> None:
    """Another thread may have replaced the page, or the storage may be back."""
    code = (
        VIEW
        + SIGNALS
        + """
for _ in range(100): send(ADDRESS_ERROR, array.ctypes.data + 8192)
assert (array == np.arange(array.size)).all()
f.check()
print(len(np.frombuffer(f, "u8")))
"""
    )
    assert output_of(code, big_file, mode) == str(2 << 20)


def test_a_page_that_faults_for_ever_is_replaced_in_the_end(big_file: Path) -> None:
    """Each mapping has its own tries, even in a slot of the table that another one had."""
    code = (
        VIEW
        + SIGNALS
        + """
def fault():
    for _ in range((1 << 16) + 1): send(ADDRESS_ERROR, array.ctypes.data + 8192)
error = use(fault)
assert error.offset == 8192 and array[1024] == 0 and array[1023] == 1023
del array
f.close()
f = MappedFile(path, mode=mode)
array = np.frombuffer(f, "u8")
send(ADDRESS_ERROR, array.ctypes.data + 8192)
f.check()
print(array[1024])
"""
    )
    assert output_of(code, big_file, "shared") == "1024"


@pytest.mark.parametrize("cause", [1, 3, -1], ids=["alignment", "hardware", "by hand"])
def test_a_bus_error_of_another_kind_goes_to_the_handler_before(big_file: Path, cause: int) -> None:
    """This holds even for an address in one of our mappings that cannot be read."""
    code = (
        """
import signal
heard = []
signal.signal(signal.SIGBUS, lambda *_: heard.append("heard"))
"""
        + VIEW
        + SIGNALS
        + f"""
os.truncate(path, 4096)
send({cause}, array.ctypes.data + 8192)
print(*heard)
"""
    )
    assert output_of(code, big_file, "shared") == "heard"


def test_code_that_meets_such_a_page_keeps_its_errno(big_file: Path, mode: str) -> None:
    code = (
        VIEW
        + SIGNALS
        + """
os.truncate(path, 4096)
kept = []
def look():
    ctypes.set_errno(errno.EDOM)
    try:
        libc.memcmp(ctypes.c_void_p(array.ctypes.data + 8192), bytes(8), ctypes.c_size_t(8))
    finally:
        kept.append(ctypes.get_errno())
use(look)
print(*kept)
"""
    )
    assert output_of(code, big_file, mode) == str(errno.EDOM)


def test_the_rest_of_the_last_page_counts_as_well(tmp_path: Path, mode: str) -> None:
    """Code that loads many bytes at a time reads beyond the end, within the page."""
    path = tmp_path / "f"
    np.arange(1030, dtype="u8").tofile(path)
    code = (
        VIEW
        + """
import ctypes
os.truncate(path, 4096)
error = use(lambda: ctypes.string_at(array.ctypes.data + array.nbytes + 100, 8))
print(error.offset, error.length)
"""
    )
    assert output_of(code, path, mode) == "4096 4144"


def test_two_files_that_are_cut_at_a_time_are_one_exception(tmp_path: Path) -> None:
    code = PROGRAMS / "faults_views/two_files_that_are_cut_at_a.py"
    assert output_of(code, tmp_path) == "True True"


def test_of_many_files_that_are_cut_at_a_time_a_few_are_named(tmp_path: Path) -> None:
    code = PROGRAMS / "faults_views/of_many_files_that_are_cut_at.py"
    assert output_of(code, tmp_path) == "6 and 34 more files"


def test_a_file_in_the_place_of_one_that_was_cut_is_told_as_well(tmp_path: Path) -> None:
    """Its place is a slot of the table of mappings."""
    code = PROGRAMS / "faults_views/a_file_in_the_place_of_one.py"
    assert output_of(code, tmp_path).split() == ["True"] * 3


@pytest.mark.parametrize("place", ["min", "max"], ids=["below ours", "above ours"])
def test_a_mapping_of_somebody_else_beside_ours_is_not_guarded(big_file: Path, place: str) -> None:
    code = (
        """
import sys
import numpy as np
before = np.memmap(sys.argv[3], "u8", "r")
"""
        + VIEW
        + f"""
after = np.memmap(sys.argv[3], "u8", "r")
foreign = {place}(before, after, key=lambda mapped: mapped.ctypes.data)
ours, theirs = array.ctypes.data, foreign.ctypes.data
assert {place}(ours, theirs) == theirs
os.truncate(sys.argv[3], 4096)
foreign.sum()
print("alive")
"""
    )
    other = big_file.with_name("other")
    other.write_bytes(big_file.read_bytes())
    done = run_python(code, big_file, "shared", other)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")
