"""The division of a checkpoint among the ranks that load it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagestream.torch import _shares
from pagestream.torch._shares import Request, SharedTensor, rounds, shared, volume, within

MIB = 1 << 20


def whole(shape):
    return tuple((0, length) for length in shape)


@st.composite
def shared_tensors(draw):
    ranks = draw(st.integers(1, 5))
    tensors = []
    for _ in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
        requests = []
        for rank in draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=6)):
            bounds = [
                sorted(draw(st.lists(st.integers(0, length), min_size=2, max_size=2))) for length in shape
            ]
            box = tuple((start, end) for start, end in bounds)
            requests.append(Request(rank, box))
        tensors.append(SharedTensor(shape, tuple(requests)))
    return tensors, ranks


@settings(deadline=None)
@given(shared_tensors(), st.integers(1, 40), st.integers(1, 200))
def test_each_request_gets_each_of_its_bytes_once(given_tensors, piece_bytes, round_bytes):
    tensors, ranks = given_tensors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shares, "PIECE_BYTES", piece_bytes)
        pieces = shared(tensors, ranks)
    got = [[np.zeros(tensor.shape, int) for _ in tensor.requests] for tensor in tensors]
    for piece in pieces:
        requests = tensors[piece.tensor].requests
        assert volume(piece.box) <= max(piece_bytes, 1)
        assert piece.reader in {requests[number].rank for number, _ in piece.parts}
        for number, part in piece.parts:
            within(part, piece.box)
            assert all(a <= start < end <= b for (start, end), (a, b) in zip(part, piece.box, strict=True))
            got[piece.tensor][number][tuple(slice(*bounds) for bounds in part)] += 1
    for tensor, arrays in zip(tensors, got, strict=True):
        for request, array in zip(tensor.requests, arrays, strict=True):
            expected = np.zeros(tensor.shape, int)
            expected[tuple(slice(*bounds) for bounds in request.box)] = 1
            assert np.array_equal(array, expected)
    lots = list(rounds(pieces, tensors, round_bytes))
    assert list(itertools.chain(*lots)) == pieces
    for lot in lots:
        # One piece may always begin.
        assert max(held(lot, tensors, ranks)) <= max(round_bytes, *held(lot[:1], tensors, ranks))


def held(lot, tensors, ranks):
    """Bytes that each rank reads, sends or gets in a round."""
    found = [0] * ranks
    for piece in lot:
        found[piece.reader] += volume(piece.box)
        for number, part in piece.parts:
            rank = tensors[piece.tensor].requests[number].rank
            if rank != piece.reader:
                found[rank] += volume(part)
                found[piece.reader] += volume(part)
    return found


def read_bytes(pieces, ranks):
    return [sum(volume(piece.box) for piece in pieces if piece.reader == rank) for rank in range(ranks)]


def test_what_all_want_is_read_once_in_equal_shares():
    shape = (4096, 8192)
    tensors = [SharedTensor(shape, tuple(Request(rank, whole(shape)) for rank in range(4)))] * 8
    assert read_bytes(shared(tensors, 4), 4) == [8 * math.prod(shape) // 4] * 4


def test_rows_are_read_by_the_rank_that_wants_them():
    shape = (4096, 8192)
    boxes = [((rank * 1024, (rank + 1) * 1024), (0, 8192)) for rank in range(4)]
    tensors = [SharedTensor(shape, tuple(Request(rank, box) for rank, box in enumerate(boxes)))]
    pieces = shared(tensors, 4)
    assert read_bytes(pieces, 4) == [math.prod(shape) // 4] * 4
    assert all(len(piece.parts) == 1 for piece in pieces)


@pytest.mark.parametrize(("row_bytes", "is_swapped"), [(8192, True), (4 * 64 << 10, False)])
def test_columns_are_sent_where_they_are_short(row_bytes, is_swapped):
    shape = (512, row_bytes)
    boxes = [((0, 512), (rank * row_bytes // 4, (rank + 1) * row_bytes // 4)) for rank in range(4)]
    tensors = [SharedTensor(shape, tuple(Request(rank, box) for rank, box in enumerate(boxes)))] * 4
    pieces = shared(tensors, 4)
    assert sum(read_bytes(pieces, 4)) == 4 * math.prod(shape)
    assert all((len(piece.parts) == 4) == is_swapped for piece in pieces)
    assert all((piece.box[1] == (0, row_bytes)) == is_swapped for piece in pieces)


def test_what_lies_between_columns_that_are_far_apart_is_not_read():
    shape = (512, 8192)
    requests = (Request(0, ((0, 512), (0, 64))), Request(1, ((0, 512), (8128, 8192))))
    assert sum(read_bytes(shared([SharedTensor(shape, requests)], 2), 2)) == 2 * 512 * 64


def test_what_two_want_of_long_rows_is_read_once():
    shape = (16, 4 * MIB)
    requests = (Request(0, ((0, 16), (0, 3 * MIB))), Request(1, ((0, 16), (MIB, 4 * MIB))))
    assert sum(read_bytes(shared([SharedTensor(shape, requests)], 2), 2)) == math.prod(shape)


def test_other_columns_of_other_rows_are_read_alone():
    shape = (512, 8192)
    requests = (Request(0, ((0, 256), (0, 4096))), Request(1, ((256, 512), (4096, 8192))))
    assert read_bytes(shared([SharedTensor(shape, requests)], 2), 2) == [256 * 4096] * 2


def test_a_large_tensor_is_cut_whatever_its_first_dimension():
    shape = (1, 64, MIB)
    tensors = [SharedTensor(shape, (Request(0, whole(shape)), Request(1, whole(shape))))]
    pieces = shared(tensors, 2)
    assert all(volume(piece.box) <= _shares.PIECE_BYTES for piece in pieces)
    assert read_bytes(pieces, 2) == [32 * MIB] * 2
