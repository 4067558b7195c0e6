"""The agreement of ranks on each other's plans. Threads stand for the ranks."""

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pagestream import open_checkpoint
from pagestream.torch._agreement import agreed
from pagestream.torch._exchange import byte_box
from pagestream.torch._shares import Request
from pagestream.weights import arrays, streaming
from pagestream.weights.checkpoint import native_files

SHAPES = {"a": (6, 4), "b": (6, 4), "c": (6, 4), "d": (3,), "e": (), "f": (0, 2)}


class Ranks:
    """Ranks that exchange messages within one process."""

    def __init__(self, size):
        self.size, self._said = size, {}
        self._all_have_spoken = threading.Barrier(size)

    def results(self, work):
        """Returns the result of `work` for each rank, or the error it raises."""

        def result(rank):
            try:
                return work(Member(self, rank))
            except ValueError as error:
                return error

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(result, range(self.size)))

    def said(self, name, rank, payload):
        self._said[name, rank] = payload
        self._all_have_spoken.wait(60)
        return [self._said[name, each] for each in range(self.size)]


class Member:
    def __init__(self, ranks, rank):
        self._ranks, self.rank, self.size = ranks, rank, ranks.size

    def gather(self, name, payload):
        return self._ranks.said(name, self.rank, payload)


def saved(folder, values=lambda name: 0, shapes=SHAPES):
    folder.mkdir()
    for names in ("abc", "def"):
        tensors = {name: np.full(shapes[name], values(name), "f4") for name in names}
        save_file(tensors, folder / f"{names}.safetensors")
    return folder


def agree(folders, plans):
    """Returns each rank's result. Each rank has its own folder and plan, a list of names and indices."""
    opened = [open_checkpoint(folder) for folder in folders]
    framework = arrays.NumpyArrays(raw=False)

    def work(member):
        weights = opened[member.rank]
        wanted = [
            streaming.planned_part(weights.info(name), index, framework) for name, index in plans[member.rank]
        ]
        return agreed(member, native_files(weights), wanted, [byte_box(each) for each in wanted])

    try:
        return Ranks(len(folders)).results(work)
    finally:
        for weights in opened:
            weights.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("agreement") / "model")


PARTS = [None, slice(0, 2), slice(1, 3), slice(2, 2), 1, -1, slice(1, None, 2), slice(None, None, -3)]
plans_of_ranks = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(PARTS))
        | st.tuples(st.sampled_from("ef"), st.none()),
        max_size=7,
    ),
    min_size=1,
    max_size=4,
)


def rising(numbers):
    """Returns evenly spaced numbers as a range that stops right after the last one."""
    first, last = (numbers[0], numbers[-1]) if numbers else (0, -1)
    found = next(each for step in range(1, 10) if [*(each := range(first, last + 1, step))] == numbers)
    assert list(found) == numbers
    return found


@settings(max_examples=60)
@given(plans_of_ranks)
def test_each_rank_finds_what_all_want_in_the_order_of_their_plans(folder, plans):
    numbers, requests, own = {}, {}, []
    for rank, plan in enumerate(plans):
        own.append([])
        for name, index in plan:
            number = numbers.setdefault(name, len(numbers))
            lengths = [*SHAPES[name][:-1], 4 * SHAPES[name][-1]] if SHAPES[name] else [4]
            box = [range(length) for length in lengths]
            if index is not None:
                chosen = sorted(np.atleast_1d(np.arange(SHAPES[name][0])[index]).tolist())
                box[0] = rising(chosen)
                if len(lengths) == 1:
                    # A range of bytes includes the bytes between elements.
                    box[0] = range(4 * chosen[0], 4 * chosen[-1] + 4) if chosen else range(0)
            of_tensor = requests.setdefault(number, (tuple(lengths), []))[1]
            own[rank].append((number, len(of_tensor)))
            of_tensor.append(Request(rank, tuple(box)))
    for found, expected in zip(agree([folder] * len(plans), plans), own, strict=True):
        assert found.own == expected
        assert len(found.kind_of) == len(numbers)
        assert len(set(found.kinds)) == len(found.kinds)
        for number, kind in enumerate(found.kind_of):
            assert found.kinds[kind].shape == requests[number][0]
            assert list(found.kinds[kind].requests) == requests[number][1]


def test_layers_with_the_same_requests_are_of_one_kind(folder):
    found = agree([folder] * 2, [[(name, slice(rank, rank + 1)) for name in "abcd"] for rank in range(2)])
    assert [each.kind_of for each in found] == [[0, 0, 0, 1]] * 2


@pytest.mark.parametrize(
    ("shapes", "told"),
    [({**SHAPES, "c": (4, 6)}, "F32 of 4 x 24 bytes, theirs is F32 of 6 x 16 bytes"), (None, "F64")],
)
def test_another_type_or_shape_is_another_checkpoint(tmp_path, folder, shapes, told):
    if shapes is None:
        (tmp_path / "other").mkdir()
        save_file({"c": np.zeros((6, 4))}, tmp_path / "other/model.safetensors")
    else:
        saved(tmp_path / "other", shapes=shapes)
    errors = agree([folder, folder, tmp_path / "other"], [[("a", None)], [("c", None)], [("c", None)]])
    for error in errors:
        assert isinstance(error, ValueError)
        assert "rank 2 has a different checkpoint than the ranks before it: its 'c' is " in str(error)
        assert told in str(error)


def test_copies_are_one_checkpoint_and_other_bytes_are_named(tmp_path, folder):
    copy = saved(tmp_path / "copy")
    other = saved(tmp_path / "other", lambda name: name == "b")
    plan = [(name, None) for name in "abcdef"]
    assert [each.kind_of for each in agree([folder, copy], [plan, plan])] == [[0, 0, 0, 1, 2, 3]] * 2
    for error in agree([folder, copy, other], [plan] * 3):
        assert str(error) == "ranks 0 and 2 have different checkpoints: 'b' has different bytes"
    # Tensors that only one rank wants may differ.
    apart = agree([folder, copy, other], [plan[:1], plan[:1], plan[1:]])
    assert [each.own for each in apart] == [[(0, 0)], [(0, 1)], [(number, 0) for number in range(1, 6)]]


@pytest.mark.parametrize(("changed", "is_seen"), [(slice(9_998, 9_999), True), (slice(0, 7_000), False)])
def test_bytes_in_the_middle_of_a_tensor_are_compared(tmp_path, changed, is_seen):
    for number in range(2):
        tensor = np.zeros(20_000, "u1")
        tensor[changed] = number
        (tmp_path / str(number)).mkdir()
        save_file({"a": tensor}, tmp_path / str(number) / "model.safetensors")
        os.utime(tmp_path / str(number) / "model.safetensors", ns=(number, number))
    found = agree([tmp_path / "0", tmp_path / "1"], [[("a", None)]] * 2)
    assert [isinstance(each, ValueError) for each in found] == [is_seen] * 2


def test_one_file_of_several_that_differs_is_found(tmp_path, folder):
    other = saved(tmp_path / "other", lambda name: name == "d")
    shutil.copy2(folder / "abc.safetensors", other)
    plan = [(name, None) for name in "abcdef"]
    for error in agree([folder, other], [plan, plan]):
        assert str(error) == "ranks 0 and 1 have different checkpoints: 'd' has different bytes"


def test_all_ranks_send_the_same_payload(folder):
    """Identical payloads cross the network once, whichever parts of the tensors each rank wants."""
    said = []

    class Listening(Ranks):
        def said(self, name, rank, payload):
            said.append((name, payload))
            return super().said(name, rank, payload)

    weights = open_checkpoint(folder)
    framework = arrays.NumpyArrays(raw=False)

    def work(member):
        index = slice(member.rank, member.rank + 1)
        wanted = [streaming.planned_part(weights.info(name), index, framework) for name in "abc"]
        return agreed(member, native_files(weights), wanted, [byte_box(each) for each in wanted])

    Listening(3).results(work)
    assert len({payload for name, payload in said if name == "tensors"}) == 1
    boxes = [json.loads(payload)["boxes"] for name, payload in said if name == "wants"]
    assert sorted(boxes) == [[[[rank, rank + 1, 1], [0, 16, 1]]] for rank in range(3)]
    weights.close()
