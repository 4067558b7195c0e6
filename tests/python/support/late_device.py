"""A device whose copies come late: they read the host's memory when they run, like a DMA engine."""

import contextlib
import ctypes
import os
import queue
import signal
import threading
import time
import weakref

import numpy as np
import torch

from pagestream.devices.copy_device import CopyDevice
from pagestream.torch import TokenLoader

# A test may replace torch's function.
_zeros = torch.zeros


class LateEvent:
    """An event that completes after everything queued before it."""

    def __init__(self):
        self._done = threading.Event()

    def set(self):
        self._done.set()

    def query(self):
        return self._done.is_set()

    def synchronize(self):
        assert self._done.wait(120)


class LateDevice:
    """Stands in for `CopyDevice`. One thread performs the copies in order, each `delay` seconds after the
    previous one.

    `registered` holds the page-locked memory. More than `most_registered` bytes at a time are refused.
    """

    is_cuda = True
    device = torch.device("cpu")

    def __init__(self, delay=0.01, most_registered=None):
        self.delay = delay
        self.most_registered = most_registered
        self.registered = {}
        self.unregistered_while_read = []
        self.runtimes = None
        self.fail_copy = None
        self.fail_synchronize = None
        self._reading = []
        self._work = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            self._work.get()()

    def stream(self):
        return contextlib.nullcontext()

    def on_current_stream(self):
        return self

    def copy(self, array):
        out = _zeros(array.shape, dtype=torch.from_numpy(array).dtype, device="cpu")
        self.copy_into(out, array)
        return out

    def empty(self, nbytes):
        return _zeros(nbytes, dtype=torch.uint8, device="cpu")

    def copy_into(self, target, array):
        if self.fail_copy is not None:
            self.fail_copy()
        source = array.__array_interface__["data"][0]
        self._reading.append(source)

        def transfer():
            time.sleep(self.delay)
            self.move(target, source, array.nbytes)
            self._reading.remove(source)

        self._work.put(transfer)

    def move(self, target, source, nbytes):
        """Copies bytes from the host's memory."""
        ctypes.memmove(target.data_ptr(), source, nbytes)

    def record(self):
        event = LateEvent()
        self._work.put(event.set)
        return event

    def hand_over(self, tensors, done):
        """Does nothing: a real device would make the program's stream wait, but not the host."""

    def synchronize(self):
        self.record().synchronize()
        if self.fail_synchronize is not None:
            fail, self.fail_synchronize = self.fail_synchronize, None
            fail()

    def register(self, address, nbytes):
        assert address not in self.registered
        if self.most_registered is not None and nbytes > self.most_registered:
            return 1
        self.registered[address] = nbytes
        return 0

    def allocate_pinned(self, nbytes):
        array = np.zeros(nbytes, np.uint8)
        self.runtimes = weakref.ref(array)
        return array

    def free_pinned(self):
        assert self.runtimes() is None, "it is still in use"
        self.unregistered_while_read += self._reading
        self.runtimes = None

    def unregister(self, address):
        first, last = address, address + self.registered.pop(address)
        self.unregistered_while_read += [source for source in self._reading if first <= source < last]


def interrupt_first_wait(device):
    """Interrupts the next wait for all copies by Ctrl-C, before any copy runs. The second wait completes."""
    synchronize, copies_may_run, move = device.synchronize, threading.Event(), device.move

    def second_wait():
        copies_may_run.set()
        synchronize()

    def first_wait():
        device.synchronize = second_wait
        raise KeyboardInterrupt

    def held_move(*arguments):
        assert copies_may_run.wait(120)
        move(*arguments)

    device.synchronize, device.move = first_wait, held_move


class StallingDevice(LateDevice):
    """Stops the storage during each copy, like a driver that holds a lock which the storage needs."""

    def __init__(self, daemon):
        super().__init__(delay=0)
        self.daemon = daemon
        self.driver = threading.Lock()
        self.stalled_copies = 0

    @contextlib.contextmanager
    def stalled(self):
        with self.driver:
            self.daemon.send_signal(signal.SIGSTOP)
            os.waitpid(self.daemon.pid, os.WUNTRACED)
            try:
                yield
            finally:
                self.daemon.send_signal(signal.SIGCONT)

    def move(self, target, source, nbytes):
        with self.stalled():
            super().move(target, source, nbytes)
            self.stalled_copies += 1


class StagedOnCpu(TokenLoader):
    """Treats the CPU as a device."""

    def _copy_device(self):
        return CopyDevice(torch.device("cpu"))


class StagedLate(TokenLoader):
    """Uses a device whose copies come late."""

    def _copy_device(self):
        self.late = LateDevice()
        return self.late
