"""`pagestream.torch.TokenLoader`: tensors, ranks of a real process group, PyTorch's varlen masks."""

import itertools
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from pagestream import PackedBatch, open_tokens, write_tokens
from pagestream.torch import TokenLoader

RANK = """
import json, sys
import torch.distributed as dist
from pagestream.torch import TokenLoader
path, state_path, steps, out = sys.argv[1:]
dist.init_process_group("gloo")
loader = TokenLoader(path, sequence_length=8, batch_size=3, epochs=1, drop_last=False, seed=5)
assert (loader.rank, loader.world_size) == (dist.get_rank(), dist.get_world_size())
if state_path != "-":
    loader.load_state_dict(json.load(open(state_path)))
starts = []
for step, (x, y) in enumerate(loader):
    starts += x[:, 0].tolist()
    if step + 1 == int(steps):
        break
json.dump({"starts": starts, "state": loader.state_dict()}, open(f"{out}.{dist.get_rank()}", "w"))
loader.close()
dist.destroy_process_group()
"""


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


def test_documents_feed_an_attention_mask(tmp_path):
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
    mask = (document[:, None] == document[None, :]) & torch.ones(total, total, dtype=torch.bool).tril()
    together = torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    bounds = batch.cu_seqlens.tolist()
    for start, stop in itertools.pairwise(bounds):
        part = query[:, :, start:stop]
        alone = torch.nn.functional.scaled_dot_product_attention(part, part, part, is_causal=True)
        assert torch.allclose(together[:, :, start:stop], alone, atol=1e-5)
        assert batch.position_ids.view(-1)[start:stop].tolist() == list(range(stop - start))
    assert batch.max_seqlen == max(np.diff(bounds))


def run_ranks(folder, world, path, state, steps, out):
    script = folder / "rank.py"
    script.write_text(textwrap.dedent(RANK))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    arguments = [str(script), str(path), str(state), str(steps), str(out)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads((folder / f"{out.name}.{rank}").read_text()) for rank in range(world)]
    assert all(rank["state"] == found[0]["state"] for rank in found)
    return [start for rank in found for start in rank["starts"]], found[0]["state"]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
@pytest.mark.timeout(240)
def test_real_ranks_stop_and_go_on_at_another_number(tmp_path, before, after):
    path = tmp_path / "tokens.bin"
    np.arange(8 * 50 + 1, dtype="u2").tofile(path)
    first, state = run_ranks(tmp_path, before, path, "-", 4, tmp_path / "first")
    assert len(first) == 4 * 3 * before
    (tmp_path / "state.json").write_text(json.dumps(state))
    rest, _ = run_ranks(tmp_path, after, path, tmp_path / "state.json", 0, tmp_path / "rest")
    assert sorted(first + rest) == list(range(0, 400, 8))


@pytest.mark.parametrize("source", ["uint8", "int8", "uint16", "int16", "uint32", "int32"])
@pytest.mark.parametrize("wanted", [torch.int64, torch.int32])
def test_widening_on_a_device_is_exact(token_file, source, wanted):
    """The arithmetic that a GPU does, here on the CPU; what does not fit in int32 is widened by the host."""
    info = np.iinfo(source)
    if wanted == torch.int32 and info.max > np.iinfo("i4").max:
        info = np.iinfo("u2")
    values = np.array([info.min, 0, 1, info.max // 2 + 1, info.max], source)
    with TokenLoader(token_file, sequence_length=16, batch_size=4) as loader:
        loader._wanted = wanted
        widened = loader._widened(values)
    assert widened.dtype == wanted
    assert widened.tolist() == values.tolist()


def test_the_device_must_be_there(token_file):
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises((RuntimeError, AssertionError)):
        TokenLoader(token_file, sequence_length=16, batch_size=4, device=missing)
