"""Written pages are freed when their tensor is dropped."""

import os
import random
import threading

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from pagestream import open_checkpoint
from pagestream.safetensors import safe_open
from pagestream.safetensors.torch import load_file
from pagestream.torch import stream_checkpoint

from support.mappings import place_in_file, written_bytes_of

MIB = 1 << 20
LARGE = 8 * MIB
PAGE = os.sysconf("SC_PAGE_SIZE")
# No large tensor begins or ends on a page boundary. Each shares the page at its edge with a small tensor.
SIZES = {
    "a": LARGE + 1000,
    "b": 77,
    "c": 2 * LARGE + 5,
    "d": 3,
    "e": LARGE,
    "f": LARGE - 1,
    "g": LARGE + PAGE,
}
SIZES_LARGE = [name for name, size in SIZES.items() if size >= LARGE]


@pytest.fixture(scope="module")
def contents():
    random_numbers = np.random.default_rng(0)
    return {name: random_numbers.integers(0, 100, size, dtype="u1") for name, size in SIZES.items()}


@pytest.fixture
def path(tmp_path, contents):
    path = tmp_path / "model.safetensors"
    save_file(contents, path)
    return path


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_a_conversion_tensor_by_tensor_needs_memory_for_one(path, contents, framework):
    with safe_open(path, framework) as file:
        for name, size in SIZES.items():
            tensor = file.get_tensor(name)
            tensor += 1
            assert np.array_equal(np.asarray(tensor), contents[name] + 1)
            assert written_bytes_of(path) <= size + LARGE - 1 + 8 * PAGE  # f is small, and its pages stay
            del tensor
        assert written_bytes_of(path) <= LARGE - 1 + 8 * PAGE


def test_a_conversion_that_empties_its_dict_needs_memory_for_one(path, contents):
    tensors = load_file(path)
    for name in SIZES_LARGE:
        tensors[name] += 1
    held = written_bytes_of(path)
    assert held >= sum(map(SIZES.get, SIZES_LARGE))
    for name in SIZES_LARGE:
        part = tensors.pop(name)[LARGE // 2 :]
        assert torch.equal(part, torch.from_numpy(contents[name][LARGE // 2 :] + 1))
        assert held - written_bytes_of(path) <= 2 * PAGE  # the part is still in use
        del part
        assert written_bytes_of(path) <= held - SIZES[name] + 2 * PAGE
        held = written_bytes_of(path)


def test_a_tensor_of_a_stream_gives_its_pages_back(path, contents):
    for name, tensor in stream_checkpoint(path, device="cpu"):
        tensor.add_(1)
        assert torch.equal(tensor, torch.from_numpy(contents[name] + 1))
        assert written_bytes_of(path) <= tensor.nbytes + LARGE - 1 + 8 * PAGE
    del tensor
    assert written_bytes_of(path) <= LARGE - 1 + 8 * PAGE


def test_nothing_is_mixed_where_few_pages_and_the_edges_were_written(path, contents):
    """The second sample of the page table finds one of these pages."""
    with safe_open(path, "np") as file:
        neighbours = {name: file.get_tensor(name) for name in SIZES if name not in SIZES_LARGE}
        for array in neighbours.values():
            array[:] += 1
        for name in SIZES_LARGE:
            array = file.get_tensor(name)
            array[[0, 3 * PAGE, 5 * PAGE, -1]] = 200
            array[2 * MIB : 2 * MIB + 2 * PAGE] = 201
            del array
            assert np.array_equal(file.get_tensor(name), contents[name])
        for name, array in neighbours.items():
            assert np.array_equal(array, contents[name] + 1)


def test_a_part_of_two_mebibytes_frees_written_pages_and_a_few_rows_do_not(path):
    with safe_open(path, "pt") as file:
        rows = file.get_slice("c")[: 2 * MIB]
        rows[:] = 1
        del rows
        assert written_bytes_of(path) <= 2 * PAGE
        rows = file.get_slice("c")[: 2 * MIB - 1]
        rows[:] = 1
        del rows
        assert written_bytes_of(path) >= 2 * MIB - PAGE
    assert written_bytes_of(path) == 0


@pytest.mark.parametrize("seed", range(3))
def test_tensors_are_as_if_each_name_had_memory_of_its_own(path, contents, seed):
    """The test creates torch tensors and parts of them, writes to them and drops them, in any order."""
    choose = random.Random(seed)
    now = {name: torch.from_numpy(content.copy()) for name, content in contents.items()}
    held = {name: [] for name in SIZES}
    with safe_open(path, "pt") as file:
        for _ in range(100):
            name = choose.choice(list(SIZES))
            tensors, start = held[name], 0
            action = choose.choice(["get", "part", "write", "drop", "drop"])
            if action == "get":
                tensors.append((start, file.get_tensor(name)))
            elif action == "part":
                start = choose.randrange(SIZES[name] // 2 + 1)
                tensors.append((start, file.get_slice(name)[start:]))
            elif action == "write" and tensors:
                start, tensor = choose.choice(tensors)
                tensor[:] = value = choose.randrange(256)
                now[name][start:] = value
                del tensor  # it would count as another user
            elif tensors:
                tensors.pop(choose.randrange(len(tensors)))
                if not tensors and name in SIZES_LARGE:
                    now[name] = torch.from_numpy(contents[name].copy())
            assert all(place_in_file(each, path) for _, each in tensors)
            assert all(torch.equal(each, now[name][start:]) for start, each in tensors), (name, action)


def test_a_forked_child_gives_back_its_own_pages_alone(path, contents):
    with safe_open(path, "np") as file:
        array = file.get_tensor("a")
        array += 1
        child = os.fork()
        if child == 0:
            try:
                del array
                is_right = np.array_equal(file.get_tensor("a"), contents["a"])
                is_little = written_bytes_of(path) <= 2 * PAGE
                os._exit(0 if is_right and is_little else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert np.array_equal(array, contents["a"] + 1)


def test_threads_never_lose_what_they_have_just_written(path, contents):
    """Several threads get the tensor, write to their part and drop it at the same time."""
    with safe_open(path, "pt") as file:
        wrong, step = [], SIZES["e"] // 4

        def work(start):
            for value in range(101, 201):
                own = file.get_tensor("e")[start : start + step]
                own[:] = value
                if not bool((own == value).all()):
                    wrong.append((start, value))

        threads = [threading.Thread(target=work, args=(place * step,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert torch.equal(file.get_tensor("e"), torch.from_numpy(contents["e"]))


def test_read_only_arrays_do_not_outlive_what_others_wrote(path, contents):
    """A torch tensor and an array of one open checkpoint share pages until both are gone."""
    with open_checkpoint(path) as weights:
        array = weights["a"]
        for name, tensor in stream_checkpoint(weights, device="cpu"):
            if name == "a":
                tensor.add_(1)
        del tensor
        shared = np.array_equal(array, contents["a"] + 1)
        assert shared or np.array_equal(array, contents["a"])
        del array
        assert np.array_equal(weights["a"], contents["a"])
        assert written_bytes_of(path) <= 2 * PAGE


def test_pages_stay_where_the_file_was_truncated(path):
    """The tensor's edges can no longer be read, so its pages stay as they are."""
    with safe_open(path, "np") as file:
        array = file.get_tensor("a")
        array += 1
        os.truncate(path, 100)
        held = written_bytes_of(path)
        del array
        assert written_bytes_of(path) == held
