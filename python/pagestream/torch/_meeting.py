"""The ranks of a process group while they load together: whether all are there, and what has failed.

```text
  a beat of each rank, in the group's store ──> the rank before it ──(none for SILENT_SECONDS)──┐
  an exception in a rank ───────────────────────────────────────────────────────────────────────┤
                                              RankError in each rank <── the failure, in the store
```

A collective begins once all ranks have come to it and have the memory for it (`Meeting.meet`), and a rank
that waits for its end looks meanwhile whether another has failed: one that is late, stopped or dead lets
none run into the collective's time-out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import threading
import time
import zlib
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from pagestream.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Self, TypeAlias

    from torch.distributed.distributed_c10d import Store

    _Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

BEAT_SECONDS = 0.5
SILENT_SECONDS = 6.0
# The store closes a connection on which 8 MiB come (MAX_PAYLOAD_LEN in torch's TCPStoreLibUvBackend.cpp).
MESSAGE_BYTES = 4 << 20
# For ranks that have not begun: they may have to import much, or to wait for their machine.
ARRIVAL_SECONDS = 1800.0
# Between two looks at the store, which is one process for all ranks.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.0002, 0.01
_FAILURE, _HEARD, _DONE = "failure", "heard", "done"
# Collectives that were left before their end, with their memory, which they may still read and write.
_unfinished: list[object] = []


class Meeting:
    """The ranks of a process group, from the beginning of a load to its end.

    Attributes:
        group: The process group.
        rank: This process's rank in it.
        size: How many ranks it has.
        may_leave: Whether no other rank needs anything of this one.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Joins. The other ranks may come later."""
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            message = "process_group: this process is not in it"
            raise ValueError(message)
        store = dist.distributed_c10d._get_process_group_store(group)  # noqa: SLF001 - torch has no public name
        if not hasattr(store, "clone"):
            message = (
                "process_group needs torch 2.8 or newer, whose stores several threads can ask at a time; "
                f"this is {torch.__version__}"
            )
            raise RuntimeError(message)
        # All ranks begin the same loads in the same order.
        prefix = f"pagestream/{store.add(f'pagestream/loads/{self.rank}', 1)}"
        self._store = PrefixStore(prefix, store.clone())
        self.may_leave = False
        self._rounds = 0
        # What this rank has said, until all have heard it.
        self._said: list[str] = []
        self._device = _device_of(group)
        self._beats = _Beats(self, PrefixStore(prefix, store.clone()))
        self._beats.start()

    def __enter__(self) -> Self:
        """Returns the meeting."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Leaves. If it is by an exception the other ranks raise, too."""
        self._leave(error)

    def __del__(self) -> None:
        """Leaves, if nobody has: an iterator that was never begun."""
        beats = getattr(self, "_beats", None)
        if beats is not None and not beats.has_ended():
            self._leave(GeneratorExit())

    def _leave(self, error: BaseException | None) -> None:
        # Where the store is gone there is nobody to tell.
        with contextlib.suppress(dist.DistError, RuntimeError):
            if isinstance(error, GeneratorExit) and self.may_leave:
                self._arrive()
            elif error is not None:
                if not isinstance(error, RankError) or error.rank is None:
                    is_early = isinstance(error, GeneratorExit)
                    told = "it left before all was loaded" if is_early else f"{type(error).__name__}: {error}"
                    self._beats.fail(self.rank, told)
                self._beats.wait_until_told()
        self._beats.end()

    def gather(self, name: str, payload: str) -> list[str]:
        """Returns what each rank has to say. What many of them say crosses the network once for each rank."""
        packed = zlib.compress(payload.encode())
        digest = f"{name}/{hashlib.sha256(packed).hexdigest()}"
        pieces = [packed[first : first + MESSAGE_BYTES] for first in range(0, len(packed), MESSAGE_BYTES)]
        values = {f"{digest}/{number}": piece for number, piece in enumerate(pieces)}
        values[f"{name}/{self.rank}"] = f"{len(pieces)} {digest}".encode()
        with self._reaching():
            for key, value in values.items():
                self._store.set(key, value)  # type: ignore[arg-type]  # takes bytes as well
        self._said += values
        self._await([f"{name}/{rank}" for rank in range(self.size)], ARRIVAL_SECONDS)
        with self._reaching():
            told = [self._store.get(f"{name}/{rank}").decode() for rank in range(self.size)]
            said = {each: self._heard(each) for each in set(told)}
        return [said[each] for each in told]

    def _heard(self, told: str) -> str:
        """Returns what a rank has said, by the number of its pieces and their name."""
        count, digest = told.split(" ", 1)
        pieces = (self._store.get(f"{digest}/{number}") for number in range(int(count)))
        return zlib.decompress(b"".join(pieces)).decode()

    def meet(self) -> None:
        """Waits until all ranks have come here.

        Raises:
            RankError: One of them has failed.
        """
        with self._reaching():
            self._arrive()
        self._await([f"go/{self._rounds}"])
        # All have heard it: they came here afterwards.
        with self._reaching():
            for key in self._said:
                self._store.delete_key(key)
        self._said.clear()

    def _arrive(self) -> None:
        self._rounds += 1
        if self._store.add(f"round/{self._rounds}", 1) == self.size:
            self._store.set(f"go/{self._rounds}", "")
            # All have come from the one before: nobody looks at it any more.
            self._store.delete_key(f"go/{self._rounds - 1}")
            self._store.delete_key(f"round/{self._rounds - 1}")

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
        going = torch.from_numpy(sent).to(self._device)
        came = torch.empty(sum(incoming_bytes), dtype=torch.uint8, device=self._device)
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
        pause = _FIRST_PAUSE_SECONDS
        while not work.is_completed():
            failure = self._beats.failure
            if failure is not None:
                if self._device.type != "cpu":
                    # What is queued on the device behind the collective would wait with it.
                    self.group.abort()
                raise RankError(*failure)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        work.wait()

    def _await_failure(self) -> None:
        """Raises what has failed in another rank, which may not be known yet."""
        deadline = time.monotonic() + SILENT_SECONDS + 2 * BEAT_SECONDS
        while time.monotonic() < deadline:
            with self._reaching():
                self.check()
            time.sleep(BEAT_SECONDS / 5)

    def _await(self, keys: list[str], patience_seconds: float = math.inf) -> None:
        """Waits until the store has all keys."""
        pause, deadline = _FIRST_PAUSE_SECONDS, time.monotonic() + patience_seconds
        while True:
            with self._reaching():
                if self._store.check(keys):
                    return
                self.check()
                missing = (
                    [key for key in keys if not self._store.check([key])]
                    if time.monotonic() > deadline
                    else []
                )
            if missing:
                message = (
                    f"not all ranks came within {patience_seconds:.0f} s: {', '.join(missing)} are missing"
                )
                raise TimeoutError(message)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def check(self) -> None:
        """Raises what has failed in another rank.

        Raises:
            RankError: One of them has failed.
        """
        if self._store.check([_FAILURE]):
            rank, told, _ = json.loads(self._store.get(_FAILURE))
            raise RankError(rank, told)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (dist.DistError, RuntimeError) as error:
            if isinstance(error, RankError):
                raise
            raise RankError(*(self._beats.failure or (None, _out_of_reach(error)))) from error


class _Beats(threading.Thread):
    """Tells the other ranks that this one is alive, watches the next one, and hears of failures.

    Attributes:
        failure: Which rank has failed, None where that is not known, and what happened there. None as long as
            no failure is known.
    """

    def __init__(self, meeting: Meeting, store: Store) -> None:
        super().__init__(name="pagestream-beats", daemon=True)
        self.failure: tuple[int | None, str] | None = None
        self._rank, self._size, self._store = meeting.rank, meeting.size, store
        self._ended = threading.Event()

    def run(self) -> None:
        """Beats until the end."""
        try:
            self._beat()
        except (dist.DistError, RuntimeError) as error:
            if self.failure is None:
                self.failure = None, _out_of_reach(error)

    def _beat(self) -> None:
        # Looks are counted, not seconds: this rank, or the store, may have stood still.
        number, watched, seen, looks = 0, (self._rank + 1) % self._size, b"", 0
        while not self._ended.wait(BEAT_SECONDS if number else 0):
            number += 1
            self._store.set(f"beat/{self._rank}", str(number))
            self._hear()
            if watched == self._rank or not self._store.check([f"beat/{watched}"]):
                continue
            beat = self._store.get(f"beat/{watched}")
            if beat == _DONE.encode():
                watched, seen = (watched + 1) % self._size, b""
            elif beat != seen:
                seen, looks = beat, 0
            elif (looks := looks + 1) * BEAT_SECONDS > SILENT_SECONDS:
                told = f"no sign of life for {SILENT_SECONDS:.0f} s: it was killed, or is stopped"
                self.fail(watched, told, is_dead=True)
        self._store.set(f"beat/{self._rank}", _DONE)

    def fail(self, rank: int, told: str, *, is_dead: bool = False) -> None:
        """Tells all ranks of a failure, unless there is another one."""
        self._store.compare_set(_FAILURE, "", json.dumps([rank, told, is_dead]))

    def _hear(self) -> None:
        if self.failure is None and self._store.check([_FAILURE]):
            rank, told, _ = json.loads(self._store.get(_FAILURE))
            self.failure = rank, told
            self._store.add(_HEARD, 1)

    def wait_until_told(self) -> None:
        """Waits a while until all living ranks have heard of the failure: with this one the store may end."""
        if not self._store.check([_FAILURE]):
            return
        is_dead = json.loads(self._store.get(_FAILURE))[2]
        deadline = time.monotonic() + 4 * BEAT_SECONDS
        while self._store.add(_HEARD, 0) < self._size - is_dead and time.monotonic() < deadline:
            time.sleep(BEAT_SECONDS / 20)

    def has_ended(self) -> bool:
        """Returns whether this rank is done."""
        return self._ended.is_set()

    def end(self) -> None:
        """Stops, and says that this rank is done."""
        self._ended.set()
        self.join()


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Returns where a group moves memory: in the host's if it can."""
    devices = [torch.device(each) for each in group._device_types]  # noqa: SLF001 - torch has no public name
    if not devices or any(each.type == "cpu" for each in devices):
        return torch.device("cpu")
    return group.bound_device_id or torch.device(devices[0].type)


def _out_of_reach(error: Exception) -> str:
    return f"the process group's store cannot be reached: {error}"
