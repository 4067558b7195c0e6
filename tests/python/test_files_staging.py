"""`StagingBuffer`: alignment, growth, protection, seals, huge pages."""

import errno
import gc
import os
import pickle
import resource
import signal
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from pagestream import StagingBuffer, _native

from support.process import PROGRAMS, output_of, run_python

PAGE = 4096
MIB = 1 << 20


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("nbytes", [0, 1, PAGE, PAGE + 1, 4 * MIB + 3])
def test_it_is_zeroed_aligned_and_writable(nbytes, shared):
    buffer = StagingBuffer(nbytes, shared=shared)
    array = np.frombuffer(buffer, "u1")
    assert (array.shape, len(buffer), buffer.nbytes) == ((nbytes,), nbytes, nbytes)
    assert array.ctypes.data % PAGE == 0
    assert not array.any()
    assert array.flags.writeable
    array[:] = 3
    assert bytes(buffer) == b"\3" * nbytes


def test_more_memory_than_the_machine_has_is_an_error():
    for nbytes in (1 << 60, 2**64 - 1):
        with pytest.raises(OSError, match=f"{nbytes} bytes were asked for") as caught:
            StagingBuffer(nbytes)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOMEM, None)
    with pytest.raises(OverflowError):
        StagingBuffer(-1)


@pytest.mark.parametrize("huge_pages", ["always", "never"])
@pytest.mark.parametrize("shared", [False, True])
def test_it_grows_with_its_content_and_new_bytes_are_zero(shared, huge_pages):
    buffer = StagingBuffer(PAGE + 10, shared=shared, huge_pages=huge_pages)
    np.frombuffer(buffer, "u1")[:] = 7
    for nbytes in (PAGE + 20, 3 * PAGE, 5 * MIB, 40 * MIB):
        buffer.resize(nbytes)
        array = np.frombuffer(buffer, "u1")
        assert array.shape == (nbytes,)
        assert (array[: PAGE + 10] == 7).all()
        assert not array[PAGE + 10 :].any()
        array[-1] = 0
        del array


def test_a_private_one_shrinks_and_forgets_what_it_gave_up():
    buffer = StagingBuffer(3 * PAGE)
    np.frombuffer(buffer, "u1")[:] = 7
    buffer.resize(10)
    buffer.resize(3 * PAGE)
    array = np.frombuffer(buffer, "u1")
    assert (array[:10] == 7).all()
    assert not array[10:].any()


def test_a_shared_one_does_not_shrink_under_other_processes():
    buffer = StagingBuffer(3 * PAGE, shared=True)
    with pytest.raises(OSError, match="a shared one can only grow") as caught:
        buffer.resize(PAGE)
    assert caught.value.errno == errno.EPERM
    assert buffer.nbytes == 3 * PAGE


@pytest.mark.parametrize("verb", ["resize", "protect", "seal"])
def test_nothing_moves_under_a_view(verb):
    buffer = StagingBuffer(PAGE, shared=True)
    act = {
        "resize": lambda: buffer.resize(2 * PAGE),
        "protect": lambda: buffer.protect("read"),
        "seal": buffer.seal,
    }[verb]
    views = [memoryview(buffer), np.frombuffer(buffer, "u1")]
    with pytest.raises(BufferError, match=f"cannot {verb} the buffer: 2 views of it are still alive"):
        act()
    views[0].release()
    views.clear()
    gc.collect()
    act()


def test_a_view_outlives_the_object():
    array = np.frombuffer(StagingBuffer(PAGE), "u1")
    array[:] = 1
    gc.collect()
    assert array.sum() == PAGE


def test_protection_changes_what_views_may_do():
    buffer = StagingBuffer(PAGE)
    buffer.protect("read")
    assert memoryview(buffer).readonly
    assert not np.frombuffer(buffer, "u1").flags.writeable
    buffer.protect("readwrite")
    np.frombuffer(buffer, "u1")[0] = 1
    assert bytes(buffer)[0] == 1


def test_writing_to_protected_memory_by_address_is_a_segmentation_fault():
    code = PROGRAMS / "files_staging/writing_to_protected_memory_by_address_is.py"
    done = run_python(code)
    assert (done.returncode, done.stdout.strip()) == (-signal.SIGSEGV, "protected")


def test_a_seal_is_for_good():
    buffer = StagingBuffer(PAGE, shared=True)
    np.frombuffer(buffer, "u1")[:] = 4
    buffer.seal()
    buffer.seal()
    assert buffer.sealed
    assert bytes(buffer) == b"\4" * PAGE
    assert memoryview(buffer).readonly
    for act in (lambda: buffer.protect("readwrite"), lambda: buffer.resize(2 * PAGE)):
        with pytest.raises(OSError, match="sealed") as caught:
            act()
        assert caught.value.errno == errno.EPERM
    with open(f"/proc/self/fd/{buffer.fileno()}", "r+b", buffering=0) as writer:
        with pytest.raises(PermissionError):
            writer.truncate(0)
        with pytest.raises(PermissionError):
            writer.write(b"x")


def test_shared_memory_cannot_be_cut_by_descriptor():
    buffer = StagingBuffer(PAGE, shared=True)
    with pytest.raises(PermissionError):
        os.ftruncate(buffer.fileno(), 0)


def test_private_memory_has_no_descriptor_no_seal_and_no_pickle():
    buffer = StagingBuffer(PAGE)
    with pytest.raises(ValueError, match="use shared=True"):
        buffer.fileno()
    with pytest.raises(OSError, match="only memory made with shared=True"):
        buffer.seal()
    with pytest.raises(TypeError, match="use shared=True"):
        pickle.dumps(buffer)
    assert np.frombuffer(buffer, "u1").flags.writeable


def test_a_sealed_buffer_reaches_another_process_and_stays_sealed():
    code = PROGRAMS / "files_staging/a_sealed_buffer_reaches_another_process_and.py"
    assert output_of(code) == "True True b'\\x06\\x06\\x06'"


def test_a_seal_fails_while_another_one_maps_it_and_nothing_has_changed():
    code = PROGRAMS / "files_staging/a_seal_fails_while_another_one_maps.py"
    first, second, third = output_of(code).splitlines()
    assert "another process has it mapped" in first
    assert (second, third) == ("False False b'\\x07\\x06'", "True")


def test_a_descriptor_of_something_else_is_refused(tmp_path):
    from pagestream.files.staging import _map_descriptor

    path = tmp_path / "f"
    path.write_bytes(bytes(PAGE))
    with open(path, "rb") as file:
        duplicate = type("D", (), {"detach": lambda self: os.dup(file.fileno())})()
        with pytest.raises(OSError, match="not one of a StagingBuffer"):
            _map_descriptor(StagingBuffer, duplicate, PAGE)


def test_huge_pages_are_used_where_asked_and_the_kernel_has_them():
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    allowed = setting.exists() and "[never]" not in setting.read_text()
    for word, expected in (("always", allowed), ("auto", allowed)):
        buffer = StagingBuffer(16 * MIB, huge_pages=word)
        array = np.frombuffer(buffer, "u1")
        array[::PAGE] = 1
        assert array.ctypes.data % (2 * MIB) == 0
        assert (buffer.huge_page_bytes > 0) == expected
    if setting.exists() and "[always]" not in setting.read_text():
        buffer = StagingBuffer(16 * MIB, huge_pages="never")
        np.frombuffer(buffer, "u1")[::PAGE] = 1
        assert buffer.huge_page_bytes == 0


def faults_of_touching(buffer):
    array = np.frombuffer(buffer, "u1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array[::PAGE] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("threads", [0, 1, 3, 1000])
def test_a_buffer_that_is_populated_has_all_its_pages(shared, threads):
    pages = 9 * MIB // PAGE
    buffer = StagingBuffer(9 * MIB - 5, shared=shared, huge_pages="never")
    _native.populate(buffer, threads)
    if shared:  # of these, the kernel maps several pages per fault
        assert os.fstat(buffer.fileno()).st_blocks * 512 >= 9 * MIB
    assert faults_of_touching(buffer) < pages / 10
    assert bytes(buffer)[1:PAGE] == bytes(PAGE - 1)
    if not shared:
        assert faults_of_touching(StagingBuffer(9 * MIB - 5, huge_pages="never")) >= pages


def test_populating_changes_no_content_and_spares_what_is_read_only():
    buffer = StagingBuffer(3 * PAGE, shared=True)
    np.frombuffer(buffer, "u1")[:] = 7
    _native.populate(buffer, 2)
    assert bytes(buffer) == b"\7" * 3 * PAGE
    buffer.seal()
    _native.populate(buffer, 2)
    assert bytes(buffer) == b"\7" * 3 * PAGE


def test_an_unknown_word_for_huge_pages_is_a_value_error():
    with pytest.raises(ValueError, match='huge_pages must be "auto", "always" or "never", not \'yes\''):
        StagingBuffer(PAGE, huge_pages="yes")
    with pytest.raises(ValueError, match='protection must be "read" or "readwrite", not \'none\''):
        StagingBuffer(PAGE).protect("none")


def twin(buffer):
    """Returns a second mapping of the same memory, such as another process would have."""
    from pagestream.files.staging import _map_descriptor

    duplicate = type("D", (), {"detach": lambda self: os.dup(buffer.fileno())})()
    return _map_descriptor(StagingBuffer, duplicate, buffer.nbytes)


def test_growing_does_not_erase_what_another_process_wrote():
    one = StagingBuffer(100, shared=True)
    other = twin(one)
    other.resize(PAGE)
    np.frombuffer(other, "u1")[200] = 7
    one.resize(PAGE)
    assert np.frombuffer(one, "u1")[200] == 7


def test_growing_by_less_than_another_process_did_is_allowed():
    one = StagingBuffer(PAGE, shared=True)
    other = twin(one)
    other.resize(MIB)
    one.resize(16 * PAGE)
    np.frombuffer(one, "u1")[-1] = 5
    assert np.frombuffer(other, "u1")[16 * PAGE - 1] == 5


def test_a_shared_one_does_not_shrink_by_less_than_a_page_either():
    buffer = StagingBuffer(PAGE, shared=True)
    with pytest.raises(OSError, match="a shared one can only grow"):
        buffer.resize(100)


def test_new_bytes_of_a_protected_buffer_are_zero_too():
    buffer = StagingBuffer(PAGE)
    np.frombuffer(buffer, "u1")[:] = 255
    buffer.protect("read")
    buffer.resize(100)
    buffer.resize(PAGE)
    assert (memoryview(buffer).readonly, bytes(buffer)) == (True, b"\xff" * 100 + bytes(PAGE - 100))


def test_a_seal_that_fails_for_want_of_a_descriptor_has_changed_nothing():
    code = PROGRAMS / "files_staging/a_seal_that_fails_for_want_of.py"
    first, second = output_of(code).splitlines()
    assert (first, second) == ("EMFILE False False b'\\x03\\x03'", "True b'\\x04\\x03'")


@pytest.mark.frameworks
@pytest.mark.parametrize("verb", ["resize", "protect", "seal"])
def test_nothing_moves_under_a_tensor(verb):
    """`torch.frombuffer` releases its view at once, but keeps the object that exported it."""
    import torch

    buffer = StagingBuffer(PAGE, shared=True)
    act = {
        "resize": lambda: buffer.resize(2 * PAGE),
        "protect": lambda: buffer.protect("read"),
        "seal": buffer.seal,
    }[verb]
    tensor = torch.frombuffer(buffer, dtype=torch.uint8)
    part = tensor[5:]
    del tensor
    with pytest.raises(BufferError, match="1 views of it are still alive"):
        act()
    part[0] = 7
    del part
    gc.collect()
    act()
    assert bytes(buffer)[5] == 7


@pytest.mark.parametrize("verb", ["resize", "protect", "seal"])
def test_nothing_moves_under_an_array_whose_end_is_unknown(verb):
    """`np.ndarray(buffer=…)` releases its view at once, but keeps the given buffer."""
    buffer = StagingBuffer(PAGE, shared=True)
    array = np.ndarray(PAGE, "u1", buffer)
    with pytest.raises(BufferError, match=r"may be alive; use np\.frombuffer"):
        {
            "resize": lambda: buffer.resize(2 * PAGE),
            "protect": lambda: buffer.protect("read"),
            "seal": buffer.seal,
        }[verb]()
    array[5] = 7
    assert bytes(buffer)[5] == 7


def test_an_array_of_a_view_says_when_it_dies():
    buffer = StagingBuffer(PAGE)
    array = np.ndarray(PAGE, "u1", memoryview(buffer))
    with pytest.raises(BufferError, match="1 views of it are still alive"):
        buffer.resize(2 * PAGE)
    array[5] = 7
    del array
    buffer.resize(2 * PAGE)
    assert bytes(buffer)[5] == 7


def test_the_address_is_no_public_attribute():
    assert not hasattr(StagingBuffer(PAGE), "address")


def test_words_are_those_of_the_core():
    import typing

    hints = get_type_hints(StagingBuffer.__new__, localns={"Self": typing.Self})
    assert get_args(hints["huge_pages"]) == _native.HUGE_PAGES
    assert get_args(get_type_hints(StagingBuffer.protect)["protection"]) == _native.PROTECTIONS
