"""Synchronises the ranks of a process group during a load, and reports the failure of any rank to all.

```text
  a connection to each rank ──> the rank before it ──(closed, and no beat for CUT_SECONDS)──────┐
  a beat of each rank, in the group's store ──> the same ──(none for SILENT_SECONDS)────────────┤
  an exception in a rank ───────────────────────────────────────────────────────────────────────┤
                                              RankError in each rank <── the failure, in the store
```

A collective starts only after all ranks have allocated its memory and reached it (`Meeting.meet`). While a
rank waits for the collective to end, it checks whether another rank has failed. A late, stopped or dead rank
therefore never makes another rank run into the collective's time-out.
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
# A rank counts as gone after this long without a beat. The limit is generous because its machine may be busy.
SILENT_SECONDS = 60.0
# The same limit for a rank whose connection is closed.
CUT_SECONDS = 2.0
# The store closes a connection that sends 8 MiB (MAX_PAYLOAD_LEN in torch's TCPStoreLibUvBackend.cpp).
MESSAGE_BYTES = 4 << 20
# The largest message of a rank. It names the tensors of the rank's plan: this is enough for three million.
MOST_SAID_BYTES = 256 << 20
# After this long, a warning in the log names the missing ranks.
LATE_SECONDS = 10.0
# Pauses between two looks at the store. They grow, because one process serves the store to all ranks.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.0002, 0.01
_FAILURE, _BEGUN, _HEARD, _DONE, _LEFT = "failure", "begun", "heard", "done", "left"
# Abandoned collectives with their buffers: a collective may go on reading and writing its buffers.
_unfinished: list[object] = []
# Names of the groups with a load in this process.
_loading: set[str] = set()
_open: WeakSet[Meeting] = WeakSet()
_log = logging.getLogger("pagestream.ranks")
T = TypeVar("T")


class Meeting:
    """The ranks of a process group, from the beginning of a load to its end.

    Attributes:
        group: The process group.
        rank: The rank of this process in the group.
        size: The number of ranks in the group.
        may_leave: Whether this rank has all its tensors, and no other rank needs data from it.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Joins the load. The other ranks may join later.

        Raises:
            ValueError: This process is not in the group.
            RuntimeError: Another load in this process uses the group.
            RankError: The store cannot be reached, or does not answer.
        """
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            message = "process_group: this process is not in it"
            raise ValueError(message)
        if group.group_name in _loading:
            # Raise without telling the other ranks or counting this load. Their loads go on.
            message = (
                "process_group: another load of this process uses the group, and has not ended; "
                "end it first, close its iterator, or give one of them a group of its own "
                "(torch.distributed.new_group)"
            )
            raise RuntimeError(message)
        self.may_leave = False
        self._process = os.getpid()
        self._rounds = 0
        # Keys of this rank's messages, until all ranks have read them.
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
        """Leaves the load. If an exception is the reason, the other ranks raise, too."""
        self._leave(error)

    def __del__(self) -> None:
        """Leaves the load if that has not happened yet, because an iterator was never started."""
        if hasattr(self, "_beats"):
            self._leave(GeneratorExit())

    def _leave(self, error: BaseException | None) -> None:
        # A forked child has no threads, and is not a rank.
        if self._beats.has_ended() or os.getpid() != self._process:
            return
        try:
            self._say_why(error)
        finally:
            self._end()

    def _say_why(self, error: BaseException | None) -> None:
        is_done = error is None or (isinstance(error, GeneratorExit) and self.may_leave)
        # If the store is gone, the other ranks cannot be told.
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
        """Waits until all live ranks know of the failure, because the store may end with this process.

        It waits up to 4 beats for ranks that have not begun, and up to `SILENT_SECONDS` for the rest.
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
        """Leaves after a complete load. The last rank deletes the keys; rank 0 keeps the store until then."""

        def part(store: Store) -> None:
            if self._said:
                # Another rank may not have read the messages yet. The last rank to leave deletes their keys.
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
        """Returns the message of each rank. A rank downloads equal messages only once.

        Args:
            name: The name of the message, for keys and errors.
            payload: The message of this rank.

        Raises:
            ValueError: This rank's message is too large.
            RankError: Another rank has failed, or its message is not valid.
            TimeoutError: A rank did not begin within the group's time-out.
        """
        plain = payload.encode()
        if len(plain) > MOST_SAID_BYTES:
            message = (
                f"process_group: this rank's message {name!r} to the other ranks has {len(plain)} bytes, and "
                f"the limit is {MOST_SAID_BYTES}; load the checkpoint in several plans"
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
        """Returns the message of a rank. `told` is its header: the number of pieces, and their name.

        Raises:
            RankError: The message is not valid, or is too large.
        """
        try:
            count, digest = told.split(" ", 1)
            # Data that does not compress grows a little, so one more piece is allowed.
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
        """Raises if a failure is known. It does not ask the store.

        Raises:
            RankError: Another rank has failed.
        """
        if self._beats.failure is not None:
            raise RankError(*self._beats.failure)

    def connect(self) -> None:
        """Waits until all ranks have called this, and each has connected to the next one.

        From here on, the next rank is known to have ended soon after its process does.

        Raises:
            RankError: Another rank has failed.
        """
        for _ in _looks():
            if self._beats.has_watched:
                break
            self._beats.hurry()
            # A store that does not answer ends the wait, and so does a failure.
            self._look([_FAILURE])
        self.meet()

    def meet(self) -> None:
        """Waits until all ranks have called this.

        Raises:
            RankError: Another rank has failed.
        """
        self._ask(self._arrive)
        self._await(f"go/{self._rounds}")
        # Each rank reads all earlier messages before it comes here, so their keys are no longer needed.
        said, self._said = self._said, []
        if said:
            self._ask(lambda store: [store.delete_key(key) for key in said])

    def _arrive(self, store: Store) -> None:
        self._rounds += 1
        if store.add(f"round/{self._rounds}", 1) == self.size:
            store.set(f"go/{self._rounds}", "")
            # All ranks have left the round before, so no rank looks at its keys again.
            store.delete_key(f"go/{self._rounds - 1}")
            store.delete_key(f"round/{self._rounds - 1}")

    def swap(self, outgoing: list[list[_Bytes]], incoming_bytes: list[int]) -> list[_Bytes]:
        """Sends arrays to each rank, and returns the bytes received from each rank.

        Args:
            outgoing: For each rank, the arrays to send.
            incoming_bytes: For each rank, the number of bytes to receive.

        Returns:
            For each rank, the received bytes.

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
        # When all ranks are here, only the collective itself can fail.
        self.meet()
        work = None
        try:
            work = dist.all_to_all_single(
                came, going, incoming_bytes, outgoing_bytes, group=self.group, async_op=True
            )
            if work is not None:  # None on ranks that are not in the group
                self._await_end(work)
        except BaseException as error:
            _unfinished.append((work, going, came))
            if isinstance(error, RuntimeError) and not isinstance(error, RankError):
                # If a rank died, the collective fails sooner than the missing beats show it.
                self._await_failure()
            raise
        return list(np.split(came.cpu().numpy(), np.cumsum(incoming_bytes)[:-1]))

    def _await_end(self, work: dist.Work) -> None:
        """Waits for the end of a collective.

        Raises:
            RankError: Another rank has failed.
        """
        for _ in _looks():
            if work.is_completed():
                break
            if self._beats.failure is not None and self._device.type != "cpu":
                # Otherwise the collective would block all later work in the device's queue.
                self.group.abort()
            self.check()
        work.wait()

    def _await_failure(self) -> None:
        """Waits for the failure of another rank to become known. Returns if none does in time.

        Raises:
            RankError: Another rank has failed.
        """
        deadline = time.monotonic() + SILENT_SECONDS + 2 * BEAT_SECONDS
        while time.monotonic() < deadline:
            self._look([_FAILURE])
            time.sleep(BEAT_SECONDS / 5)

    def _await(self, key: str) -> None:
        """Waits until the store has a key.

        Raises:
            RankError: Another rank has failed.
        """
        for _ in _looks():
            if self._look([key]):
                return

    def _await_ranks(self, keys: list[str]) -> None:
        """Waits until each rank has set its key. A rank may have long imports, or its machine may start late.

        Raises:
            TimeoutError: A rank has not set its key within the time-out of the group.
            RankError: Another rank has failed.
        """
        begun, is_told = time.monotonic(), False
        for _ in _looks():
            if self._look(keys):
                return
            waited_seconds = time.monotonic() - begun
            if waited_seconds > self._patience_seconds:
                message = (
                    f"process_group: {self._missing(keys)} did not join the load within "
                    f"{self._patience_seconds:g} s, the time-out of the group; start the load on all ranks"
                )
                raise TimeoutError(message)
            if not is_told and waited_seconds > LATE_SECONDS:
                is_told = True
                _log.warning(
                    "process_group: rank %d waits for %s; start the load on all ranks of the group",
                    self.rank,
                    self._missing(keys),
                )

    def _missing(self, keys: list[str]) -> str:
        missing = self._ask(lambda store: [rank for rank, key in enumerate(keys) if not store.check([key])])
        return f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"

    def _look(self, keys: list[str]) -> bool:
        """Returns whether the store has all keys.

        Raises:
            RankError: The store lacks a key, and another rank has failed.
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
        """Asks the store a question, and returns its answer.

        Raises:
            RankError: The store cannot be reached, or does not answer.
        """
        if self._is_silent:
            raise RankError(None, _silent_store(), is_gone=True)
        answer = self._questions.ask(question)
        # An answer may be slow, because the store serves many ranks. It is silent only if beats get no answer
        # either. The loop counts its turns instead of seconds: this process may have been suspended.
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
    """Signals that this rank is alive, watches the next rank, and looks for failures.

    Attributes:
        prefix: The prefix of all keys of this load.
        number: The number of beats that the store has answered.
        watch: The connection to the next rank, while that rank loads.
        has_watched: Whether this rank has started to connect to another rank, or no other rank is left.
        failure: The rank that failed (None if unknown), the description of the failure, and whether the rank
            is gone. None while no failure is known.
    """

    prefix: str

    def __init__(self, meeting: Meeting, store: Store) -> None:
        super().__init__("pagestream-beats")
        self.number = 0
        self.failure: tuple[int | None, str, bool] | None = None
        self.watch: Watch | None = None
        self.has_watched = False
        self._seen, self._looks = "", 0
        self._rank, self._size, self._group_store = meeting.rank, meeting.size, store
        self._ended, self._turn, self._hearing = threading.Event(), threading.Event(), threading.Lock()

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
        while not self._ended.is_set():
            store.set(f"beat/{self._rank}", f"{self.number} {address}")
            self.hear(store)
            self.number += 1
            if watched == self._rank:
                self.has_watched = True
            elif store.check([f"beat/{watched}"]):
                beat = store.get(f"beat/{watched}").decode()
                if beat == _DONE:
                    watched = (watched + 1) % self._size
                    self._let_go()
                elif told := self._is_gone(beat):
                    _fail(store, watched, told, is_gone=True)
            self._turn.wait(BEAT_SECONDS)
            self._turn.clear()
        self._let_go()
        if self.failure is None:
            store.add(_BEGUN, -1)
        store.set(f"beat/{self._rank}", _DONE)
        # Wait until the store has that beat, because the caller closes the connection to this rank next.
        store.check([_DONE])

    def _is_gone(self, beat: str) -> str | None:
        """Returns a description of the failure if the watched rank has not beaten for too long."""
        # Count looks instead of seconds: this process or the store may have been suspended.
        if beat != self._seen:
            self._seen, self._looks = beat, 0
        if self.watch is None:
            self.watch = Watch(beat.partition(" ")[2])
            self.has_watched = True
        is_cut = self.watch.is_cut()
        silent_seconds = self._looks * BEAT_SECONDS
        self._looks += 1
        if is_cut and silent_seconds > CUT_SECONDS:
            return "its process has ended"
        if silent_seconds > SILENT_SECONDS:
            return f"no sign of life for {SILENT_SECONDS:.0f} s: it is stopped, or its machine is gone"
        return None

    def _let_go(self) -> None:
        """Stops watching a rank."""
        if self.watch is not None:
            self.watch.close()
        self.watch, self._seen = None, ""

    def hear(self, store: Store) -> None:
        """Looks for a failure in the store, and notes there that this rank knows of it."""
        with self._hearing:
            if self.failure is None and store.check([_FAILURE]):
                self.failure = _failure_in(store)
                store.add(_HEARD, 1)

    def hurry(self) -> None:
        """Beats and looks at the watched rank now, without the rest of the pause."""
        self._turn.set()

    def has_ended(self) -> bool:
        """Returns whether this rank is done."""
        return self._ended.is_set()

    def end(self, patience_seconds: float) -> None:
        """Stops, and marks this rank as done. It abandons a thread that still waits for the store."""
        self._ended.set()
        self._turn.set()
        if self.ident is not None:
            self.join(patience_seconds)


@atexit.register
def _leave_all() -> None:
    """Tells the other ranks that this process ends while iterators are still open."""
    for meeting in list(_open):
        # `sys.last_value` is the exception that ends the process, if there is one.
        meeting.__exit__(None, getattr(sys, "last_value", None) or GeneratorExit(), None)


def _looks() -> Iterator[None]:
    """Yields each time a condition should be polled. The pauses in between double, up to a limit."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _told_of(error: BaseException) -> str:
    """Returns the description of an error for the other ranks."""
    if not isinstance(error, GeneratorExit):
        return f"{type(error).__name__}: {error}"
    cause: BaseException | None = error
    while isinstance(cause, GeneratorExit):
        # Each generator closes the next, so several `GeneratorExit`s may hide the exception that caused them.
        cause = cause.__context__
    because = "" if cause is None else f" (it handles {type(cause).__name__}: {cause})"
    return f"it left before the end of the load: its consumer stopped or failed{because}"


def _check(is_valid: bool, problem: str) -> None:  # noqa: FBT001
    if not is_valid:
        raise ValueError(problem)


def _set(store: Store, key: str, value: bytes) -> None:
    store.set(key, value)  # type: ignore[arg-type]  # takes bytes as well


def _get(store: Store, key: str) -> bytes:
    return store.get(key)


def _fail(store: Store, rank: int, told: str, *, is_gone: bool = False) -> None:
    """Tells all ranks of a failure. Only the first failure of a load counts."""
    store.compare_set(_FAILURE, "", json.dumps([rank, told, is_gone]))


def _failure_in(store: Store) -> tuple[int, str, bool]:
    rank, told, is_gone = json.loads(store.get(_FAILURE))
    return rank, told, is_gone


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Returns the device of the memory that a group exchanges: the CPU, if the group supports it."""
    devices = [torch.device(each) for each in group._device_types]  # noqa: SLF001 - torch has no public name
    if not devices or any(each.type == "cpu" for each in devices):
        return torch.device("cpu")
    return group.bound_device_id or torch.device(devices[0].type)


def _timeout_seconds(group: dist.ProcessGroup, device: torch.device, store: Store) -> float:
    """Returns the time-out of a group, which may differ from the time-out of its store."""
    options = getattr(group._get_backend(device), "options", None)  # noqa: SLF001 - torch has no public name
    timeout = getattr(options, "_timeout", None) or store.timeout  # type: ignore[attr-defined]
    return float(timeout.total_seconds())


def _silent_store() -> str:
    return (
        f"the process group's store has not answered for {SILENT_SECONDS:.0f} s: the process that hosts it "
        "(rank 0 or the launcher) is stopped"
    )


def _out_of_reach(error: Exception) -> str:
    return f"the process group's store cannot be reached: {error}"
