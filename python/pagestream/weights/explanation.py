"""The text of `Checkpoint.explain`: how a stream would read a plan, and why."""

from __future__ import annotations

import heapq
import random
import time
from contextlib import closing
from typing import TYPE_CHECKING

from pagestream import _native
from pagestream._common import ranks
from pagestream._common.amounts import count, size
from pagestream.weights import streaming
from pagestream.weights.indexing import ByteSelection

if TYPE_CHECKING:
    from pagestream.weights.streaming import Strategy, Wanted

# The default size limit of one FUSE request.
_REQUEST_BYTES = 128 << 10
_SIDE_BY_SIDE = 16
# Maximum number of tensors in which requests are timed, starting with the largest.
_TIMED_TENSORS = 64
# With fewer places, random reads would lie too close together.
_LEAST_PLACES = 4 * _SIDE_BY_SIDE

# Lines about a FUSE mount with a page cache, without and with PAGESTREAM_SHARE=on.
_SHARING = {
    False: "each opening of a file drops its cached pages, unless the daemon keeps them; "
    "with PAGESTREAM_SHARE=on, processes of this user share open files and keep the pages",
    True: "open files are shared with processes of this user (PAGESTREAM_SHARE=on)",
}


def explained(files: _native.Checkpoint, wanted: list[Wanted]) -> str:
    """Returns facts about a plan's files, the time of some reads, and the decision of `streaming.chosen`."""
    strategy, reason = streaming.chosen(files, wanted, "auto")
    in_file: dict[str, list[Wanted]] = {}
    for each in wanted:
        in_file.setdefault(each.info.path, []).append(each)
    total_bytes = sum(each.nbytes for each in wanted)
    lines = [f"{count(len(wanted), 'tensor')} of {size(total_bytes)} in {count(len(in_file), 'file')}"]
    mounts: dict[tuple[str, ...], list[list[Wanted]]] = {}
    for tensors in in_file.values():
        facts = _mount(files.file_of(tensors[0].info.name, reads_ahead=False))
        mounts.setdefault(facts, []).append(tensors)
    for facts, of_files in mounts.items():
        lines += [f"{count(len(of_files), 'file')} on {facts[0]}", *(f"  {fact}" for fact in facts[1:])]
        if strategy != "mapped":
            lines += [f"  {line}" for line in _trial(files, [each for of in of_files for each in of])]
    lines += [
        f"available memory: {size(_native.available_memory_bytes())}",
        f"processes of this job on this node: {ranks.local_processes()}",
        f'stream(strategy="auto") takes "{strategy}": {reason}',
    ]
    return "\n".join(lines)


def _pages(file: _native.WeightFile) -> tuple[str, ...]:
    """Returns a line about the pages under arrays, or no line if arrays are not views of the file."""
    if file.mode == "read":
        return ()
    reason = file.read_only_pages_reason()
    if reason is None:
        return ("arrays lie on copy-on-write pages",)
    return (
        f"arrays lie on read-only pages ({reason}): a write to them, for example by torch, kills the process",
    )


def _mount(file: _native.WeightFile) -> tuple[str, ...]:
    """Returns lines about a file's mount and mode. Equal lines group the files of one mount."""
    system = file.file_system
    window = system["read_ahead_bytes"]
    through = {
        None: "reads may come out of the page cache: unknown, because the mode was requested",
        True: "reads come out of the page cache, which all processes share",
        False: "reads bypass the page cache: each process reads for itself",
    }
    sharing: tuple[str, ...] = ()
    if file.reads_from_cache and system["type"].startswith("fuse"):
        sharing = (_SHARING[_native.is_sharing()],)
    return (
        f"{system['mount_point']} ({system['type']}, {system['source']}; {system['options']})",
        f"mode: {file.mode}" + (f", because {file.reason}" if file.reason else ""),
        through[file.reads_from_cache],
        *_pages(file),
        *sharing,
        "the kernel's read-ahead: " + ("unknown" if window is None else size(window)),
    )


def _trial(files: _native.Checkpoint, tensors: list[Wanted]) -> list[str]:
    """Times a single read, then several in parallel, at random places of the largest tensors."""
    drawn = random.Random()  # noqa: S311 - leaves the caller's random numbers alone
    places: list[tuple[str, int]] = []
    for each in heapq.nlargest(_TIMED_TENSORS, tensors, key=lambda each: each.info.nbytes):
        inside = range(each.info.nbytes // _REQUEST_BYTES)
        picked = drawn.sample(inside, min(len(inside), _LEAST_PLACES))
        places += [(each.info.name, place) for place in picked]
    if len(places) < _LEAST_PLACES:
        return ["the tensors are too small to time requests"]
    first, *others = drawn.sample(places, 1 + 2 * _SIDE_BY_SIDE)
    timed_files = [files.file_of(name, reads_ahead=False) for name in {name for name, _ in others}]
    holds_pages = any(file.holds_pages() for file in timed_files)
    lines = [_timed(files, [first], "pread"), _timed(files, others[::2], "pread")]
    if holds_pages:
        return [
            *lines,
            "direct I/O: not tried, because part of the file is in the page cache, and FUSE would drop it",
        ]
    past_cache = _timed(files, others[1::2], "direct")
    refusal = next(filter(None, (file.direct_refusal() for file in timed_files)), None)
    return [*lines, f"direct I/O: refused ({refusal})" if refusal else past_cache]


def _timed(files: _native.Checkpoint, places: list[tuple[str, int]], strategy: Strategy) -> str:
    wanted: list[tuple[str, ByteSelection | None]] = [
        (name, ByteSelection(place * _REQUEST_BYTES, (_REQUEST_BYTES,), (1,), 1)) for name, place in places
    ]
    begin = time.perf_counter()
    with closing(
        _native.TensorStream(files, wanted, None, len(places), None, streaming.cache_use(strategy))
    ) as stream:
        while stream.next() is not None:
            pass
        seconds = time.perf_counter() - begin
    rate = size(int(len(places) * _REQUEST_BYTES / seconds))
    what = f"{count(len(places), 'read')} of {size(_REQUEST_BYTES)}" + (
        " side by side" if len(places) > 1 else ""
    )
    what += " past the page cache" if strategy == "direct" else ""
    return f"{what}: {seconds * 1e3:.2f} ms, {rate} a second"
