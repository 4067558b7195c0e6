"""Opening files, and the errors for files that cannot be opened. No open hangs or kills the process."""

import errno
import os
import pty
import resource
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pagestream import MappedFile

from support.process import PROGRAMS, output_of

MODES = ["auto", "shared", "private", "read"]


@pytest.mark.parametrize("mode", MODES)
def test_a_regular_file_opens_in_every_mode(token_file, mode):
    with MappedFile(token_file, mode=mode) as f:
        assert f.mode == ("shared" if mode == "auto" else mode)
        assert (f.requested_mode, f.reason, f.size) == (mode, None, 8192)
        assert f.read() == token_file.read_bytes()


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_file_is_an_empty_map(tmp_path, mode):
    path = tmp_path / "empty"
    path.touch()
    f = MappedFile(path, mode=mode)
    assert f.size == 0
    assert f.read() == b""
    assert bytes(f.view()) == b""
    assert f.residency().fraction == 1.0
    f.warm()
    f.evict()
    f.check()
    assert f.refresh() == 0
    if mode != "read":
        assert memoryview(f).nbytes == 0


@pytest.fixture
def special(tmp_path, request):
    """Returns the path of an entry that is not a regular file."""
    kind = request.param
    path = str(tmp_path / kind)
    if kind == "directory":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        request.addfinalizer(listener.close)
    elif kind == "terminal":
        first, second = pty.openpty()
        request.addfinalizer(lambda: (os.close(first), os.close(second)))
        path = os.ttyname(second)
    else:
        path = kind
    return path


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("special", "number", "words"),
    [
        ("directory", errno.EISDIR, "Is a directory"),
        ("fifo", errno.EINVAL, "it is a FIFO"),
        ("socket", errno.ENXIO, "it is a socket"),
        ("terminal", errno.EINVAL, "it is a character device"),
        ("/dev/null", errno.EINVAL, "it is a character device"),
        ("/dev/zero", errno.EINVAL, "it is a character device"),
        ("/proc/version", errno.EINVAL, "reports size 0 and yet can be read"),
        ("/proc/self/maps", errno.EINVAL, "reports size 0 and yet can be read"),
    ],
    indirect=["special"],
)
def test_what_is_not_a_regular_file_is_refused_by_name(special, number, words, mode):
    with pytest.raises(OSError, match=words) as caught:
        MappedFile(special, mode=mode)
    assert (caught.value.errno, caught.value.filename) == (number, special)


@pytest.mark.parametrize("mode", MODES)
def test_a_file_of_sysfs_is_refused_because_its_size_is_not_true(mode):
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    with pytest.raises(OSError, match="reports 4096 bytes and does not have them") as caught:
        MappedFile(path, mode=mode)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, path)


def test_a_directory_is_an_is_a_directory_error(tmp_path):
    with pytest.raises(IsADirectoryError):
        MappedFile(tmp_path)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        MappedFile(tmp_path / "missing")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(tmp_path / "missing"))


def test_a_file_without_permission(token_file):
    token_file.chmod(0)
    code = PROGRAMS / "files_open/a_file_without_permission.py"
    for parent in list(token_file.parents)[:-2]:
        parent.chmod(0o755)
    assert output_of(code, token_file) == f"{errno.EACCES} {token_file}"


def test_a_loop_of_links(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="symbolic links") as caught:
        MappedFile(loop)
    assert caught.value.errno == errno.ELOOP


def test_a_name_that_is_too_long(tmp_path):
    with pytest.raises(OSError, match="name too long") as caught:
        MappedFile(tmp_path / ("x" * 300))
    assert caught.value.errno == errno.ENAMETOOLONG


def test_a_nul_in_the_path_is_a_value_error():
    with pytest.raises(ValueError, match=r"a\\0b.*NUL"):
        MappedFile("a\0b")


@pytest.mark.parametrize("argument", [3, None, 1.5, ["x"]])
def test_a_path_of_a_wrong_type_is_a_type_error(argument):
    with pytest.raises(TypeError):
        MappedFile(argument)


def test_an_unknown_mode_is_a_value_error(token_file):
    with pytest.raises(ValueError, match='"auto", "shared", "private" or "read", not \'mmap\''):
        MappedFile(token_file, mode="mmap")


@pytest.mark.parametrize("form", [str, os.fsencode, Path])
def test_paths_may_be_text_bytes_or_path_objects(token_file, form):
    assert MappedFile(form(str(token_file))).path == str(token_file)


def test_a_path_that_is_not_utf8(tmp_path):
    path = os.fsencode(tmp_path) + b"/T\xff.bin"
    with open(path, "wb") as file:
        file.write(b"data")
    f = MappedFile(path)
    assert os.fsencode(f.path) == path
    assert MappedFile(os.fsdecode(path)).read() == b"data"
    os.unlink(path)
    with pytest.raises(FileNotFoundError) as caught:
        MappedFile(path)
    assert os.fsencode(caught.value.filename) == path


def test_messages_keep_a_path_that_is_not_utf8(tmp_path):
    from pagestream import open_checkpoint, open_tokens
    from pagestream.errors import FormatError

    path = os.fsencode(tmp_path) + b"/t\xff"
    with open(path, "wb") as file:
        file.write(b"odd")
    for opener in (open_tokens, open_checkpoint):
        with pytest.raises(FormatError) as caught:
            opener(path)
        assert os.fsencode(str(caught.value)).startswith(path + b": ")


@pytest.mark.parametrize("path", ["/proc/self/pagemap", "/proc/self/mem"])
def test_a_file_of_the_kernel_that_cannot_be_read_is_explained(path):
    with pytest.raises(OSError, match="it is a file of the kernel"):
        MappedFile(path)


def test_a_sparse_file_of_one_tebibyte_costs_nothing(tmp_path):
    path = tmp_path / "huge"
    size = 1 << 40
    with open(path, "wb") as file:
        file.truncate(size)
        os.pwrite(file.fileno(), b"end", size - 3)
    f = MappedFile(path)
    assert (f.size, f.mode) == (size, "shared")
    assert f.read(size - 4) == b"\0end"
    assert bytes(f.view(size - 3)) == b"end"
    assert np.frombuffer(f, "u1")[-1] == ord("d")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("offset", "length"),
    [(8193, 0), (0, 8193), (8192, 1), (1, 2**64 - 1), (2**63, 2**63), (2**64 - 1, 1), (2**64 - 1, 2**64 - 1)],
)
def test_a_range_outside_the_file_is_a_value_error_that_names_the_size(token_file, mode, offset, length):
    f = MappedFile(token_file, mode=mode)
    for use in (f.read, f.view, lambda *range_: f.advise("normal", *range_), f.residency, f.warm):
        with pytest.raises(ValueError, match="8192 bytes"):
            use(offset, length)
    if offset > f.size:
        with pytest.raises(ValueError, match="8192 bytes"):
            f.read_into(bytearray(1), offset)


@pytest.mark.parametrize("number", [-1, 2**64, 2**80])
def test_invalid_offsets_are_refused(token_file, number):
    f = MappedFile(token_file)
    told = rf"an offset or a length in bytes must be 0 to 2\^64 - 1, not {number}\n"
    for use in (
        f.read,
        f.view,
        f.residency,
        f.warm,
        lambda offset: f.advise("normal", offset),
        lambda offset: f.read_into(bytearray(1), offset),
        lambda offset: f.read(offset, 1),
    ):
        with pytest.raises(ValueError, match=told):
            use(number)
    with pytest.raises(ValueError, match=told):
        f.read(1, number)


def test_an_overflow_of_a_progress_callback_passes_unchanged(token_file):
    def overflows(_done, _total):
        raise OverflowError

    with pytest.raises(OverflowError):
        MappedFile(token_file).warm(progress=overflows)


def test_views_of_no_bytes(token_file):
    f = MappedFile(token_file)
    assert f.view(0, 0).nbytes == f.view(8192).nbytes == f.view(100, 0).nbytes == 0
    assert f.read(8192) == f.read(100, 0) == b""


def test_descriptors_that_run_out_are_explained(token_file):
    code = PROGRAMS / "files_open/descriptors_that_run_out_are_explained.py"
    number, named, text = output_of(code, token_file).split(" ", 2)
    assert (int(number), named) == (errno.EMFILE, "True")
    assert "RLIMIT_NOFILE (ulimit -n) is 32" in text


def test_the_file_system_is_told(token_file):
    found = MappedFile(token_file).file_system
    assert os.path.ismount(found.mount_point)
    assert found.type in Path("/proc/filesystems").read_text() or found.type.startswith("fuse.")
    assert found.read_ahead_bytes is None or found.read_ahead_bytes % 1024 == 0
    assert found.options


def test_the_audit_event_names_path_and_mode_and_can_refuse(token_file):
    code = PROGRAMS / "files_open/the_audit_event_names_path_and_mode.py"
    assert output_of(code, token_file) == "refused by the hook"


def test_the_environment_gives_the_mode_and_an_argument_wins(token_file):
    code = PROGRAMS / "files_open/the_environment_gives_the_mode_and_an.py"
    assert output_of(code, token_file, PAGESTREAM_MMAP_MODE="private") == "private shared private"


@pytest.mark.parametrize("variable", ["PAGESTREAM_MMAP_MODE", "PAGESTREAM_FAULT_GUARD", "PAGESTREAM_SHARE"])
def test_a_value_that_cannot_be_parsed_names_the_variable(token_file, variable):
    code = PROGRAMS / "files_open/a_value_that_cannot_be_parsed_names.py"
    assert output_of(code, token_file, **{variable: "perhaps"}).startswith(f"{variable} must be ")


def test_opening_needs_no_memory_for_the_file(tmp_path):
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(1 << 36)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = [MappedFile(path) for _ in range(64)]
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert len(held) == 64
    assert grown_kib < 8 << 10


def test_importing_pagestream_imports_neither_torch_nor_safetensors():
    code = "import sys, pagestream; print(sorted({'torch', 'safetensors', 'tqdm'} & set(sys.modules)))"
    assert output_of(code) == "[]"
    assert sys.version_info >= (3, 11)


@pytest.mark.parametrize("mode", ["auto", "read"])
def test_opening_waits_for_a_write_lease_as_open_does(token_file, mode):
    code = PROGRAMS / "files_open/a_file_with_a_lease_opens.py"
    assert output_of(code, token_file, mode) == "8192"


def test_opening_a_checkpoint_waits_for_a_write_lease(tmp_path):
    save_file({"x": np.ones(10, "f4")}, tmp_path / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "a.safetensors"}}')
    code = PROGRAMS / "files_open/a_checkpoint_with_a_lease_opens.py"
    assert output_of(code, tmp_path / "a.safetensors", tmp_path) == "10.0"
