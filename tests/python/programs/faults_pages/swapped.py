"""Writes pages of a tensor of 256 pages, and makes the kernel swap them out."""

import ctypes
import os
import time

from damaged import path

from pagestream.safetensors import safe_open

x = safe_open(path, "np").get_tensor("x").reshape(-1, 1024)
written = [95, 96, 103, 104, 120, 200]
# The kernel does not swap out a page while another processor has it in its batch of new pages.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
first = x.ctypes.data // 4096 * 4096
for page in written:
    ctypes.memset(first + page * 4096, page, 4096)
MADV_PAGEOUT = 21
libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def is_in_memory(page):
    present = ctypes.create_string_buffer(1)
    assert libc.mincore(first + page * 4096, 4096, present) == 0
    return present.raw[0] & 1 == 1


for page in written:
    for _ in range(100):
        assert libc.madvise(first + page * 4096, 4096, MADV_PAGEOUT) == 0, ctypes.get_errno()
        if not is_in_memory(page):
            break
        time.sleep(0.01)
    assert not is_in_memory(page), page


def is_right(page):
    return ctypes.string_at(first + page * 4096, 4096) == bytes([page]) * 4096


def right():
    return sum(map(is_right, written))
