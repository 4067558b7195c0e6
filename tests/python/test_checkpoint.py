"""`open_checkpoint` with several files: the opened files, their order, and the refused folders."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from pagestream import open_checkpoint, open_tokens
from pagestream.errors import FileChangedError, FormatError, SafetensorError
from pagestream.safetensors import deserialize, safe_open
from pagestream.tokens.paths import TOKEN_SUFFIXES
from pagestream.torch import load_state_dict

from support import real
from support.checkpoints import INDEX, shard_name, sharded, values, write_index, write_shards
from support.mappings import place_in_file
from support.process import PROGRAMS, output_of
from support.weight_files import entry, weight_file, write

ONE = np.ones(1, "f4")


@pytest.fixture
def folder(tmp_path):
    """12 shards of 4 tensors, with an index."""
    return sharded(tmp_path / "model")


@pytest.mark.parametrize(
    "kind", ["folder", "path", "bytes", "index", "list", "tuple", "iterator", "no index"]
)
def test_every_kind_of_source_is_the_same_checkpoint(folder, tmp_path, kind):
    files = [os.path.join(folder, shard_name(number, 12)) for number in range(1, 13)]
    source = {
        "path": tmp_path / "model",
        "bytes": os.fsencode(folder),
        "index": os.path.join(folder, INDEX),
        "list": files,
        "tuple": tuple(files),
        "iterator": iter(files),
    }.get(kind, folder)
    if kind == "no index":
        os.unlink(os.path.join(folder, INDEX))
    weights = open_checkpoint(source)
    assert list(weights) == [f"layer.{s}.{t}" for s in range(12) for t in range(4)]
    assert len(weights) == 48
    assert weights.files == tuple(files)
    assert all((weights[f"layer.{s}.{t}"] == s * 1000 + t).all() for s in range(12) for t in range(4))
    assert all((weights.read(f"layer.{s}.3") == s * 1000 + 3).all() for s in range(12))
    assert weights.info("layer.9.1").path == files[9]
    assert weights.warnings == []
    assert (weights.metadata, weights.mode, weights.reason) == ({"format": "np"}, "shared", None)
    indexed = kind in ("folder", "path", "bytes", "index")
    assert weights.index_metadata == ({"total_size": 12 * 4 * 24} if indexed else None)
    assert "layer.3.0" in weights
    assert "layer.3" not in weights
    with pytest.raises(KeyError):
        weights["layer.3"]
    weights.check()


def test_arrays_lie_in_the_mapping_of_their_file(folder):
    weights = open_checkpoint(folder)
    for name in ("layer.0.0", "layer.11.3"):
        info = weights.info(name)
        assert place_in_file(weights[name], info.path) == (info.offset, "rw-p")


def test_a_relative_folder_gives_relative_paths(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert open_checkpoint(".").files[0] == f"./{shard_name(1, 12)}"
    assert open_checkpoint(INDEX).files[0] == shard_name(1, 12)
    monkeypatch.chdir("..")
    assert open_checkpoint("model").files[0] == f"model/{shard_name(1, 12)}"


def test_a_single_model_comes_before_all_others(tmp_path):
    write_shards(tmp_path, {"model.safetensors": {"a": ONE}, "other.safetensors": {"a": ONE}})
    weights = open_checkpoint(tmp_path)
    assert weights.files == (f"{tmp_path}/model.safetensors",)
    assert weights.warnings == [
        "beside model.safetensors 1 file of the folder is not used: other.safetensors"
    ]


def test_without_an_index_all_visible_files_load_in_natural_order(tmp_path):
    files = [f"part{number}.safetensors" for number in (1, 2, 9, 10, 11, 100)]
    write_shards(tmp_path, {file: {f"in {file}": ONE} for file in reversed(files)})
    write(tmp_path / "._part1.safetensors", b"of another system")
    write(tmp_path / "config.json", b"{}")
    weights = open_checkpoint(tmp_path)
    assert list(weights) == [f"in {file}" for file in files]


def test_the_order_within_a_file_is_that_of_its_data(tmp_path):
    header = {"z": entry("U8", [1], 0, 1), "a": entry("U8", [1], 1, 2)}
    write(tmp_path / "m-2.safetensors", weight_file(header, 2))
    header = {"y": entry("U8", [1], 1, 2), "b": entry("U8", [1], 0, 1)}
    write(tmp_path / "m-10.safetensors", weight_file(header, 2))
    assert list(open_checkpoint(tmp_path)) == ["z", "a", "b", "y"]


def test_several_indexes_need_the_usual_one(tmp_path):
    write_shards(tmp_path, {"a.safetensors": {"a": ONE}, "b.safetensors": {"b": ONE}})
    first = write_index(tmp_path, {"a": "a.safetensors"}, "diffusion.fp16.safetensors.index.json")
    write_index(tmp_path, {"b": "b.safetensors"}, "diffusion.safetensors.index.json")
    with pytest.raises(
        SafetensorError, match=r"2 indexes: diffusion\.fp16.*, diffusion\.safe.*give the path"
    ):
        open_checkpoint(tmp_path)
    assert list(open_checkpoint(first)) == ["a"]
    write_index(tmp_path, {"b": "b.safetensors"})
    weights = open_checkpoint(tmp_path)
    assert list(weights) == ["b"]
    assert "model.safetensors.index.json is used" in weights.warnings[0]


def test_tensors_and_files_outside_the_index_are_reported_but_not_loaded(tmp_path):
    write_shards(
        tmp_path, {"a.safetensors": {"a": ONE, "extra": ONE}, "consolidated.safetensors": {"a": ONE}}
    )
    write_index(tmp_path, {"a": "a.safetensors"})
    weights = open_checkpoint(tmp_path)
    assert (list(weights), len(weights), "extra" in weights) == (["a"], 1, False)
    assert [warning[:60] for warning in weights.warnings] == [
        "beside the index 1 file of the folder is not used: consolida",
        f'1 tensor is not named by the index: "extra" ({tmp_path}'[:60],
    ]


def test_shards_may_lie_in_subfolders(tmp_path):
    write_shards(tmp_path, {"x/1.safetensors": {"a": ONE}, "y/z/1.safetensors": {"b": ONE}})
    write_index(tmp_path, {"a": "x/1.safetensors", "b": "y/z/1.safetensors"})
    weights = open_checkpoint(tmp_path)
    assert weights.info("b").path == f"{tmp_path}/y/z/1.safetensors"


@pytest.mark.parametrize("seed", range(5))
def test_names_spread_over_files_in_any_way_are_found(tmp_path, seed):
    """In runs, one by one, and some files without a tensor."""
    rng = np.random.default_rng(seed)
    shards: dict[str, dict[str, np.ndarray]] = {f"{number}.safetensors": {} for number in range(7)}
    files, file = list(shards), 0
    for number in range(200):
        if rng.random() < (0.05, 0.3, 0.5, 0.9, 1.0)[seed]:
            file = int(rng.integers(6))  # the last file stays empty
        shards[files[file]][f"layers.{number:03}"] = np.array([number])
    write_shards(tmp_path, shards)
    with open_checkpoint(tmp_path) as weights:
        assert sorted(weights) == [f"layers.{number:03}" for number in range(200)]
        assert [int(weights[f"layers.{number:03}"][0]) for number in range(200)] == list(range(200))
        assert "layers.200" not in weights


def test_one_error_reports_all_problems(tmp_path):
    write_shards(tmp_path, {"a.safetensors": {"a": ONE}})
    write(tmp_path / "c.safetensors", b"nothing")
    names = {"a": "a", "lost": "a", "gone": "d", "broken": "c"}
    write_index(tmp_path, {name: f"{file}.safetensors" for name, file in names.items()})
    with pytest.raises(SafetensorError) as caught:
        open_checkpoint(tmp_path)
    text = str(caught.value)
    for words in (
        f"{tmp_path}/{INDEX}: the checkpoint is not whole",
        f"1 file is missing: {tmp_path}/d.safetensors",
        f"1 file is broken: {tmp_path}/c.safetensors (Error while deserializing header: header too small",
        f'1 tensor is not in the file that the index names for it: "lost" ({tmp_path}/a.safetensors)',
        "expected each tensor in one file",
    ):
        assert words in text, words


def test_the_first_few_are_named_and_all_are_counted(tmp_path):
    write_shards(tmp_path, {"a.safetensors": {f"t{n}": ONE for n in range(10)}})
    write_index(tmp_path, {f"missing {n:02}": "a.safetensors" for n in range(30)})
    with pytest.raises(SafetensorError, match="30 tensors are not in the file") as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).count('"missing') == 5


def test_names_in_two_files_are_an_error_and_without_strictness_the_last_counts(tmp_path):
    files = {"a.safetensors": {"t": ONE, "a": ONE}, "b.safetensors": {"t": 2 * ONE}}
    write_shards(tmp_path, files)
    with pytest.raises(SafetensorError, match=r'"t" \(.*a\.safetensors and .*b\.safetensors\)'):
        open_checkpoint(tmp_path)
    weights = open_checkpoint(tmp_path, strict=False)
    assert values(weights) == {"a": [1.0], "t": [2.0]}
    assert weights.warnings[0].endswith("the last file decides")
    reverse = [f"{tmp_path}/b.safetensors", f"{tmp_path}/a.safetensors"]
    assert values(open_checkpoint(reverse, strict=False)) == {"t": [1.0], "a": [1.0]}


@pytest.mark.parametrize("strict", [True, False])
def test_a_copy_outside_the_index_is_a_warning(tmp_path, strict):
    write_shards(tmp_path, {"a.safetensors": {"t": ONE}, "b.safetensors": {"t": 2 * ONE, "b": ONE}})
    write_index(tmp_path, {"t": "a.safetensors", "b": "b.safetensors"})
    weights = open_checkpoint(tmp_path, strict=strict)
    assert values(weights) == {"t": [1.0], "b": [1.0]}
    copies = f'"t" (in {tmp_path}/b.safetensors, used from {tmp_path}/a.safetensors)'
    assert weights.warnings == [f"1 tensor has a second copy: {copies}; the index decides"]


def test_without_strictness_tensors_missing_from_the_files_are_skipped(tmp_path):
    write_shards(tmp_path, {"a.safetensors": {"t": ONE}, "b.safetensors": {"t": 2 * ONE, "b": ONE}})
    write_index(tmp_path, {"t": "a.safetensors", "b": "b.safetensors", "lost": "b.safetensors"})
    weights = open_checkpoint(tmp_path, strict=False)
    assert values(weights) == {"t": [1.0], "b": [1.0]}
    assert len(weights.warnings) == 2
    os.unlink(tmp_path / "a.safetensors")
    with pytest.raises(SafetensorError, match="1 file is missing"):
        open_checkpoint(tmp_path, strict=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "EOF"),
        ("{}", "no `weight_map`"),
        ('{"weight_map": {"t": 1}}', 'the file of tensor "t"'),
        ('{"weight_map": {"t": "../a"}}', "leaves a folder"),
        ('{"weight_map": {"t": "/a"}}', "absolute"),
        ('{"weight_map": {"t": "c:\\\\a"}}', "backslash"),
        ('{"weight_map": {"t": ""}}', "empty"),
    ],
)
@pytest.mark.parametrize("by", ["folder", "index"])
def test_an_invalid_index_is_an_error_with_its_path(tmp_path, text, words, by):
    path = write_index(tmp_path, text)
    with pytest.raises(SafetensorError) as caught:
        open_checkpoint(tmp_path if by == "folder" else path)
    assert str(caught.value).startswith(f"{path}: invalid index: ")
    assert words in str(caught.value)


def test_an_index_beyond_the_limit_is_refused_before_it_is_read(tmp_path):
    os.truncate(write_index(tmp_path, "{"), (256 << 20) + 1)
    with pytest.raises(
        SafetensorError, match="index too large: found 268435457 bytes, expected at most 268435456"
    ):
        open_checkpoint(tmp_path)


def test_an_index_of_a_million_names_opens(tmp_path):
    write_shards(tmp_path, {"a.safetensors": {"t": ONE}})
    path = write_index(tmp_path, {f"model.layers.{n}.weight": "a.safetensors" for n in range(1_000_000)})
    assert os.path.getsize(path) > 40 << 20
    with pytest.raises(SafetensorError, match="1000000 tensors are not in the file"):
        open_checkpoint(tmp_path)


def test_an_index_without_tensors_is_an_empty_checkpoint(tmp_path):
    write_index(tmp_path, {})
    weights = open_checkpoint(tmp_path)
    assert (dict(weights), weights.files, weights.metadata) == ({}, (), None)
    assert (weights.mode, weights.reason) == ("shared", None)
    weights.check()


@pytest.mark.parametrize(
    ("names", "words"),
    [((), "no files at all"), (("a.bin",), "found a.bin"), (("snapshots",), "give one of the folders")],
)
def test_a_folder_without_a_checkpoint_lists_its_files(tmp_path, names, words):
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(FileNotFoundError, match=words) as caught:
        open_checkpoint(tmp_path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(tmp_path))


def test_files_of_a_list_keep_their_own_errors(tmp_path):
    write_shards(tmp_path, {"a.safetensors": {"a": ONE}})
    with pytest.raises(FileNotFoundError) as caught:
        open_checkpoint([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    assert caught.value.filename == f"{tmp_path}/b.safetensors"
    with pytest.raises(IsADirectoryError):
        open_checkpoint([tmp_path])
    with pytest.raises(ValueError, match="at least one"):
        open_checkpoint([])
    with pytest.raises(TypeError):
        open_checkpoint(5)


def test_metadata_leaves_out_conflicting_keys(tmp_path):
    header = {"a": entry("U8", [0], 0, 0)}
    write(tmp_path / "1.safetensors", weight_file({"__metadata__": {"format": "pt", "by": "x"}, **header}))
    write(tmp_path / "2.safetensors", weight_file({"__metadata__": {"format": "pt", "by": "y", "c": "d"}}))
    write(tmp_path / "3.safetensors", weight_file("{}"))
    weights = open_checkpoint(tmp_path)
    assert weights.metadata == {"format": "pt", "c": "d"}
    assert weights.warnings == ['1 key of the files\' metadata differs: "by"; left out']
    assert open_checkpoint(tmp_path / "3.safetensors").metadata is None


def test_warnings_of_headers_name_their_file(tmp_path):
    odd = {"t": {**entry("U8", [1], 0, 1), "colour": "red"}}
    write(tmp_path / "1.safetensors", weight_file(odd, 1))
    write_shards(tmp_path, {"2.safetensors": {"u": ONE}})
    assert open_checkpoint(tmp_path).warnings == [
        f'{tmp_path}/1.safetensors: tensor "t": unknown field "colour" is ignored'
    ]


def test_mixed_modes_are_reported_as_the_weakest(direct_mount, tmp_path):
    write_shards(tmp_path, {"here.safetensors": {"a": ONE}})
    write_shards(tmp_path / "source", {"there.safetensors": {"b": ONE}})
    weights = open_checkpoint([tmp_path / "here.safetensors", direct_mount / "there.safetensors"])
    assert weights.mode == "private"
    assert weights.reason is not None
    assert weights.reason.startswith(f"{direct_mount}/there.safetensors: MAP_SHARED: ENODEV")
    assert values(weights) == {"a": [1.0], "b": [1.0]}


@pytest.mark.parametrize("mode", ["auto", "shared", "private", "read"])
def test_every_mode_reads_every_file(folder, mode):
    weights = open_checkpoint(folder, mmap_mode=mode)
    assert weights.mode == {"auto": "shared"}.get(mode, mode)
    assert all((weights[f"layer.{s}.2"] == s * 1000 + 2).all() for s in range(12))


def test_repr_says_how_much_there_is(folder):
    assert repr(open_checkpoint(folder)) == "<Checkpoint 12 files 48 tensors>"


def test_a_closed_checkpoint_has_nothing_open_in_its_folder(folder):
    """An open descriptor would keep a mount from being unmounted."""

    def descriptors():
        found = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        return [path for path in found if path.startswith(os.path.realpath(folder))]

    weights = open_checkpoint(folder)
    assert len(descriptors()) > 1
    weights.close()
    assert descriptors() == []


def test_a_closed_checkpoint_refuses_data_and_still_knows_names(folder):
    weights = open_checkpoint(folder)
    array = weights["layer.5.0"]
    weights.close()
    for ask in (lambda: weights["layer.5.0"], lambda: weights.read("layer.5.0"), weights.check):
        with pytest.raises(ValueError, match="closed"):
            ask()
    assert (array == 5000).all()
    assert (len(weights), weights.info("layer.5.0").shape) == (48, (2, 3))


def test_a_replaced_shard_is_noticed(folder):
    weights = open_checkpoint(folder)
    weights.check()
    write_shards(folder, {shard_name(7, 12): {f"layer.6.{t}": np.zeros((2, 3), "f4") for t in range(4)}})
    with pytest.raises(FileChangedError) as caught:
        weights.check()
    assert caught.value.filename == os.path.join(folder, shard_name(7, 12))
    assert (weights["layer.6.1"] == 6001).all()


def test_a_shard_rewritten_in_place_is_noticed_when_read(folder):
    weights = open_checkpoint(folder)
    path = os.path.join(folder, shard_name(3, 12))
    with open(path, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    with pytest.raises(FileChangedError, match="written to"):
        weights.read("layer.2.0")
    assert (weights.read("layer.1.0") == 1000).all()


def test_a_replaced_index_is_noticed(folder):
    weights = open_checkpoint(folder)
    os.utime(os.path.join(folder, INDEX), ns=(1, 1))
    with pytest.raises(FileChangedError, match="index was rewritten"):
        weights.check()


@pytest.mark.parametrize("limit", ["2KB", "20KB", "10MB"])
def test_checkpoints_that_huggingface_hub_splits_are_read(tmp_path, limit):
    from huggingface_hub import save_torch_state_dict

    generator = torch.Generator().manual_seed(0)
    state = {f"layers.{n}.weight": torch.randn(16, n + 1, generator=generator) for n in range(40)}
    state["half"] = torch.randn(8, generator=generator).to(torch.bfloat16)
    save_torch_state_dict(state, tmp_path, max_shard_size=limit)
    weights = open_checkpoint(tmp_path)
    assert sorted(weights) == sorted(state)
    assert weights.warnings == []
    assert (len(weights.files) == 1) == (limit == "10MB")
    for name, tensor in state.items():
        assert weights[name].tobytes() == tensor.view(torch.uint8).numpy().tobytes()


def test_a_model_of_transformers_is_read_as_transformers_reads_it(tmp_path):
    import transformers

    config = transformers.GPT2Config(n_layer=3, n_head=2, n_embd=32, vocab_size=64, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    with open(tmp_path / INDEX, encoding="utf-8") as file:
        index = json.load(file)
    weights = open_checkpoint(tmp_path)
    assert len(weights.files) > 3
    assert sorted(weights) == sorted(index["weight_map"])
    assert weights.index_metadata == index["metadata"]
    assert weights.metadata == {"format": "pt"}
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).state_dict()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, again[name].numpy())
        expected = safetensors.torch.load_file(weights.info(name).path)[name]
        np.testing.assert_array_equal(array, expected.numpy())


@pytest.mark.parametrize(
    "metadata",
    [
        '{"x": ' + "[" * 1_000_000 + "]" * 1_000_000 + "}",
        '{"total_size": ' + "9" * 5000 + "}",
        '{"total_size": 1e999}',
        '{"total_size": "\\ud800"}',
        '{"total_size": NaN}',
    ],
    ids=["deep", "digits", "range", "surrogate", "nan"],
)
def test_metadata_of_an_index_that_no_reader_takes_is_refused(tmp_path, metadata):
    write_shards(tmp_path, {"a.safetensors": {"a": np.zeros(1, "f4")}})
    write_index(tmp_path, f'{{"metadata": {metadata}, "weight_map": {{"a": "a.safetensors"}}}}')
    with pytest.raises(SafetensorError, match=r"index\.json: invalid index: invalid JSON: "):
        open_checkpoint(tmp_path)


def test_an_index_of_many_missing_files_is_refused_after_the_first_hundred(tmp_path):
    write_index(tmp_path, {f"t{number}": f"f{number}" for number in range(60_000)})
    with pytest.raises(SafetensorError, match=r"1\d\d files are missing: .*; 59\d\d\d more were not tried: "):
        open_checkpoint(tmp_path)
    write_index(tmp_path, {f"t{number}": f"f{number}" for number in range(70_000)})
    with pytest.raises(SafetensorError, match="`weight_map` names more than 65536 files"):
        open_checkpoint(tmp_path)


def test_an_interrupt_stops_the_opening_of_files(tmp_path):
    count = 1500
    source = sharded(tmp_path / "source", shards=count, tensors=1)
    code = PROGRAMS / "checkpoint/an_interrupt_is_heard_while_files_are.py"
    with real.slow_fuse(Path(source), tmp_path / "slow", delay_ms=50) as slow:
        assert output_of(code, slow.path) == "interrupted"
    assert slow.counts["read_requests"] < count


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
            "git-LFS pointer.*git lfs pull",
        ),
        (b"<!DOCTYPE html><html><body>Not found</body></html>", "HTML page"),
        (b"\xef\xbb\xbf\n <HTML>" + bytes(60), "HTML page"),
        (b"GGUF\x03\0\0\0" + bytes(60), "GGUF"),
        (bytes.fromhex("08071207 7079746f726368") + bytes(60), "ONNX"),
        (b'{"metadata": {}, "weight_map": {}}', "JSON text"),
    ],
    ids=["empty", "lfs", "html", "html-bom", "gguf", "onnx", "json"],
)
def test_files_passed_by_mistake_are_named(tmp_path, content, words):
    assert_named(tmp_path, content, words)


def assert_named(folder, content, words):
    path = folder / "model.safetensors"
    path.write_bytes(content)
    pattern = rf"(?s)model\.safetensors: Error while deserializing header: .*; .*{words}"
    with pytest.raises(SafetensorError, match=pattern):
        safe_open(path, "np")
    with pytest.raises(SafetensorError, match=words):
        open_checkpoint(path)
    with pytest.raises(SafetensorError, match=words):
        deserialize(content)


def test_tokens_in_place_of_weights_name_open_tokens(tmp_path):
    content = np.arange(1, 640, dtype="u2").tobytes()
    remedy = "; if it is a token file, open it with open_tokens"
    for suffix in (*TOKEN_SUFFIXES, ".BIN"):
        path = tmp_path / f"train{suffix}"
        path.write_bytes(content)
        for opens in (open_checkpoint, load_state_dict, lambda path: safe_open(path, "np")):
            with pytest.raises(SafetensorError) as caught:
                opens(path)
            assert str(caught.value).endswith(remedy)
    with pytest.raises(FileNotFoundError, match="open token files with open_tokens"):
        open_checkpoint(tmp_path)
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(SafetensorError) as caught:
        open_checkpoint(tmp_path / "model")
    assert "open_tokens" not in str(caught.value)


def test_weights_in_place_of_tokens_name_open_checkpoint(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": np.arange(3.0)}, path)
    for given, error in ((path, FormatError), (tmp_path, FileNotFoundError)):
        with pytest.raises(error, match="with open_checkpoint"):
            open_tokens(given)


def test_files_of_torch_gzip_and_numpy_are_named(tmp_path):
    tensors = {"a": torch.zeros(300)}
    for new, words in ((True, "zip archive"), (False, "Python pickle")):
        torch.save(tensors, tmp_path / "saved.pt", _use_new_zipfile_serialization=new)
        assert_named(tmp_path, (tmp_path / "saved.pt").read_bytes(), words)
    assert_named(tmp_path, pickle.dumps({"a": [1.0] * 99}), "Python pickle")
    assert_named(tmp_path, gzip.compress(safetensors.numpy.save({"a": np.arange(999.0)})), "gzip file")
    buffer = io.BytesIO()
    np.save(buffer, np.arange(99))
    assert_named(tmp_path, buffer.getvalue(), "NumPy file; .* open_tokens")


def test_a_broken_safetensors_file_is_not_taken_for_another_kind(tmp_path):
    whole = safetensors.numpy.save({"a": np.arange(3.0)})
    for length in (0x8B1F, 0x120708, 0x95_04_80, 1 << 60):
        path = tmp_path / "model.safetensors"
        path.write_bytes(length.to_bytes(8, "little") + whole[8:])
        with pytest.raises(SafetensorError) as caught:
            safe_open(path, "np")
        assert "this is a" not in str(caught.value)


def test_an_index_that_is_a_git_lfs_pointer_is_named(tmp_path):
    (tmp_path / INDEX).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")
    with pytest.raises(SafetensorError, match=r"invalid index: .*git-LFS pointer"):
        open_checkpoint(tmp_path)
