"""`pagestream.torch.TokenLoader`: tensors, ranks of a real process group, PyTorch's varlen masks."""

import inspect
import itertools
import json

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from pagestream import Mixture, PackedBatch, open_tokens, write_tokens
from pagestream.devices import copy_device
from pagestream.devices.copy_device import CopyDevice
from pagestream.errors import FileChangedError, MappedReadError
from pagestream.loading.loader import TokenLoader as NumpyTokenLoader
from pagestream.loading.options import LoaderOptions
from pagestream.torch import TokenLoader
from pagestream.torch._staging import StagedBatches

from support.late_device import StagedLate, StagedOnCpu, interrupt_first_wait
from support.process import PROGRAMS
from support.ranks import run_ranks

RANK = PROGRAMS / "torch_loader/rank.py"


def test_batches_are_tensors_on_the_loaders_memory(token_file):
    with TokenLoader(token_file, sequence_length=16, batch_size=4, order="sequential") as loader:
        x, y = next(loader)
        assert x.dtype == y.dtype == torch.int64
        assert x.is_contiguous()
        assert y.is_contiguous()
        assert torch.equal(x, torch.arange(64).view(4, 16))
        assert torch.equal(y, x + 1)
        kept = x[2]
        del x, y
        for _ in range(50):
            next(loader)
        assert torch.equal(kept, torch.arange(32, 48))
    with TokenLoader(token_file, sequence_length=16, batch_size=4, dtype="raw", target="none") as loader:
        assert next(loader).dtype == torch.uint16
    with TokenLoader(token_file, sequence_length=16, batch_size=4, dtype="int32") as loader:
        assert next(loader).y.dtype == torch.int32


def test_its_options_are_those_of_the_loader_that_it_is():
    base = inspect.signature(NumpyTokenLoader).parameters.values()
    keywords = {parameter.name: parameter for parameter in base if parameter.kind is parameter.KEYWORD_ONLY}
    assert LoaderOptions.__required_keys__ | LoaderOptions.__optional_keys__ == set(keywords)
    required = {name for name, parameter in keywords.items() if parameter.default is parameter.empty}
    assert LoaderOptions.__required_keys__ == required


@pytest.mark.parametrize("file_dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "i8", "u8"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "raw"])
def test_what_the_device_widens_is_what_the_host_widens(tmp_path, file_dtype, dtype):
    limits = np.iinfo(file_dtype)
    highest = min(limits.max, np.iinfo("i4").max) if dtype == "int32" else min(limits.max, 2**63 - 1)
    lowest = max(limits.min, np.iinfo("i4").min) if dtype == "int32" else limits.min
    tokens = np.random.default_rng(0).integers(lowest, highest, 2000, file_dtype, endpoint=True)
    tokens[:200:2], tokens[1:200:2] = lowest, highest
    tokens.tofile(tmp_path / "tokens.bin")
    corpus = open_tokens(tmp_path / "tokens.bin", dtype=file_dtype, format="raw")
    arguments = {"sequence_length": 16, "batch_size": 4, "order": "sequential", "epochs": 1, "dtype": dtype}
    with StagedOnCpu(corpus, **arguments) as staged, TokenLoader(corpus, **arguments) as plain:
        count = 0
        for there, here in zip(staged, plain, strict=True):
            assert there.x.dtype == here.x.dtype
            assert torch.equal(there.x, here.x)
            assert torch.equal(there.y, here.y)
            count += 1
        assert count == len(plain)
        # 64-bit tokens, and tokens that may not fit the type, are converted and checked before they are sent.
        crosses_as_in_file = dtype == "raw" or staged._batches._wanted is not None
        expected = {"raw": True, "int64": limits.bits < 64, "int32": limits.bits < 32}[dtype]
        assert crosses_as_in_file is expected


def test_staged_batches_stop_resume_and_never_change(token_file):
    arguments = {"sequence_length": 16, "batch_size": 4, "seed": 3, "epochs": 2}
    with TokenLoader(token_file, **arguments) as plain:
        expected = [batch.x.clone() for batch in plain]
    with StagedOnCpu(token_file, **arguments) as loader:
        first = [next(loader).x for _ in range(5)]
        state = loader.state_dict()
        # Batches in flight do not count, because the loader has not handed them out.
        assert state["samples_consumed"] == 20
        rest = [batch.x for batch in loader]
        assert all(torch.equal(x, y) for x, y in zip(first + rest, expected, strict=True))
        loader.load_state_dict(state)
        assert torch.equal(next(loader).x, expected[5])
    with StagedOnCpu(token_file, **arguments) as other:
        other.load_state_dict(state)
        again = [batch.x for batch in other]
    assert all(torch.equal(x, y) for x, y in zip(again, expected[5:], strict=True))


def test_a_mixture_of_types_is_staged_and_goes_on_with_other_weights(tmp_path):
    np.arange(2000, dtype="u2").tofile(tmp_path / "narrow")
    np.arange(1 << 20, (1 << 20) + 2000, dtype="u4").tofile(tmp_path / "wide")
    narrow, wide = open_tokens(tmp_path / "narrow"), open_tokens(tmp_path / "wide", dtype="u4")
    arguments = {"sequence_length": 16, "batch_size": 10, "epochs": None}
    before, after = Mixture([(narrow, 0.5), (wide, 0.5)]), Mixture([(narrow, 0.2), (wide, 0.8)])
    for dtype in ("int64", "int32"):
        with (
            StagedOnCpu(before, **arguments, dtype=dtype) as staged,
            TokenLoader(before, **arguments, dtype=dtype) as plain,
        ):
            assert all(torch.equal(next(staged).x, next(plain).x) for _ in range(5))
            state = staged.state_dict()
        with (
            StagedOnCpu(after, **arguments, dtype=dtype) as staged,
            TokenLoader(after, **arguments, dtype=dtype) as plain,
        ):
            next(staged)
            for loader in (staged, plain):
                loader.load_state_dict(state, new_mixture=True)
            for _ in range(5):
                batch = next(staged).x
                assert batch.dtype == getattr(torch, dtype)
                assert torch.equal(batch, next(plain).x)
                assert (batch[:, 0] < 2000).sum() == 2


def test_staged_batches_before_a_failure_come_first(tmp_path):
    path = tmp_path / "tokens.bin"
    np.arange(64 * 40, dtype="u2").tofile(path)
    with StagedOnCpu(path, sequence_length=16, batch_size=4, order="sequential", lookahead=1) as loader:
        assert torch.equal(next(loader).x, torch.arange(64).view(4, 16))
        assert loader.state_dict()["samples_consumed"] == 4  # reads the fingerprint while it still can
        np.arange(10, dtype="u2").tofile(path)
        found = 1
        failed = False
        while not failed:
            try:
                x = next(loader).x
            except (MappedReadError, FileChangedError):
                failed = True
            else:
                assert torch.equal(x, torch.arange(found * 64, found * 64 + 64).view(4, 16))
                found += 1
        # The failed batch is retried and fails again.
        assert loader.state_dict()["samples_consumed"] == found * 4
        with pytest.raises((MappedReadError, FileChangedError)):
            next(loader)


@pytest.mark.parametrize("device", ["meta", "mps"])
def test_a_device_of_another_kind_is_refused(token_file, device):
    with pytest.raises(ValueError, match=f'device must be "cpu" or "cuda", not \'{device}\''):
        TokenLoader(token_file, sequence_length=16, batch_size=4, device=device)


def test_a_gpu_that_torch_does_not_see_is_refused(token_file):
    count = torch.cuda.device_count()
    seen = f"torch .* sees {count or 'no'} cuda device"
    with pytest.raises(ValueError, match=f"device 'cuda:{count}' is not available: {seen}"):
        TokenLoader(token_file, sequence_length=16, batch_size=4, device=f"cuda:{count}")


@pytest.mark.parametrize("dtype", [torch.int32, np.int32, np.dtype("int32"), "int32"])
def test_a_type_may_be_given_as_torchs_or_as_numpys_or_as_a_word(token_file, dtype):
    for kind in (TokenLoader, NumpyTokenLoader):
        with kind(token_file, sequence_length=16, batch_size=4, dtype=dtype) as loader:
            assert str(next(loader).x.dtype).removeprefix("torch.") == "int32"


def test_the_signature_shows_every_argument():
    """Notebooks and editors show the signature."""
    numpy_parameters = inspect.signature(NumpyTokenLoader).parameters
    parameters = inspect.signature(TokenLoader).parameters
    assert parameters["device"].default == "cpu"
    assert {name: each for name, each in parameters.items() if name != "device"} == dict(numpy_parameters)
    assert {"sequence_length", "batch_size", "seed", "epochs"} <= set(parameters)


def test_a_batch_that_cannot_be_sent_is_tried_again(token_file, monkeypatch):
    """For example, the device may have no memory left. No batch is lost or repeated."""
    send, calls = StagedBatches._send, itertools.count()

    def sometimes(self, *arguments):
        if next(calls) in (3, 4, 9):
            message = "CUDA out of memory"
            raise RuntimeError(message)
        send(self, *arguments)

    monkeypatch.setattr(StagedBatches, "_send", sometimes)
    arguments = {"sequence_length": 16, "batch_size": 4, "seed": 2, "epochs": 1}
    with TokenLoader(token_file, **arguments) as plain:
        expected = [batch.x.clone() for batch in plain]
    found, failures = [], 0
    with StagedOnCpu(token_file, **arguments) as loader:
        while len(found) < len(expected):
            try:
                found.append(next(loader).x)
            except RuntimeError:
                failures += 1
            # The last batch also consumes the dropped rest of the epoch.
            consumed = 255 if len(found) == len(expected) else 4 * len(found)
            assert loader.state_dict()["samples_consumed"] == consumed
    assert failures == 3
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


# --- a device whose copies come late --------------------------------------------------------------

LATE = {"sequence_length": 256, "batch_size": 8, "order": "sequential", "epochs": 1, "dtype": "raw"}


@pytest.fixture
def random_tokens(tmp_path):
    path = tmp_path / "random.bin"
    np.random.default_rng(0).integers(0, 60_000, 1 << 18, "u2").tofile(path)
    return path


def equal(one, other):
    """torch cannot compare unsigned tensors, so this compares them as signed ones."""
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def test_a_buffer_is_used_again_only_once_its_copy_is_done(random_tokens):
    with TokenLoader(random_tokens, **LATE) as plain:
        expected = [tuple(part.clone() for part in batch) for batch in itertools.islice(plain, 60)]
    # Like a training loop that runs ahead of the device, this consumer never waits for it.
    with StagedLate(random_tokens, **LATE) as loader:
        found = list(itertools.islice(loader, 60))
        loader.late.synchronize()
    wrong = [
        number
        for number, (there, here) in enumerate(zip(found, expected, strict=True))
        if not all(
            torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(there, here, strict=True)
        )
    ]
    assert wrong == []
    assert loader.late.registered == {}
    assert loader.late.unregistered_while_read == []


def test_pinned_buffers_stay_mapped_as_long_as_their_pipeline(random_tokens):
    """The pool keeps as many buffers as staging holds. An unmapped buffer would still be registered."""
    with StagedLate(random_tokens, **LATE) as loader:
        register, calls = loader.late.register, []
        loader.late.register = lambda address, nbytes: calls.append(address) or register(address, nbytes)
        for _ in itertools.islice(loader, 60):
            pass
        allocated = loader.metrics().buffers_allocated
        mapped = mapped_ranges()
        assert len(set(calls)) == len(calls) <= allocated
        assert all(any(address in extent for extent in mapped) for address in calls)


def mapped_ranges():
    with open("/proc/self/maps") as maps:
        bounds = [line.split()[0].split("-") for line in maps]
    return [range(int(start, 16), int(stop, 16)) for start, stop in bounds]


def test_a_copy_that_fails_midway_is_waited_for_before_its_buffer_goes(random_tokens):
    """This holds even if an interrupt ends the wait."""
    with StagedLate(random_tokens, **LATE) as loader:
        calls = itertools.count()

        def sometimes():
            # x of the second batch is already queued, but y is not.
            if next(calls) == 3:
                message = "CUDA out of memory"
                raise RuntimeError(message)

        loader.late.fail_copy = sometimes
        interrupt_first_wait(loader.late)
        with pytest.raises(KeyboardInterrupt) as raised:
            list(loader)
        assert str(raised.value.__context__) == "CUDA out of memory"
        assert (loader.late._reading, loader.late.registered) == ([], {})
        assert loader.late.unregistered_while_read == []


def test_an_interrupt_before_copies_are_waited_for_frees_no_buffer(random_tokens):
    with StagedLate(random_tokens, **LATE) as loader:
        interrupt_first_wait(loader.late)
        next(loader)
        with pytest.raises(KeyboardInterrupt):
            loader.load_state_dict(loader.state_dict())
        assert (loader.late._reading, loader.late.registered) == ([], {})
        assert loader.late.unregistered_while_read == []


def test_an_interrupt_while_copies_are_waited_for_leaves_no_registration_behind(random_tokens):
    with StagedLate(random_tokens, **LATE | {"lookahead": 1}) as loader:
        for _ in range(6):
            next(loader)
        state = loader.state_dict()
        assert loader.late.registered

        def interrupt():
            raise KeyboardInterrupt

        loader.late.fail_synchronize = interrupt
        with pytest.raises(KeyboardInterrupt):
            loader.load_state_dict(state)
        # The buffers are gone with their pipeline, and so are their registrations.
        assert loader.late.registered == {}
        loader.load_state_dict(state)
        for _ in range(6):
            next(loader)
        sent = [*loader._batches._flight, *loader._batches._reading]
        hosts = [entry.host if hasattr(entry, "host") else entry[1] for entry in sent]
        addresses = {host[0].__array_interface__["data"][0] for host in hosts}
        assert addresses <= set(loader.late.registered)
    assert loader.late.unregistered_while_read == []


def test_a_failing_unregistration_does_not_keep_the_others(random_tokens):
    loader = StagedLate(random_tokens, **LATE)
    for _ in range(8):
        next(loader)
    registered = len(loader.late.registered)
    assert registered > 2
    unregister, calls = loader.late.unregister, []

    def sometimes(address):
        calls.append(address)
        unregister(address)
        if len(calls) == 1:
            message = "CUDA error"
            raise RuntimeError(message)

    loader.late.unregister = sometimes
    with pytest.raises(RuntimeError, match="CUDA error"):
        loader.close()
    assert len(calls) == registered
    assert loader.late.registered == {}
    assert loader._batches._host._pipeline is None


def test_a_buffer_of_another_pipeline_at_the_same_address_is_pinned_anew(random_tokens):
    with StagedLate(random_tokens, **LATE) as loader:
        next(loader)
        batches, late = loader._batches, loader.late
        address = next(iter(late.registered))
        # This simulates that the end of the first pipeline went unnoticed.
        batches._host.pipelines_started += 1
        calls = []
        unregister = late.unregister
        late.unregister = lambda address: (calls.append(address), unregister(address))
        for _ in range(12):
            next(loader)
        assert address in calls
        assert address in late.registered


def test_the_index_of_a_device_is_looked_up_once(monkeypatch):
    """Another device may be current by the time a batch is awaited."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    made = []
    monkeypatch.setattr(copy_device, "_side_stream", made.append)
    assert CopyDevice(torch.device("cuda")).device == torch.device("cuda", 2)
    assert made == [torch.device("cuda", 2)]
    assert CopyDevice(torch.device("cuda:1")).device == torch.device("cuda", 1)


def test_staged_documents_keep_their_bounds(tmp_path):
    documents = [np.arange(n, dtype="u2") for n in (5, 9, 2, 30, 7, 64, 11)]
    write_tokens(tmp_path / "corpus", documents, dtype="uint16", format="megatron")
    arguments = {"sequence_length": 16, "batch_size": 2, "documents": "boundaries", "order": "sequential"}
    with StagedOnCpu(tmp_path / "corpus.idx", **arguments) as staged:
        there = next(staged)
    with TokenLoader(tmp_path / "corpus.idx", **arguments) as plain:
        here = next(plain)
    assert there.cu_seqlens.dtype == torch.int32
    assert there.max_seqlen == here.max_seqlen
    for name in ("x", "y", "cu_seqlens", "position_ids", "loss_mask"):
        assert torch.equal(getattr(there, name), getattr(here, name)), name
    assert there.position_ids.dtype == here.position_ids.dtype


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_documents_feed_flex_attention(tmp_path):
    lengths = np.random.default_rng(1).integers(3, 30, 100)
    write_tokens(
        tmp_path / "corpus", [np.arange(n, dtype="u2") for n in lengths], dtype="uint16", format="megatron"
    )
    tokens = open_tokens(tmp_path / "corpus.idx")
    with TokenLoader(
        tokens, sequence_length=64, batch_size=2, order="sequential", documents="boundaries"
    ) as loader:
        batch = next(loader)
    assert isinstance(batch, PackedBatch)
    assert batch.cu_seqlens.dtype == torch.int32
    total = batch.x.numel()
    query = torch.randn(1, 2, total, 8, generator=torch.Generator().manual_seed(0))
    document = torch.bucketize(torch.arange(total), batch.cu_seqlens[1:], right=True)

    def within_document(_batch, _head, q, k):
        return (document[q] == document[k]) & (q >= k)

    mask = create_block_mask(within_document, None, None, total, total, device="cpu")
    together = flex_attention(query, query, query, block_mask=mask)
    bounds = batch.cu_seqlens.tolist()
    for start, stop in itertools.pairwise(bounds):
        part = query[:, :, start:stop]
        alone = torch.nn.functional.scaled_dot_product_attention(part, part, part, is_causal=True)
        assert torch.allclose(together[:, :, start:stop], alone, atol=1e-5)
        assert batch.position_ids.view(-1)[start:stop].tolist() == list(range(stop - start))
    assert batch.max_seqlen == max(np.diff(bounds))


def stream_on_ranks(folder, world, path, state, steps, out):
    script = folder / "rank.py"
    script.write_text(RANK.read_text())
    run_ranks(world, script, path, state, steps, out)
    found = [json.loads((folder / f"{out.name}.{rank}").read_text()) for rank in range(world)]
    assert all(rank["state"] == found[0]["state"] for rank in found)
    return [start for rank in found for start in rank["starts"]], found[0]["state"]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
@pytest.mark.timeout(3000)
def test_real_ranks_stop_and_resume_with_another_number(tmp_path, before, after):
    path = tmp_path / "tokens.bin"
    np.arange(8 * 50 + 1, dtype="u2").tofile(path)
    first, state = stream_on_ranks(tmp_path, before, path, "-", 4, tmp_path / "first")
    assert len(first) == 4 * 3 * before
    (tmp_path / "state.json").write_text(json.dumps(state))
    rest, _ = stream_on_ranks(tmp_path, after, path, tmp_path / "state.json", 0, tmp_path / "rest")
    assert sorted(first + rest) == list(range(0, 400, 8))
