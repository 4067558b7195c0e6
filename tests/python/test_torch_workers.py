"""A `TokenLoader` in a torch `DataLoader`: workers never silently repeat a window."""

import traceback

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import pagestream
import pagestream.torch

SENTENCE = "needs no DataLoader and no workers"
OPTIONS = {"sequence_length": 16, "batch_size": 4}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Inside(IterableDataset):
    """Makes its loader in the process that iterates."""

    def __init__(self, kind, path):
        self.kind = kind
        self.path = path

    def __iter__(self):
        with self.kind(self.path, **OPTIONS) as loader:
            yield from loader


class Outside(IterableDataset):
    """Holds a loader from before the fork."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader


class OfAnEpoch(Outside):
    def __iter__(self):
        yield from self.loader.epoch(0)


KINDS = [pagestream.TokenLoader, pagestream.torch.TokenLoader]


def refuses(loader, error=RuntimeError):
    """Asserts that a `DataLoader` raises the expected error for its first item.

    The frames of a refusal refer to each other and to the iterator. The iterator must not become cyclic
    garbage: the queues that tell the workers to end would be finalized first, and it would wait five seconds
    for each worker.
    """
    with pytest.raises(error, match=SENTENCE) as refused:
        next(iter(loader))
    traceback.clear_frames(refused.tb)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_in_a_worker_is_refused(token_file, kind, workers):
    refuses(
        DataLoader(
            Inside(kind, token_file), batch_size=None, num_workers=workers, multiprocessing_context="fork"
        )
    )


class Refusals(IterableDataset):
    """Yields the error of each kind of loader. One worker is enough, because it imports torch anew."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        for kind in KINDS:
            try:
                next(iter(Inside(kind, self.path)))
            except RuntimeError as error:
                yield str(error)


def test_a_loader_in_a_spawned_worker_is_refused(token_file):
    loader = DataLoader(Refusals(token_file), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    found = list(loader)
    assert len(found) == len(KINDS)
    assert all(SENTENCE in each for each in found)


@pytest.mark.filterwarnings("ignore:Got pickle error")
@pytest.mark.parametrize("dataset", [Outside, OfAnEpoch])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_from_before_the_fork_is_refused_in_a_worker(token_file, kind, dataset):
    with kind(token_file, **OPTIONS) as loader:
        first = next(loader).x[0, 0]
        state = loader.state_dict()
        for start, error in (("fork", RuntimeError), ("spawn", TypeError)):
            refuses(
                DataLoader(dataset(loader), batch_size=None, num_workers=2, multiprocessing_context=start),
                error,
            )
        # In this process, the loader continues.
        assert loader.state_dict() == state
        assert next(loader).x[0, 0] != first


@pytest.mark.parametrize("epochs", [1, None])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_around_a_loader_is_refused_as_unnecessary(token_file, epochs, workers):
    with pagestream.torch.TokenLoader(token_file, epochs=epochs, **OPTIONS) as loader:
        around = DataLoader(loader, num_workers=workers, multiprocessing_context="fork" if workers else None)
        refuses(around, TypeError)


def test_a_data_loader_around_an_epoch_is_told_that_none_is_needed(token_file):
    with pagestream.torch.TokenLoader(token_file, **OPTIONS) as loader:
        refuses(DataLoader(loader.epoch(0), batch_size=None), TypeError)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdatas_loader_is_refused_as_well(token_file):
    from torchdata import stateful_dataloader as stateful

    refuses(
        stateful.StatefulDataLoader(
            Inside(pagestream.TokenLoader, token_file),
            batch_size=None,
            num_workers=2,
            multiprocessing_context="fork",
        )
    )


def test_a_dataset_without_workers_gives_each_window_once(token_file):
    inside = Inside(pagestream.torch.TokenLoader, token_file)
    outside = Outside(pagestream.torch.TokenLoader(token_file, **OPTIONS))
    for dataset in (inside, outside):
        starts = [int(row[0]) for x, _ in DataLoader(dataset, batch_size=None) for row in x]
        assert len(starts) == len(set(starts)) == 252
        assert set(starts) <= set(np.arange(0, 4080, 16).tolist())
