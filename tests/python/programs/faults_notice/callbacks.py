"""Uses the array in callbacks, where no caller can catch exceptions."""

import gc
import os
import weakref

from notice import array

from pagestream.errors import MappedReadError


class Holder:
    def __del__(self):
        array.sum()
        self.done = True


class Converting:
    def __del__(self):
        try:
            array.sum()
            self.done = True
        except MappedReadError as error:
            raise RuntimeError("made of it") from error


class Referent:
    pass


def in_a_finaliser():
    holder = Holder()
    del holder


def in_a_weak_reference():
    referent = Referent()
    reference = weakref.ref(referent, lambda _: [array.sum()])
    del referent


def in_the_collector():
    def look(phase, info):
        if phase == "start":
            array.sum()
            gc.callbacks.clear()

    gc.callbacks.append(look)
    gc.collect()


def after_a_fork():
    def look():
        array.sum()
        len("")

    os.register_at_fork(after_in_parent=look)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def in_two_finalisers():
    holders = [Converting(), Converting()]
    del holders


CALLBACKS = {
    "finaliser": in_a_finaliser,
    "weak reference": in_a_weak_reference,
    "collector": in_the_collector,
    "fork": after_a_fork,
    "two finalisers": in_two_finalisers,
}
