"""A device whose copies come late: they read the host's memory when they run, as a DMA engine does."""

import contextlib
import ctypes
import queue
import threading
import time

import torch

from pagestream.torch import TokenLoader
from pagestream.torch._device import CopyDevice


class LateEvent:
    """An event that is done once everything queued before it is."""

    def __init__(self):
        self._done = threading.Event()

    def set(self):
        self._done.set()

    def query(self):
        return self._done.is_set()

    def synchronize(self):
        assert self._done.wait(30)


class LateDevice:
    """In place of `CopyDevice`. One thread does the copies, in order, each `delay` seconds after the last."""

    is_cuda = True
    device = torch.device("cpu")

    def __init__(self, delay=0.01):
        self.delay = delay
        self.registered = {}
        self.unregistered_while_read = []
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

    def copy(self, array):
        if self.fail_copy is not None:
            self.fail_copy()
        source, nbytes = array.__array_interface__["data"][0], array.nbytes
        out = torch.zeros(array.shape, dtype=torch.from_numpy(array).dtype)
        self._reading.append(source)

        def transfer():
            time.sleep(self.delay)
            ctypes.memmove(out.data_ptr(), source, nbytes)
            self._reading.remove(source)

        self._work.put(transfer)
        return out

    def record(self):
        event = LateEvent()
        self._work.put(event.set)
        return event

    def hand_over(self, tensors, done):
        """The consumer's stream would wait; the host does not."""

    def synchronize(self):
        self.record().synchronize()
        if self.fail_synchronize is not None:
            fail, self.fail_synchronize = self.fail_synchronize, None
            fail()

    def register(self, address, nbytes):
        assert address not in self.registered
        self.registered[address] = nbytes
        return 0

    def unregister(self, address):
        first, last = address, address + self.registered.pop(address)
        self.unregistered_while_read += [source for source in self._reading if first <= source < last]


class StagedOnCpu(TokenLoader):
    """Takes the way to a device, with the CPU for one."""

    def _copy_device(self):
        return CopyDevice(torch.device("cpu"))


class StagedLate(TokenLoader):
    """Takes the way to a device whose copies come late."""

    def _copy_device(self):
        self.late = LateDevice()
        return self.late
