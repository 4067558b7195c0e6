"""`examples/recipes`: each recipe with the real package. Its batches must match the tokens of the file."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from pagestream import Mixture, open_tokens, write_tokens
from pagestream.torch import TokenLoader

from support.process import output_of
from support.ranks import GLOO

RECIPES = Path(__file__).parents[2] / "examples/recipes"
MEGATRON_RANKS = Path(__file__).parent / "support/megatron_ranks.py"
VOCABULARY = 1000
LENGTH = 16
WINDOWS = 50
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, LENGTH * WINDOWS + 1, "u2")


@pytest.fixture(autouse=True)
def _recipes(monkeypatch):
    """Makes the recipes importable, here and in worker processes, and limits torch to one thread."""
    monkeypatch.syspath_prepend(str(RECIPES))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def path(tmp_path):
    """Returns a raw file of `TOKENS`."""
    TOKENS.tofile(tmp_path / "tokens.bin")
    return tmp_path / "tokens.bin"


def every_window():
    """Returns each window once, by naive slicing, with the following token."""
    return [tuple(TOKENS[start : start + LENGTH + 1].tolist()) for start in range(0, len(TOKENS) - 1, LENGTH)]


def rows(x, y):
    """Returns the windows of a batch, in the form of `every_window`."""
    assert x.shape == y.shape
    assert x.shape[1] == LENGTH
    assert x[:, 1:].tolist() == y[:, :-1].tolist()
    return [(*inputs, targets[-1]) for inputs, targets in zip(x.tolist(), y.tolist(), strict=True)]


def assert_once_each(windows):
    """No window is lost, repeated or invented, and the order differs from the file's."""
    expected = every_window()
    assert Counter(windows) == Counter(expected)
    assert windows != expected


# --- torch's DataLoader and torchdata's -----------------------------------------------------------

# torchdata uses a name that torch has deprecated.
quiet_torchdata = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
# DataLoader forks a process that has threads, and Python warns about that.
allow_fork = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@quiet_torchdata
@allow_fork
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(path, workers):
    from torch_data_loader import data_loader

    options = {"batch_size": 4, "num_workers": workers, "num_replicas": 1, "rank": 0}
    loader = data_loader(path, sequence_length=LENGTH, **options)
    epochs = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        epochs.append([row for x, y in loader for row in rows(x, y)])
        assert_once_each(epochs[-1])
    assert epochs[0] != epochs[1]


@quiet_torchdata
@allow_fork
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 6, 12])
def test_stateful_data_loader_goes_on_in_the_middle(path, workers, steps):
    from torch_data_loader import stateful_data_loader

    def loader():
        options = {"batch_size": 4, "num_workers": workers, "num_replicas": 1, "rank": 0}
        return stateful_data_loader(path, sequence_length=LENGTH, **options)

    first = loader()
    batches = iter(first)
    before = [row for _ in range(steps) for row in rows(*next(batches))]
    state = first.state_dict()
    del batches
    again = loader()
    again.load_state_dict(state)
    after = [row for x, y in again for row in rows(x, y)]
    assert len(before) == 4 * steps
    assert_once_each(before + after)


@quiet_torchdata
def test_data_loaders_of_two_ranks_share_the_windows(path, monkeypatch):
    from torch_data_loader import data_loader

    monkeypatch.setenv("WORLD_SIZE", "2")
    seen = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        batches = data_loader(path, sequence_length=LENGTH, batch_size=5)
        seen += [row for x, y in batches for row in rows(x, y)]
    assert_once_each(seen)


# --- Grain ----------------------------------------------------------------------------------------


@pytest.fixture
def _flags():
    """Parses absl's flags, as `absl.app.run` does: where jax is installed, Grain's workers require it."""
    from absl import flags

    flags.FLAGS.mark_as_parsed()


def map_dataset(path, workers):
    import grain

    from grain_source import TokenSource

    source = TokenSource(path, LENGTH)
    dataset = grain.MapDataset.source(source).seed(1).shuffle().batch(4).to_iter_dataset()
    return dataset.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(workers)) if workers else dataset


def grain_data_loader(path, workers):
    import grain

    from grain_source import TokenSource

    source = TokenSource(path, LENGTH)
    sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=1, num_epochs=1)
    batch = grain.transforms.Batch(4)
    return grain.DataLoader(
        data_source=source, sampler=sampler, operations=[batch], worker_count=workers, worker_buffer_size=1
    )


@pytest.mark.usefixtures("_flags")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pipeline", [map_dataset, grain_data_loader])
def test_grain_reads_each_window_once_and_goes_on_from_a_checkpoint(path, pipeline, workers):
    def windows(batches):
        return [row for batch in batches for row in rows(batch["inputs"], batch["targets"])]

    batches = iter(pipeline(path, workers))
    first = next(batches)
    assert first["inputs"].dtype == np.int32
    before = windows([first, *(next(batches) for _ in range(4))])
    state = batches.get_state()
    rest = windows(batches)
    assert_once_each(before + rest)
    again = iter(pipeline(path, workers))  # a new iterator, as another process would make
    again.set_state(state)
    assert windows(again) == rest


def test_grain_accepts_the_source_as_its_own(path):
    import grain

    from grain_source import TokenSource

    source = TokenSource(path, LENGTH)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert repr(source) == repr(TokenSource(path, LENGTH)) != repr(TokenSource(path, 8))
    # Grain's DataLoader compares the saved source with the present source.
    state = iter(grain_data_loader(path, 0)).get_state()
    TOKENS[::-1].tofile(path)
    with pytest.raises(ValueError, match="Source"):
        iter(grain_data_loader(path, 0)).set_state(state)


# --- Megatron-LM ----------------------------------------------------------------------------------


@pytest.fixture
def _megatron():
    """Imports megatron-core without its warnings of missing packages."""
    had_tensorflow = "tensorflow" in sys.modules
    # Megatron imports tensorboard, which would import tensorflow: six seconds.
    sys.modules.setdefault("tensorflow", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import megatron.core  # noqa: F401
    if not had_tensorflow:
        del sys.modules["tensorflow"]


def gpt_dataset(folder, *, create_attention_mask):
    """Makes Megatron's own dataset over `TOKENS`."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split
    from megatron.core.tokenizers.text.libraries.null_tokenizer import NullTokenizer

    prefix = str(folder / "corpus")
    write_tokens(prefix, [TOKENS], dtype="uint16", format="megatron")
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        blend=([prefix], None),
        split="1",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=create_attention_mask,
        tokenizer=NullTokenizer(VOCABULARY),
        path_to_cache=str(folder / "cache"),
    )
    indexed = IndexedDataset(prefix)
    return GPTDataset(indexed, prefix, np.arange(1, dtype=np.int32), WINDOWS, Split.train, config)


@pytest.mark.usefixtures("_megatron")
@pytest.mark.parametrize("create_attention_mask", [True, False])
def test_megatron_batches_are_those_of_its_gpt_dataset(tmp_path, create_attention_mask):
    from megatron_external import PretrainingBatches

    dataset = gpt_dataset(tmp_path, create_attention_mask=create_attention_mask)
    batch_of = {}
    for theirs in torch.utils.data.DataLoader(dataset, batch_size=5):
        for row in range(5):
            tokens = tuple(theirs["tokens"][row].tolist())
            batch_of[tokens] = {name: value[row] for name, value in theirs.items()}
    assert len(batch_of) == WINDOWS
    with TokenLoader(tmp_path / "corpus", sequence_length=LENGTH, batch_size=5, epochs=1) as loader:
        seen = []
        for ours in PretrainingBatches(loader, create_attention_mask=create_attention_mask):
            seen += rows(ours["tokens"], ours["labels"])
            assert ours.keys() == theirs.keys()
            for name, value in ours.items():
                expected = torch.stack([batch_of[tuple(row.tolist())][name] for row in ours["tokens"]])
                assert value.dtype == expected.dtype, name
                assert torch.equal(value, expected), name
    assert_once_each(seen)


@pytest.mark.timeout(3000)
def test_megatron_ranks_stop_and_resume_with_another_number(tmp_path, path):
    paths = f"{RECIPES}:{os.environ.get('PYTHONPATH', RECIPES)}"
    options = {"with_torch": True, "has_brief_end": True, "PYTHONPATH": paths, **GLOO}
    output_of(MEGATRON_RANKS, path, tmp_path / "out", **options)
    *before, after = (json.loads((tmp_path / f"out.{name}").read_text()) for name in ("2.0", "2.1", "1.0"))
    assert before[0]["state"] == before[1]["state"]
    assert_once_each([tuple(row) for rank in (*before, after) for row in rank["seen"]])


# --- Hugging Face Trainer -------------------------------------------------------------------------


def trained(path, folder, **more):
    """Returns the batches of a tiny model in two epochs."""
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    from transformers_trainer import trainer

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    given = []
    model.register_forward_pre_hook(lambda _, __, batch: given.append(batch), with_kwargs=True)
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        save_strategy="steps",
        save_steps=7,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer(model, path, sequence_length=LENGTH, arguments=arguments).train(**more)
    for batch in given:
        assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
        # The model shifts the labels.
        assert torch.equal(batch["input_ids"], batch["labels"])
    return [[tuple(row) for row in batch["input_ids"].tolist()] for batch in given]


# Without an accelerator, DataLoader's pin_memory does nothing and warns.
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_trainer_resumes_with_the_next_batch(path, tmp_path):
    whole = trained(path, tmp_path / "output")
    steps = len(whole) // 2
    for epoch in (whole[:steps], whole[steps:]):
        inputs = [row for batch in epoch for row in batch]
        assert Counter(inputs) == Counter(window[:-1] for window in every_window())
    for step in (7, 14):  # one step in the first epoch and one in the second
        checkpoint = tmp_path / f"output/checkpoint-{step}"
        resumed = trained(path, tmp_path / "output", resume_from_checkpoint=str(checkpoint))
        assert resumed == whole[step:]


# --- Hugging Face datasets ------------------------------------------------------------------------


def test_a_dataset_becomes_a_token_file(tmp_path):
    from datasets import Dataset

    from hugging_face_datasets import write_dataset

    documents = [[1, 2, 3], [4], [5, 6]]
    for kind, dataset in enumerate(
        [Dataset.from_dict({"ids": documents}), Dataset.from_dict({"ids": documents}).to_iterable_dataset()]
    ):
        write_dataset(tmp_path / f"{kind}.bin", dataset, dtype="uint16", column="ids")
        assert open_tokens(tmp_path / f"{kind}.bin")[:].tolist() == [1, 2, 3, 4, 5, 6]


@allow_fork
@pytest.mark.parametrize("workers", [0, 2])
def test_a_token_file_becomes_a_dataset(path, workers):
    from datasets.distributed import split_dataset_by_node
    from torch.utils.data import DataLoader

    from hugging_face_datasets import iterable_dataset

    inputs = [window[:-1] for window in every_window()]
    dataset = iterable_dataset(path, sequence_length=LENGTH, shards=8)
    assert [tuple(row["input_ids"]) for row in dataset] == inputs

    seen = []
    for rank in range(2):
        part = split_dataset_by_node(dataset.shuffle(1, buffer_size=8), rank, 2).with_format("torch")
        for batch in DataLoader(part, batch_size=3, num_workers=workers):
            seen += map(tuple, batch["input_ids"].tolist())
    assert Counter(seen) == Counter(inputs)
    assert seen != inputs


def test_a_dataset_of_a_token_file_resumes(path):
    from hugging_face_datasets import iterable_dataset

    whole = [row["input_ids"].tolist() for row in iterable_dataset(path, sequence_length=LENGTH)]
    dataset = iterable_dataset(path, sequence_length=LENGTH)
    begun = iter(dataset)
    seen = [next(begun)["input_ids"].tolist() for _ in range(7)]
    resumed = iterable_dataset(path, sequence_length=LENGTH)
    resumed.load_state_dict(dataset.state_dict())
    assert seen + [row["input_ids"].tolist() for row in resumed] == whole


# --- torch.distributed.checkpoint -----------------------------------------------------------------


def tiny_training(path, **options):
    model = torch.nn.Embedding(VOCABULARY, 4)
    optimizer = torch.optim.Adam(model.parameters())
    loader = TokenLoader(path, sequence_length=LENGTH, seed=3, device="cpu", **options)
    return model, optimizer, loader


def test_dcp_saves_and_loads_a_loader(path, tmp_path):
    from dcp_state import TrainingState, load, save

    model, optimizer, loader = tiny_training(path, batch_size=5)
    before = []
    for x, y in loader:
        before += rows(x, y)
        model(x).sum().backward()
        optimizer.step()
        if len(before) == 20:
            break
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no process group
        save(tmp_path / "checkpoint", TrainingState(model, optimizer, loader))
        after = []
        # A checkpoint of one rank resumes on two ranks.
        for rank in range(2):
            new, its_optimizer, rest = tiny_training(
                path, batch_size=3, rank=rank, world_size=2, drop_last=False
            )
            load(tmp_path / "checkpoint", TrainingState(new, its_optimizer, rest))
            assert torch.equal(new.weight, model.weight)
            after += [window for x, y in rest for window in rows(x, y)]
            rest.close()
    loader.close()
    assert_once_each(before + after)


# --- accelerate -----------------------------------------------------------------------------------


def test_accelerate_saves_and_loads_a_loader(path, tmp_path):
    from accelerate import Accelerator

    from accelerate_loop import token_loader, train_epoch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(VOCABULARY, 4)
            self.seen = []

        def forward(self, x):
            self.seen += [tuple(row) for row in x.tolist()]
            return self.table(x) @ self.table.weight.T

    def prepared():
        accelerator = Accelerator(cpu=True)
        loader = token_loader(accelerator, path, sequence_length=LENGTH, batch_size=5, seed=3)
        model = Model()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        return accelerator, model, optimizer, loader

    accelerator, model, optimizer, loader = prepared()
    next(loader)
    next(loader)
    accelerator.save_state(str(tmp_path / "state"))
    train_epoch(accelerator, model, optimizer, loader)
    rest = model.seen
    loader.close()

    accelerator, model, optimizer, loader = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    train_epoch(accelerator, model, optimizer, loader)
    assert model.seen == rest
    assert len(rest) == WINDOWS - 10
    model.seen.clear()
    train_epoch(accelerator, model, optimizer, loader)
    loader.close()
    assert Counter(model.seen) == Counter(window[:-1] for window in every_window())


# --- JAX ------------------------------------------------------------------------------------------


IN_JAX = """
import json, sys
import jax, numpy as np
from jax.sharding import Mesh
from jax_loop import device_batches, token_loader

mesh = Mesh(np.array(jax.devices()), ("data",))
options = dict(sequence_length=16, batch_size=4, seed=3)
seen = []
with token_loader(sys.argv[1], **options) as loader:
    for x, y in device_batches(loader, mesh, "data"):
        assert x.dtype == y.dtype == np.int32 and len(x.sharding.device_set) == 2
        seen += np.hstack([x, y[:, -1:]]).tolist()
        if len(seen) == 20:
            break
    state = json.dumps(loader.state_dict())
with token_loader(sys.argv[1], **options) as loader:
    loader.load_state_dict(json.loads(state))
    for x, y in device_batches(loader, mesh, "data"):
        seen += np.hstack([x, y[:, -1:]]).tolist()
print(json.dumps(seen))
"""


def test_jax_gets_each_window_once_and_resumes(path):
    two_devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    printed = output_of(IN_JAX, path, PYTHONPATH=str(RECIPES), **two_devices)
    seen = list(map(tuple, json.loads(printed)))
    # Each of the 12 batches contains 4 of the 50 windows.
    assert len(seen) == len(set(seen)) == 48
    assert set(seen) < set(every_window())


# --- Lightning ------------------------------------------------------------------------------------


def fitted(tokens, folder, *, batch_size=5, ckpt_path=None, validated=None, **limits):
    """Trains a tiny model and returns its windows. `validated` collects the windows of each validation."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from lightning_data_module import TokenDataModule

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(VOCABULARY, 4)
            self.seen = []

        def training_step(self, batch, _):
            x, y = batch
            self.seen += rows(x, y)
            logits = self.table(x) @ self.table.weight.T
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class ValidatedModel(Model):
        def on_validation_start(self):
            validated.append([])

        def validation_step(self, batch, _):
            validated[-1] += rows(*batch)

    model, data = Model() if validated is None else ValidatedModel(), tokens
    if not isinstance(data, (TokenDataModule, TokenLoader)):
        data = TokenDataModule(tokens, sequence_length=LENGTH, batch_size=batch_size, seed=3)
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[ModelCheckpoint(folder, filename="{step}", every_n_train_steps=4, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **limits,
    )
    trainer.fit(model, data, ckpt_path=ckpt_path, weights_only=True)
    return model.seen


# Lightning calls torch's tree utilities in a deprecated way.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
class TestLightning:
    def test_resumes_in_the_middle_of_an_epoch(self, path, tmp_path):
        whole = fitted(path, tmp_path / "whole", batch_size=5, max_epochs=2)
        assert_once_each(whole[:WINDOWS])
        assert_once_each(whole[WINDOWS:])
        assert whole[:WINDOWS] != whole[WINDOWS:]
        for step in (4, 16):  # one step in the first epoch and one in the second
            checkpoint = tmp_path / f"whole/step={step}.ckpt"
            state = torch.load(checkpoint, weights_only=True)["TokenDataModule"]
            assert state["samples_consumed"] == 5 * step
            resumed = fitted(path, tmp_path / "whole", batch_size=5, ckpt_path=checkpoint, max_epochs=2)
            assert resumed == whole[5 * step :]

    def test_resumes_with_another_number_of_ranks(self, path, tmp_path, monkeypatch):
        before = fitted(path, tmp_path, batch_size=10, max_steps=4)
        checkpoint = tmp_path / "step=4.ckpt"
        monkeypatch.setenv("WORLD_SIZE", "2")
        after = []
        for rank in "01":
            monkeypatch.setenv("RANK", rank)
            after += fitted(path, tmp_path, batch_size=5, ckpt_path=checkpoint, max_epochs=1)
        assert len(before) == 40
        assert_once_each(before + after)

    def test_a_mixture_without_end_is_not_read_ahead_of_its_state(self, path, tmp_path):
        from lightning_data_module import TokenDataModule

        def mixture():
            return Mixture([(open_tokens(path), 0.5), (open_tokens(path, dtype="u2"), 0.5)])

        def data():
            return TokenDataModule(mixture(), sequence_length=LENGTH, batch_size=5, seed=3, epochs=None)

        whole = fitted(data(), tmp_path / "whole", max_epochs=2, limit_train_batches=8)
        assert len(whole) == 80
        for step in (4, 12):
            checkpoint = tmp_path / f"whole/step={step}.ckpt"
            rest = fitted(
                data(), tmp_path / "whole", ckpt_path=checkpoint, max_epochs=2, limit_train_batches=8
            )
            assert rest == whole[5 * step :]

    def test_a_checkpoint_of_the_last_batch_of_an_epoch_begins_the_next(self, path, tmp_path):
        whole = fitted(path, tmp_path / "even", batch_size=4, max_epochs=3)
        assert len(whole) == 3 * 48  # each epoch drops its last two windows
        checkpoint = tmp_path / "even/step=12.ckpt"
        state = torch.load(checkpoint, weights_only=True)["TokenDataModule"]
        assert (state["samples_consumed"], state["epoch"]) == (WINDOWS, 1)
        assert fitted(path, tmp_path / "even", batch_size=4, ckpt_path=checkpoint, max_epochs=3) == whole[48:]

    def test_each_validation_is_the_same_and_whole(self, path, tmp_path):
        from lightning_data_module import ValidatedTokenDataModule

        held_out = open_tokens(path).part(0, 10 * LENGTH + 1)
        data = ValidatedTokenDataModule(path, held_out, sequence_length=LENGTH, batch_size=4, seed=3)
        validated = []
        trained = fitted(data, tmp_path, max_epochs=3, validated=validated)
        # The sanity check before the training takes two batches of three windows.
        everything = every_window()[:10]
        assert validated == [everything[:8], *[everything] * 3]
        assert trained == fitted(path, tmp_path / "alone", batch_size=4, max_epochs=3)

    def test_a_loader_is_a_data_loader(self, path, tmp_path):
        with TokenLoader(path, sequence_length=LENGTH, batch_size=4, seed=3) as loader:
            seen = fitted(loader, tmp_path, max_epochs=3)
        assert seen == fitted(path, tmp_path / "module", batch_size=4, max_epochs=3)

    def test_reloaded_and_second_fits_carry_on(self, path, tmp_path):
        whole = fitted(path, tmp_path / "whole", batch_size=5, max_epochs=4)
        reloaded = fitted(
            path, tmp_path / "reloaded", batch_size=5, max_epochs=4, reload_dataloaders_every_n_epochs=1
        )
        assert reloaded == whole

        from lightning_data_module import TokenDataModule

        data = TokenDataModule(path, sequence_length=LENGTH, batch_size=5, seed=3)
        first = fitted(data, tmp_path / "first", max_epochs=1)
        second = fitted(data, tmp_path / "second", max_epochs=1)
        assert first + second == whole[: 2 * WINDOWS]

    def test_a_state_is_kept_until_reading_starts_and_old_loaders_are_closed(self, path):
        from lightning_data_module import TokenDataModule

        data = TokenDataModule(path, sequence_length=LENGTH, batch_size=5, seed=3)
        assert data.state_dict() == {}
        old = data.train_dataloader()
        next(old)
        state = data.state_dict()
        new = data.train_dataloader()
        with pytest.raises(ValueError, match="closed"):
            next(old)
        next(new)
        assert data.state_dict()["samples_consumed"] == 10
        data.load_state_dict(state)
        assert data.state_dict() == state
        data.train_dataloader()
        assert data.state_dict() == state
        data.teardown("fit")
        assert data.state_dict() == state

    def test_the_state_in_a_checkpoint_also_serves_without_a_trainer(self, path, tmp_path):
        from lightning_data_module import TokenDataModule

        before = fitted(path, tmp_path, batch_size=10, max_steps=4)
        state = torch.load(tmp_path / "step=4.ckpt", weights_only=True)["TokenDataModule"]
        data = TokenDataModule(path, sequence_length=LENGTH, batch_size=10, seed=3, epochs=1)
        data.load_state_dict(state)
        after = [row for x, y in data.train_dataloader() for row in rows(x, y)]
        assert_once_each(before + after)
        assert data.state_dict()["samples_consumed"] == WINDOWS
        data.teardown("fit")


# --- metrics --------------------------------------------------------------------------------------


@pytest.fixture
def used_loader(path):
    """Returns a loader that has handed out two batches of four windows."""
    with TokenLoader(path, sequence_length=LENGTH, batch_size=4) as loader:
        next(loader)
        next(loader)
        yield loader


def test_tensorboard_gets_the_metrics(tmp_path, used_loader):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from loader_metrics import to_tensorboard

    with SummaryWriter(tmp_path / "events") as writer:
        to_tensorboard(writer, used_loader, step=2)
    found = EventAccumulator(str(tmp_path / "events")).Reload()
    windows = found.Scalars("loader/windows")
    assert [(event.step, event.value) for event in windows] == [(2, 8.0)]
    assert set(found.Tags()["scalars"]) == {f"loader/{name}" for name in used_loader.metrics().as_dict()}


def test_wandb_gets_the_metrics(tmp_path, path):
    """wandb starts another process, so the test runs it in a process of its own."""
    program = f"""
import sys
sys.path.insert(0, {str(RECIPES)!r})
import wandb
from loader_metrics import to_wandb
from pagestream import TokenLoader
with wandb.init(mode="offline", project="pagestream", dir={str(tmp_path)!r}) as run:
    with TokenLoader({str(path)!r}, sequence_length={LENGTH}, batch_size=4) as loader:
        next(loader)
        to_wandb(run, loader, step=3)
    run.log({{"loss": 1}}, step=4)  # a step is complete once the next one begins
    assert run.summary["loader/windows"] == 4, dict(run.summary)
"""
    output_of(program, HOME=str(tmp_path), WANDB_SILENT="true")
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_prometheus_gets_the_metrics(used_loader):
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    from loader_metrics import GAUGES, LoaderCollector

    registry = CollectorRegistry()
    registry.register(LoaderCollector(used_loader))
    families = {
        family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())
    }
    assert set(families) == {f"pagestream_loader_{name}" for name in used_loader.metrics().as_dict()}
    assert families["pagestream_loader_windows"].samples[0].value == 8
    gauges = {name for name, family in families.items() if family.type == "gauge"}
    assert gauges == {f"pagestream_loader_{name}" for name in GAUGES}
