"""The division of a checkpoint among the ranks that load it together."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagestream.torch import _shares
from pagestream.torch._shares import Request, SharedTensor, rounds, shared, split, volume, within

MIB = 1 << 20
ROUND_BYTES = 256 * MIB


def divided(tensors, ranks, round_bytes=ROUND_BYTES):
    """Returns the pieces of all ranks, after a check that the ranks agree on their shared pieces."""
    of_ranks = [shared(tensors, range(len(tensors)), rank, ranks, round_bytes) for rank in range(ranks)]
    facts = [
        [(each.tensor, each.reader, each.cut.box) for each in pieces if each.is_shared] for pieces in of_ranks
    ]
    assert all(each == facts[0] for each in facts)
    for rank, pieces in enumerate(of_ranks):
        assert all(
            piece.is_shared or piece.cut.takers.tolist() == [piece.reader] == [rank] for piece in pieces
        )
    return of_ranks[0] + [piece for pieces in of_ranks[1:] for piece in pieces if not piece.is_shared]


def whole(shape):
    return tuple(map(range, shape))


@st.composite
def places(draw, length):
    """Draws some positions along a dimension, as a range that stops right after the last one."""
    start, stop = sorted(draw(st.lists(st.integers(0, length), min_size=2, max_size=2)))
    found = range(start, stop, draw(st.sampled_from([1, 1, 2, 3, 7])))
    return range(start, found[-1] + 1, found.step) if found else range(0)


def index(box):
    return np.ix_(*box)


@st.composite
def shared_tensors(draw):
    ranks = draw(st.integers(1, 5))
    tensors = []
    for _ in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
        requests = tuple(
            Request(rank, tuple(draw(places(length)) for length in shape))
            for rank in draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=6))
        )
        tensors.append(SharedTensor(shape, requests))
    return tensors, ranks


@given(shared_tensors(), st.integers(1, 40), st.integers(1, 200))
def test_each_request_gets_each_of_its_bytes_once(given_tensors, piece_bytes, round_bytes):
    tensors, ranks = given_tensors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shares, "PIECE_BYTES", piece_bytes)
        patch.setattr(_shares, "SMALL_PIECE_BYTES", min(piece_bytes, 5))
        pieces = divided(tensors, ranks, round_bytes)
    got = [[np.zeros(tensor.shape, int) for _ in tensor.requests] for tensor in tensors]
    for piece in pieces:
        requests = tensors[piece.tensor].requests
        assert volume(piece.cut.box) <= max(piece_bytes, 1)
        assert piece.reader in piece.cut.parts_of
        got_bytes = [
            sum(volume(part) for _, part in piece.cut.parts_of.get(rank, ())) for rank in range(ranks)
        ]
        assert piece.cut.wanted_bytes.tolist() == got_bytes
        for rank, number, part in flat(piece):
            assert requests[number].rank == rank
            numbers = np.arange(math.prod(tensors[piece.tensor].shape)).reshape(tensors[piece.tensor].shape)
            found = numbers[index(piece.cut.box)][within(part, piece.cut.box)]
            assert np.array_equal(found, numbers[index(part)])
            got[piece.tensor][number][index(part)] += 1
    for tensor, arrays in zip(tensors, got, strict=True):
        for request, array in zip(tensor.requests, arrays, strict=True):
            expected = np.zeros(tensor.shape, int)
            expected[index(request.box)] = 1
            assert np.array_equal(array, expected)
    pieces = shared(tensors, range(len(tensors)), 0, ranks, round_bytes)
    lots = rounds(pieces, ranks, round_bytes)
    assert len(lots) == 1 or all(lot.shared for lot in lots)
    assert [piece for lot in lots for piece in lot.shared] == [piece for piece in pieces if piece.is_shared]
    assert [piece for lot in lots for piece in lot.alone] == [
        piece for piece in pieces if not piece.is_shared
    ]
    for lot, behind in itertools.zip_longest(lots, lots[1:]):
        if lot.shared:
            # Even a piece that exceeds the limit is allowed as the first of its round.
            assert max(held(lot.shared, ranks)) <= max(round_bytes, *held(lot.shared[:1], ranks))
        if behind is not None:
            assert max(held([*lot.shared, behind.shared[0]], ranks)) > round_bytes
            assert all(piece.tensor <= behind.shared[0].tensor for piece in lot.alone)


def flat(piece):
    return [(rank, number, part) for rank, parts in piece.cut.parts_of.items() for number, part in parts]


def held(lot, ranks):
    """Returns the bytes that each rank reads, sends or receives in a round."""
    found = [0] * ranks
    for piece in lot:
        found[piece.reader] += volume(piece.cut.box)
        for rank, _, part in flat(piece):
            if rank != piece.reader:
                found[rank] += volume(part)
                found[piece.reader] += volume(part)
    return found


def read_bytes(pieces, ranks):
    return [sum(volume(piece.cut.box) for piece in pieces if piece.reader == rank) for rank in range(ranks)]


def test_bytes_that_all_want_are_read_once_in_equal_shares():
    shape = (4096, 8192)
    tensors = [SharedTensor(shape, tuple(Request(rank, whole(shape)) for rank in range(4)))] * 8
    assert read_bytes(divided(tensors, 4), 4) == [8 * math.prod(shape) // 4] * 4


def test_rows_are_read_by_the_rank_that_wants_them():
    shape = (4096, 8192)
    boxes = [(range(rank * 1024, (rank + 1) * 1024), range(8192)) for rank in range(4)]
    tensors = [SharedTensor(shape, tuple(Request(rank, box) for rank, box in enumerate(boxes)))]
    pieces = divided(tensors, 4)
    assert read_bytes(pieces, 4) == [math.prod(shape) // 4] * 4
    assert all(len(piece.cut.parts_of) == 1 for piece in pieces)


@pytest.mark.parametrize(("row_bytes", "is_swapped"), [(8192, True), (4 * 64 << 10, False)])
def test_columns_are_sent_where_they_are_short(row_bytes, is_swapped):
    shape = (512, row_bytes)
    boxes = [(range(512), range(rank * row_bytes // 4, (rank + 1) * row_bytes // 4)) for rank in range(4)]
    tensors = [SharedTensor(shape, tuple(Request(rank, box) for rank, box in enumerate(boxes)))] * 4
    pieces = divided(tensors, 4)
    assert sum(read_bytes(pieces, 4)) == 4 * math.prod(shape)
    assert all((len(piece.cut.parts_of) == 4) == is_swapped for piece in pieces)
    assert all((piece.cut.box[1] == range(row_bytes)) == is_swapped for piece in pieces)


def test_gaps_between_distant_columns_are_not_read():
    shape = (16, MIB)
    requests = (Request(0, (range(16), range(64))), Request(1, (range(16), range(MIB - 64, MIB))))
    assert read_bytes(divided([SharedTensor(shape, requests)], 2), 2) == [16 * 64] * 2


@given(shared_tensors())
def test_split_tensors_keep_the_bytes_of_each_request(given_tensors):
    for tensor in given_tensors[0]:
        found = split(tensor)
        numbers = np.arange(math.prod(tensor.shape))
        for request, wanted in zip(found.requests, tensor.requests, strict=True):
            assert request.rank == wanted.rank
            part = numbers.reshape(found.shape)[index(request.box)]
            assert np.array_equal(part.ravel(), numbers.reshape(tensor.shape)[index(wanted.box)].ravel())


def test_steps_that_all_share_are_a_dimension():
    requests = (Request(0, (range(1, 12, 4), range(8))), Request(1, (range(2, 3), range(8))))
    assert split(SharedTensor((12, 8), requests)) == SharedTensor(
        (3, 4, 8),
        (
            Request(0, (range(3), range(1, 2), range(8))),
            Request(1, (range(1), range(2, 3), range(8))),
        ),
    )
    # If the last turn is incomplete or steps differ, the split uses a common divisor.
    assert split(SharedTensor((14, 8), requests)) == SharedTensor(
        (7, 2, 8),
        (
            Request(0, (range(0, 5, 2), range(1, 2), range(8))),
            Request(1, (range(1, 2), range(1), range(8))),
        ),
    )
    assert split(SharedTensor((13, 8), requests)) == SharedTensor((13, 8), requests)
    others = (requests[0], Request(1, (range(0, 12, 3), range(8))))
    assert split(SharedTensor((12, 8), others)) == SharedTensor((12, 8), others)


def in_turn(step, shape, ranks=4):
    return tuple(Request(rank, (range(rank, shape[0], step), range(shape[1]))) for rank in range(ranks))


def columns(bounds, shape):
    return tuple(Request(rank, (range(shape[0]), range(*each))) for rank, each in enumerate(bounds))


KIB = 1 << 10
# Each case has a shape, the requests of the ranks, and the limit on the bytes that all ranks read together.
PARTS = {
    "rows in turn": ((4096, KIB), in_turn(4, (4096, KIB)), 4 * MIB),
    "rows of a part of the ranks": ((4096, KIB), in_turn(8, (4096, KIB)), 2 * MIB),
    "rows of which few are wanted": ((4096, KIB), in_turn(64, (4096, KIB)), MIB // 4),
    "rows in turn, the last turn is not whole": ((4093, KIB), in_turn(8, (4093, KIB)), 4093 * KIB),
    "long rows in turn": ((64, 128 * KIB), in_turn(4, (64, 128 * KIB)), 8 * MIB),
    "steps that differ": (
        (4096, 4 * KIB),
        tuple(Request(rank, (range(0, 4096, step), range(4 * KIB))) for rank, step in enumerate((4, 6, 10))),
        16 * MIB,
    ),
    "steps that are multiples of others": (
        (512, 64 * KIB),
        tuple(
            Request(rank, (range(0, 512, step), range(64 * KIB))) for rank, step in enumerate((2, 4, 8, 6))
        ),
        16 * MIB,
    ),
    "rows in several steps, some of all, and columns of all": (
        (120, 64 * KIB),
        (
            Request(0, (range(120), range(56 * KIB, 57 * KIB))),
            Request(1, (range(1, 120, 2), range(64 * KIB))),
            Request(2, (range(3, 118, 6), range(64 * KIB))),
            Request(3, (range(23, 27), range(64 * KIB))),
        ),
        120 * 64 * KIB,
    ),
    "boxes that overlap by halves": (
        (512, 64 * KIB),
        columns([(r * 16 * KIB, (r + 2) * 16 * KIB) for r in range(3)], (512, 0)),
        32 * MIB,
    ),
    "a mesh with steps": (
        (1024, 2 * KIB),
        tuple(
            Request(
                2 * row + column,
                (range(512 * row, 512 * row + 512, 2), range(KIB * column, KIB * column + KIB)),
            )
            for row in range(2)
            for column in range(2)
        ),
        MIB,
    ),
    "columns with gaps": (
        (512, 16 * KIB),
        columns([(r * 4096, r * 4096 + 2048) for r in range(4)], (512, 0)),
        7 * MIB,
    ),
    "columns and a far one": (
        (512, 16 * KIB),
        columns([(0, 4096), (0, 4160), (0, 4224), (16 * KIB - 64, 16 * KIB)], (512, 0)),
        8 * MIB,
    ),
    "columns and a far one, in long rows": (
        (512, 512 * KIB),
        columns([(0, 4096), (0, 4160), (0, 4224), (512 * KIB - 64, 512 * KIB)], (512, 0)),
        512 * (4224 + 64),
    ),
    "columns that overlap, of every eighth row": (
        (4096, 4 * KIB),
        tuple(Request(rank, (range(0, 4096, 8), range(rank, 4 * KIB))) for rank in range(4)),
        2 * MIB,
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_little_more_than_the_wanted_bytes_is_read(name):
    """A single rank reads short gaps along with the data, and no two ranks read the same byte."""
    shape, requests, most_bytes = PARTS[name]
    ranks = len(requests)
    pieces = divided([split(SharedTensor(shape, requests))], ranks)
    assert sum(read_bytes(pieces, ranks)) <= most_bytes
    read_by = np.zeros(shape, np.uint8).reshape(split(SharedTensor(shape, requests)).shape)
    for piece in pieces:
        read_by[index(piece.cut.box)] += 1
    assert read_by.max() == 1


def test_rows_in_turn_are_read_in_one_go_if_the_last_turn_is_incomplete():
    shape = (4093, KIB)
    assert len(divided([split(SharedTensor(shape, in_turn(8, shape)))], 4)) == 1


@pytest.mark.parametrize(("row_bytes", "is_swapped"), [(8192, True), (64 << 10, False)])
def test_rows_in_turn_are_sent_where_they_are_short(row_bytes, is_swapped):
    """A long row alone takes the storage no longer than a row with its neighbours."""
    tensor = split(SharedTensor((4096, row_bytes), in_turn(4, (4096, row_bytes))))
    pieces = divided([tensor], 4)
    assert read_bytes(pieces, 4) == [1024 * row_bytes] * 4
    assert all((len(piece.cut.parts_of) == 4) == is_swapped for piece in pieces)
    sent = sum(volume(part) for piece in pieces for rank, _, part in flat(piece) if rank != piece.reader)
    assert sent == (3 * 1024 * row_bytes if is_swapped else 0)


def test_bytes_of_long_rows_that_two_want_are_read_once():
    shape = (16, 4 * MIB)
    requests = (Request(0, (range(16), range(3 * MIB))), Request(1, (range(16), range(MIB, 4 * MIB))))
    assert sum(read_bytes(divided([SharedTensor(shape, requests)], 2), 2)) == math.prod(shape)


def test_other_columns_of_other_rows_are_read_alone():
    shape = (512, 8192)
    requests = (Request(0, (range(256), range(4096))), Request(1, (range(256, 512), range(4096, 8192))))
    assert read_bytes(divided([SharedTensor(shape, requests)], 2), 2) == [256 * 4096] * 2


def test_a_large_tensor_is_cut_whatever_its_first_dimension():
    shape = (1, 64, MIB)
    tensors = [SharedTensor(shape, (Request(0, whole(shape)), Request(1, whole(shape))))]
    pieces = divided(tensors, 2)
    assert all(volume(piece.cut.box) <= _shares.PIECE_BYTES for piece in pieces)
    assert read_bytes(pieces, 2) == [32 * MIB] * 2


def test_many_ranks_that_want_the_same_read_in_the_same_round():
    """A rank that sends a piece holds one copy for each of the other ranks."""
    shape, ranks = (8192, 32768), 64
    tensors = [SharedTensor(shape, tuple(Request(rank, whole(shape)) for rank in range(ranks)))]
    lots = rounds(divided(tensors, ranks), ranks, ROUND_BYTES)
    readers = [{piece.reader for piece in lot.shared} for lot in lots]
    assert all(len(them) == ranks for them in readers[:-1])


def test_tensors_of_one_kind_are_divided_once():
    shape = (64, 1024)
    kind = SharedTensor(shape, tuple(Request(rank, whole(shape)) for rank in range(4)))
    pieces = shared([kind], [0, 0], 2, 4, ROUND_BYTES)
    assert pieces[0].cut is pieces[1].cut
    assert [piece.tensor for piece in pieces] == [0, 1]
    assert [piece.reader for piece in pieces] == [0, 1]


def test_a_rank_that_reads_much_for_itself_reads_less_for_others():
    shape = (64, 1024)
    own = SharedTensor(shape, (Request(0, whole(shape)),))
    everyones = SharedTensor(shape, (Request(0, whole(shape)), Request(1, whole(shape))))
    pieces = divided([own, own, *[everyones] * 4], 2)
    assert read_bytes(pieces, 2) == [3 * 64 * 1024] * 2
