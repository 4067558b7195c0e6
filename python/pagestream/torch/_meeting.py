"""The ranks of a process group while they load together: whether all are there, and what has failed.

```text
  a connection to each rank ──> the rank before it ──(closed, and no beat for CUT_SECONDS)──────┐
  a beat of each rank, in the group's store ──> the same ──(none for SILENT_SECONDS)────────────┤
  an exception in a rank ───────────────────────────────────────────────────────────────────────┤
                                              RankError in each rank <── the failure, in the store
```

A collective begins once all ranks have come to it and have the memory for it (`Meeting.meet`), and a rank
that waits for its end looks meanwhile whether another has failed: one that is late, stopped or dead lets
none run into the collective's time-out.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import sys
import threading
import time
import zlib
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from pagestream._common.threads import BackgroundThread
from pagestream.devices import constructors
from pagestream.errors import RankError
from pagestream.torch._lifelines import Lifeline, Watch
from pagestream.torch._store import Questions, connection, keep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Self, TypeAlias

    from torch.distributed.distributed_c10d import Store

    _Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

BEAT_SECONDS = 0.5
# A rank counts as gone after so long without a beat: while its connection stands, its machine may be busy.
SILENT_SECONDS = 60.0
CUT_SECONDS = 2.0
# The store closes a connection on which 8 MiB come (MAX_PAYLOAD_LEN in torch's TCPStoreLibUvBackend.cpp).
MESSAGE_BYTES = 4 << 20
# The largest message of a rank, which names the tensors of its plan: three million of them.
MOST_SAID_BYTES = 256 << 20
# After so long the log says which ranks are waited for.
LATE_SECONDS = 10.0
# Between two looks at the store, which is one process for all ranks.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.0002, 0.01
_FAILURE, _BEGUN, _HEARD, _DONE, _LEFT = "failure", "begun", "heard", "done", "left"
# Collectives that were left before their end, with their memory, which they may still read and write.
_unfinished: list[object] = []
# Names of the groups that load in this process.
_loading: set[str] = set()
_open: WeakSet[Meeting] = WeakSet()
_log = logging.getLogger("pagestream.ranks")
T = TypeVar("T")


class Meeting:
    """The ranks of a process group, from the beginning of a load to its end.

    Attributes:
        group: The process group.
        rank: This process's rank in it.
        size: How many ranks it has.
        may_leave: Whether this rank has all that it wants, and the others need nothing of it.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Joins. The other ranks may come later."""
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            message = "process_group: this process is not in it"
            raise ValueError(message)
        if group.group_name in _loading:
            # The others are not told, nor is this load counted: theirs go on.
            message = (
                "process_group: another load of this process uses the group, and has not ended; "
                "end it first, close its iterator, or give one of them a group of its own "
                "(torch.distributed.new_group)"
            )
            raise RuntimeError(message)
        self.may_leave = False
        self._process = os.getpid()
        self._rounds = 0
        # What this rank has said, until all have heard it.
        self._said: list[str] = []
        self._device = _device_of(group)
        store = dist.distributed_c10d._get_process_group_store(group)  # noqa: SLF001 - torch has no public name
        self._patience_seconds = _timeout_seconds(group, self._device, store)
        self._has_store = dist.get_rank() == 0
        self._is_silent = False
        self._questions = Questions(store, self.rank)
        self._beats = _Beats(self, store)
        _loading.add(group.group_name)
        self._questions.start()
        try:
            self._beats.prefix = self._ask(lambda _: self._questions.prefix)
        except BaseException:
            self._end()
            raise
        _open.add(self)
        self._beats.start()

    def __enter__(self) -> Self:
        """Returns the meeting."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Leaves. If it is by an exception the other ranks raise, too."""
        self._leave(error)

    def __del__(self) -> None:
        """Leaves, if nobody has: an iterator that was never begun."""
        if hasattr(self, "_beats"):
            self._leave(GeneratorExit())

    def _leave(self, error: BaseException | None) -> None:
        # A forked child has neither the threads nor anything to tell.
        if self._beats.has_ended() or os.getpid() != self._process:
            return
        try:
            self._say_why(error)
        finally:
            self._end()

    def _say_why(self, error: BaseException | None) -> None:
        is_done = error is None or (isinstance(error, GeneratorExit) and self.may_leave)
        # Where the store is gone there is nobody to tell.
        with contextlib.suppress(dist.DistError, RuntimeError):
            if error is not None and is_done:
                self._ask(self._arrive)
            elif error is not None:
                if not isinstance(error, RankError) or error.rank is None:
                    self._ask(lambda store: _fail(store, self.rank, _told_of(error)))
                self._wait_until_told()
        self._beats.end(BEAT_SECONDS if self._is_silent else SILENT_SECONDS)
        with contextlib.suppress(dist.DistError, RuntimeError):
            if is_done:
                self._part()

    def _end(self) -> None:
        _open.discard(self)
        self._beats.end(BEAT_SECONDS if self._is_silent else SILENT_SECONDS)
        self._questions.end()
        _loading.discard(self.group.group_name)

    def _wait_until_told(self) -> None:
        """Waits until all living ranks have heard of the failure: with this one the store may end.

        It waits a while for those that have not begun, and as long as a rank may be silent for the others.
        """
        if not self._ask(lambda store: store.check([_FAILURE])):
            return
        _, _, is_gone = self._ask(_failure_in)
        begun = time.monotonic()
        while True:
            heard, started = self._ask(lambda store: (store.add(_HEARD, 0), store.add(_BEGUN, 0)))
            waited_seconds = time.monotonic() - begun
            awaited = self.size if waited_seconds < 4 * BEAT_SECONDS else started
            if heard >= awaited - is_gone or waited_seconds > SILENT_SECONDS:
                return
            time.sleep(BEAT_SECONDS / 20)

    def _part(self) -> None:
        """Leaves after the end. The last rank deletes the keys. Rank 0 waits for it, with the store."""

        def part(store: Store) -> None:
            if self._said:
                # Another rank may not have heard it yet, and this one does not wait for it.
                store.set(f"unheard/{self.rank}", "\n".join(self._said))
            if store.add(_LEFT, 1) < self.size:
                return
            keys = [f"go/{self._rounds}", f"round/{self._rounds}", _BEGUN, _LEFT]
            for rank in range(self.size):
                keys.append(f"beat/{rank}")
                if store.check([unheard := f"unheard/{rank}"]):
                    keys += [unheard, *store.get(unheard).decode().split("\n")]
            for key in keys:
                store.delete_key(key)

        self._ask(part)
        deadline = time.monotonic() + SILENT_SECONDS
        while self._has_store and self._ask(lambda store: store.check([_LEFT])):
            if time.monotonic() > deadline:
                return
            time.sleep(BEAT_SECONDS / 100)

    def gather(self, name: str, payload: str) -> list[str]:
        """Returns what each rank has to say. What many of them say crosses the network once for each rank.

        Raises:
            ValueError: This rank has too much to say.
            RankError: Another rank has failed, or what it says is not valid.
        """
        plain = payload.encode()
        if len(plain) > MOST_SAID_BYTES:
            message = (
                f"process_group: the {name} of this rank's plan take {len(plain)} bytes to tell the other "
                f"ranks, and may take {MOST_SAID_BYTES}; load the checkpoint in several plans"
            )
            raise ValueError(message)
        packed = zlib.compress(plain)
        digest = f"{name}/{hashlib.sha256(packed).hexdigest()}"
        pieces = [packed[first : first + MESSAGE_BYTES] for first in range(0, len(packed), MESSAGE_BYTES)]
        values = {f"{digest}/{number}": piece for number, piece in enumerate(pieces)}
        values[f"{name}/{self.rank}"] = f"{len(pieces)} {digest}".encode()
        for key, value in values.items():
            self._ask(partial(_set, key=key, value=value))
        self._said += values
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        self._await_ranks(keys)
        told = self._ask(lambda store: [store.get(key).decode() for key in keys])
        said: dict[str, str] = {}
        for rank, each in enumerate(told):
            if each not in said:
                said[each] = self._heard(name, rank, each)
        return [said[each] for each in told]

    def _heard(self, name: str, rank: int, told: str) -> str:
        """Returns what a rank has said, by the number of its pieces and their name.

        Raises:
            RankError: It is no message of a rank, or too large.
        """
        try:
            count, digest = told.split(" ", 1)
            # What cannot be compressed is a little larger for it.
            _check(int(count) <= MOST_SAID_BYTES // MESSAGE_BYTES + 1, f"it has {count} pieces")
            keys = [f"{digest}/{number}" for number in range(int(count))]
            pieces = [self._ask(partial(_get, key=key)) for key in keys]
            unpacking = zlib.decompressobj()
            plain = unpacking.decompress(b"".join(pieces), MOST_SAID_BYTES + 1)
            _check(len(plain) <= MOST_SAID_BYTES, f"it has more than {MOST_SAID_BYTES} bytes when unpacked")
            _check(unpacking.eof, "its end is missing")
            return plain.decode()
        except (ValueError, zlib.error) as error:
            why = (
                f"its message {name!r} is not valid: {error}; all ranks must run the same release of "
                "pagestream, and no other program may write to keys of the group's store below pagestream/"
            )
            self._ask(lambda store: _fail(store, rank, why))
            raise RankError(rank, why) from error

    def check(self) -> None:
        """Checks that no failure is known. It does not ask the store.

        Raises:
            RankError: Another rank has failed.
        """
        if self._beats.failure is not None:
            raise RankError(*self._beats.failure)

    def meet(self) -> None:
        """Waits until all ranks have come here.

        Raises:
            RankError: One of them has failed.
        """
        self._ask(self._arrive)
        self._await(f"go/{self._rounds}")
        # All have heard it: they came here afterwards.
        said, self._said = self._said, []
        if said:
            self._ask(lambda store: [store.delete_key(key) for key in said])

    def _arrive(self, store: Store) -> None:
        self._rounds += 1
        if store.add(f"round/{self._rounds}", 1) == self.size:
            store.set(f"go/{self._rounds}", "")
            # All have come from the one before: nobody looks at it any more.
            store.delete_key(f"go/{self._rounds - 1}")
            store.delete_key(f"round/{self._rounds - 1}")

    def swap(self, outgoing: list[list[_Bytes]], incoming_bytes: list[int]) -> list[_Bytes]:
        """Sends arrays to each rank, and returns what came from each.

        Raises:
            RankError: A rank has failed.
        """
        outgoing_bytes = [sum(each.nbytes for each in arrays) for arrays in outgoing]
        sent = np.empty(sum(outgoing_bytes), np.uint8)
        first = 0
        for each in (each for arrays in outgoing for each in arrays):
            sent[first : first + each.nbytes].reshape(each.shape)[...] = each
            first += each.nbytes
        going = constructors.from_numpy(sent).to(self._device)
        came = constructors.empty((sum(incoming_bytes),), torch.uint8, self._device)
        # Once all are here nothing can fail but the collective itself.
        self.meet()
        work = None
        try:
            work = dist.all_to_all_single(
                came, going, incoming_bytes, outgoing_bytes, group=self.group, async_op=True
            )
            if work is not None:  # as it is for ranks that are not in the group
                self._await_end(work)
        except BaseException as error:
            _unfinished.append((work, going, came))
            if isinstance(error, RuntimeError) and not isinstance(error, RankError):
                # Its cause shows here sooner than that the rank is silent.
                self._await_failure()
            raise
        return list(np.split(came.cpu().numpy(), np.cumsum(incoming_bytes)[:-1]))

    def _await_end(self, work: dist.Work) -> None:
        """Waits for the end of a collective, unless a rank fails before."""
        for _ in _looks():
            if work.is_completed():
                break
            if self._beats.failure is not None and self._device.type != "cpu":
                # What is queued on the device behind the collective would wait with it.
                self.group.abort()
            self.check()
        work.wait()

    def _await_failure(self) -> None:
        """Raises what has failed in another rank, which may not be known yet."""
        deadline = time.monotonic() + SILENT_SECONDS + 2 * BEAT_SECONDS
        while time.monotonic() < deadline:
            self._look([_FAILURE])
            time.sleep(BEAT_SECONDS / 5)

    def _await(self, key: str) -> None:
        """Waits until the store has a key."""
        for _ in _looks():
            if self._look([key]):
                return

    def _await_ranks(self, keys: list[str]) -> None:
        """Waits until each rank has set its key: some may have to import much, or to wait for a machine.

        Raises:
            TimeoutError: One has not within the time-out of the group.
        """
        begun, is_told = time.monotonic(), False
        for _ in _looks():
            if self._look(keys):
                return
            waited_seconds = time.monotonic() - begun
            if waited_seconds > self._patience_seconds:
                message = (
                    f"process_group: {self._missing(keys)} did not come within {self._patience_seconds:g} s, "
                    "the time-out of the group; all its ranks have to begin the load"
                )
                raise TimeoutError(message)
            if not is_told and waited_seconds > LATE_SECONDS:
                is_told = True
                _log.warning(
                    "process_group: rank %d waits for %s; all ranks of the group have to begin the load",
                    self.rank,
                    self._missing(keys),
                )

    def _missing(self, keys: list[str]) -> str:
        missing = self._ask(lambda store: [rank for rank, key in enumerate(keys) if not store.check([key])])
        return f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"

    def _look(self, keys: list[str]) -> bool:
        """Returns whether the store has all keys. If not, it raises what has failed in another rank.

        Raises:
            RankError: One of them has failed.
        """

        def look(store: Store) -> tuple[int | None, str, bool] | bool:
            if keys != [_FAILURE] and store.check(keys):
                return True
            self._beats.hear(store)
            return self._beats.failure or False

        found = self._ask(look)
        if isinstance(found, bool):
            return found
        raise RankError(*found)

    def _ask(self, question: Callable[[Store], T]) -> T:
        """Returns what the store answers.

        Raises:
            RankError: It cannot be reached, or does not answer.
        """
        if self._is_silent:
            raise RankError(None, _silent_store(), is_gone=True)
        answer = self._questions.ask(question)
        # The store does large and small things for many ranks: it is silent if it answers nothing at all.
        # Looks are counted, not seconds: this rank may have stood still.
        seen, looks = -1, 0
        while not answer.comes_within(BEAT_SECONDS):
            seen, looks = self._beats.number, looks + 1 if self._beats.number == seen else 0
            if looks * BEAT_SECONDS > SILENT_SECONDS:
                self._is_silent = True
                raise RankError(None, _silent_store(), is_gone=True)
        try:
            return answer.value()
        except (dist.DistError, RuntimeError) as error:
            if isinstance(error, RankError):
                raise
            failure = self._beats.failure or (None, _out_of_reach(error), True)
            raise RankError(*failure) from error


class _Beats(BackgroundThread):
    """Tells the other ranks that this one is alive, watches the next one, and hears of failures.

    Attributes:
        prefix: What the keys of the load begin with.
        number: How often it has beaten, and had answers from the store.
        watch: The connection to the next rank, if that is there and not done.
        failure: Which rank has failed, None where that is not known; what happened there; and whether it
            takes part in nothing any more. None as long as no failure is known.
    """

    prefix: str

    def __init__(self, meeting: Meeting, store: Store) -> None:
        super().__init__("pagestream-beats")
        self.number = 0
        self.failure: tuple[int | None, str, bool] | None = None
        self.watch: Watch | None = None
        self._seen, self._looks = "", 0
        self._rank, self._size, self._group_store = meeting.rank, meeting.size, store
        self._ended, self._hearing = threading.Event(), threading.Lock()

    def run(self) -> None:
        """Beats until the end."""
        try:
            own = connection(self._group_store)
            with Lifeline(self._group_store) as lifeline:
                self._beat(PrefixStore(self.prefix, own), lifeline.address)
            keep(self._group_store, own)
        except (dist.DistError, RuntimeError) as error:
            if self.failure is None:
                self.failure = None, _out_of_reach(error), True

    def _beat(self, store: Store, address: str) -> None:
        store.add(_BEGUN, 1)
        watched = (self._rank + 1) % self._size
        while not self._ended.wait(BEAT_SECONDS if self.number else 0):
            store.set(f"beat/{self._rank}", f"{self.number} {address}")
            self.hear(store)
            self.number += 1
            if watched == self._rank or not store.check([f"beat/{watched}"]):
                continue
            beat = store.get(f"beat/{watched}").decode()
            if beat == _DONE:
                watched = (watched + 1) % self._size
                self._let_go()
            elif told := self._is_gone(beat):
                _fail(store, watched, told, is_gone=True)
        self._let_go()
        if self.failure is None:
            store.add(_BEGUN, -1)
        store.set(f"beat/{self._rank}", _DONE)
        # Once that is there, the connection to this rank may be closed.
        store.check([_DONE])

    def _is_gone(self, beat: str) -> str | None:
        """Returns what the others hear if the rank that is watched has stopped beating for too long."""
        # Looks are counted, not seconds: this rank, or the store, may have stood still.
        if beat != self._seen:
            self._seen, self._looks = beat, 0
        if self.watch is None:
            self.watch = Watch(beat.partition(" ")[2])
        is_cut = self.watch.is_cut()
        silent_seconds = self._looks * BEAT_SECONDS
        self._looks += 1
        if is_cut and silent_seconds > CUT_SECONDS:
            return "its process has ended"
        if silent_seconds > SILENT_SECONDS:
            return f"no sign of life for {SILENT_SECONDS:.0f} s: it is stopped, or its machine is gone"
        return None

    def _let_go(self) -> None:
        """Ends the watch of a rank."""
        if self.watch is not None:
            self.watch.close()
        self.watch, self._seen = None, ""

    def hear(self, store: Store) -> None:
        """Looks whether a rank has failed, and says that this one knows."""
        with self._hearing:
            if self.failure is None and store.check([_FAILURE]):
                self.failure = _failure_in(store)
                store.add(_HEARD, 1)

    def has_ended(self) -> bool:
        """Returns whether this rank is done."""
        return self._ended.is_set()

    def end(self, patience_seconds: float) -> None:
        """Stops, and says that this rank is done. A thread that the store does not answer is left behind."""
        self._ended.set()
        if self.ident is not None:
            self.join(patience_seconds)


@atexit.register
def _leave_all() -> None:
    """Tells the other ranks that this process ends, where iterators are still open."""
    for meeting in list(_open):
        # What has ended the process, if it was an exception.
        meeting.__exit__(None, getattr(sys, "last_value", None) or GeneratorExit(), None)


def _looks() -> Iterator[None]:
    """Yields at each time to look at what is waited for: often at first."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _told_of(error: BaseException) -> str:
    """Returns what the other ranks hear of an error."""
    if not isinstance(error, GeneratorExit):
        return f"{type(error).__name__}: {error}"
    cause: BaseException | None = error
    while isinstance(cause, GeneratorExit):
        # One generator closes another. What `contextlib.closing` closes the first one for is behind them.
        cause = cause.__context__
    because = "" if cause is None else f" (it handles {type(cause).__name__}: {cause})"
    return f"it left before all was loaded: its consumer stopped, or has failed{because}"


def _check(is_valid: bool, problem: str) -> None:  # noqa: FBT001
    if not is_valid:
        raise ValueError(problem)


def _set(store: Store, key: str, value: bytes) -> None:
    store.set(key, value)  # type: ignore[arg-type]  # takes bytes as well


def _get(store: Store, key: str) -> bytes:
    return store.get(key)


def _fail(store: Store, rank: int, told: str, *, is_gone: bool = False) -> None:
    """Tells all ranks of a failure, unless there is another one."""
    store.compare_set(_FAILURE, "", json.dumps([rank, told, is_gone]))


def _failure_in(store: Store) -> tuple[int, str, bool]:
    rank, told, is_gone = json.loads(store.get(_FAILURE))
    return rank, told, is_gone


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Returns where a group moves memory: in the host's if it can."""
    devices = [torch.device(each) for each in group._device_types]  # noqa: SLF001 - torch has no public name
    if not devices or any(each.type == "cpu" for each in devices):
        return torch.device("cpu")
    return group.bound_device_id or torch.device(devices[0].type)


def _timeout_seconds(group: dist.ProcessGroup, device: torch.device, store: Store) -> float:
    """Returns the time-out of a group. A group of its own may have another one than the store of all."""
    options = getattr(group._get_backend(device), "options", None)  # noqa: SLF001 - torch has no public name
    timeout = getattr(options, "_timeout", None) or store.timeout  # type: ignore[attr-defined]
    return float(timeout.total_seconds())


def _silent_store() -> str:
    return (
        f"the process group's store has not answered for {SILENT_SECONDS:.0f} s: the process that has it, "
        "which is rank 0 or the launcher, is stopped"
    )


def _out_of_reach(error: Exception) -> str:
    return f"the process group's store cannot be reached: {error}"
