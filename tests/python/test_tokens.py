"""`open_tokens`: token files as one axis."""

from __future__ import annotations

import errno
import gc
import io
import os
import pickle
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagestream import TokenCorpus, TokenShard, open_tokens
from pagestream.errors import FileChangedError, FormatError, MappedReadError
from pagestream.tokens.corpus import native_corpus

from support.mappings import mappings_of, place_in_file
from support.token_files import TOKEN_TYPES, shard_lengths, tokens_of, write_shards, write_tokens

FORMATS = ["raw", "npy"]
every_format = pytest.mark.parametrize("format", FORMATS)
every_mode = pytest.mark.parametrize("mode", ["auto", "shared", "private", "read"])


@pytest.fixture
def path(tmp_path):
    """Returns a raw file of 5,000 uint16 tokens."""
    return write_tokens(tmp_path / "tokens.bin", tokens_of("<u2", 5000))


def npy_bytes(array, version=(1, 0)):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def npy_of_header(header, data=b"", version=1, length=None):
    """Returns a .npy file with this header, which claims the header's true length, or `length`."""
    header = header.encode("latin1") if isinstance(header, str) else header
    width = 2 if version == 1 else 4
    length = len(header) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + length.to_bytes(width, "little") + header + data


def written(tmp_path, content, name="file"):
    with open(tmp_path / name, "wb") as file:
        file.write(content)
    return str(tmp_path / name)


@pytest.mark.parametrize("dtype", TOKEN_TYPES)
@every_format
def test_every_type_of_token_is_read_in_every_format(tmp_path, dtype, format):
    expected = tokens_of(dtype, 100)
    corpus = open_tokens(write_tokens(tmp_path / "t", expected, format), dtype=dtype)
    np.testing.assert_array_equal(corpus[:], expected, strict=True)
    np.testing.assert_array_equal(corpus.read(0, 100), expected, strict=True)
    assert [corpus[i] for i in range(100)] == expected.tolist()
    assert corpus.dtype == np.dtype(dtype)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", TOKEN_TYPES)
def test_every_version_of_npy_says_its_type_itself(tmp_path, dtype, version):
    expected = tokens_of(dtype, 100)
    corpus = open_tokens(written(tmp_path, npy_bytes(expected, version)))
    np.testing.assert_array_equal(corpus[:], expected, strict=True)
    assert corpus.shards[0].format == "npy"


def test_raw_files_are_uint16_unless_told_otherwise(path):
    assert open_tokens(path).dtype == np.uint16
    assert len(open_tokens(path, dtype="u4", format="raw")) == 2500


@pytest.mark.parametrize("dtype", [np.uint32, "uint32", "<u4", np.dtype("u4"), "torch.uint32"], ids=str)
def test_a_type_can_be_given_in_all_of_numpys_ways(path, dtype):
    assert open_tokens(path, dtype=dtype, format="raw").dtype == np.dtype("<u4")


@pytest.mark.parametrize("dtype", ["f2", "float64", bool, "c8", "S2", "M8[s]"], ids=str)
@every_format
def test_a_type_that_tokens_do_not_have_is_a_value_error(tmp_path, format, dtype):
    path = write_tokens(tmp_path / "t", tokens_of("<u2", 32), format)
    with pytest.raises(ValueError, match="tokens are of one of the types"):
        open_tokens(path, dtype=dtype)


@every_format
def test_a_big_endian_type_is_refused_and_not_read_in_the_wrong_order(tmp_path, format):
    path = write_tokens(tmp_path / "t", tokens_of("<u2", 32), format)
    with pytest.raises(ValueError, match=r"big-endian|>u2"):
        open_tokens(path, dtype=">u2")


@settings(max_examples=100)
@given(
    lengths=shard_lengths,
    dtype=st.sampled_from(TOKEN_TYPES),
    format=st.sampled_from(FORMATS),
    mode=st.sampled_from(["auto", "private", "read"]),
    data=st.data(),
)
def test_slices_are_those_of_the_concatenation(lengths, dtype, format, mode, data):
    expected = tokens_of(dtype, sum(lengths))
    with tempfile.TemporaryDirectory() as folder:
        corpus = open_tokens(
            write_shards(folder, expected, lengths, format), dtype=dtype, format=format, mmap_mode=mode
        )
        assert len(corpus) == len(expected)
        assert [shard.tokens for shard in corpus.shards] == lengths
        assert [shard.start for shard in corpus.shards] == [0, *np.cumsum(lengths)[:-1].tolist()]
        ends = st.none() | st.integers(-len(expected) - 3, len(expected) + 3)
        steps = st.sampled_from([None, 1, 2, 3, 7, 1000, -1, -2, -5, -1000])
        for _ in range(8):
            index = slice(data.draw(ends), data.draw(ends), data.draw(steps))
            np.testing.assert_array_equal(corpus[index], expected[index], strict=True)
            assert not corpus[index].flags.writeable
        if len(expected):
            number = data.draw(st.integers(-len(expected), len(expected) - 1))
            assert corpus[number] == expected[number]
            start = data.draw(st.integers(0, len(expected)))
            stop = data.draw(st.integers(start, len(expected)))
            np.testing.assert_array_equal(corpus.read(start, stop), expected[start:stop], strict=True)


def test_a_slice_with_step_0_is_a_value_error_as_numpys_is(path):
    with pytest.raises(ValueError, match="zero"):
        open_tokens(path)[::0]


@pytest.mark.parametrize("index", [0, -1, 7, np.int64(7), np.uint16(7), True])
def test_a_token_is_a_python_int(path, index):
    token = open_tokens(path)[index]
    assert type(token) is int
    assert token == tokens_of("<u2", 5000)[int(index)]


@pytest.mark.parametrize("index", [5000, -5001, 1 << 63, -(1 << 63), 1 << 64])
def test_a_token_outside_is_an_index_error_that_names_it(path, index):
    with pytest.raises(IndexError, match=str(index)):
        open_tokens(path)[index]


@pytest.mark.parametrize("index", [1.0, "1", None, (1, 2)], ids=str)
def test_another_kind_of_index_is_a_type_error(path, index):
    with pytest.raises(TypeError):
        open_tokens(path)[index]


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 5001), (5001, 5001), (0, 1 << 64)])
def test_reading_outside_is_an_index_error(path, start, stop):
    with pytest.raises(IndexError, match=f"tokens {start} to {stop} of a corpus of 5000"):
        open_tokens(path).read(start, stop)


@pytest.mark.parametrize(("mode", "permissions"), [("auto", "rw-p"), ("shared", "r--s"), ("private", "rw-p")])
@every_format
def test_a_slice_lies_inside_the_mapping_at_its_place(tmp_path, format, mode, permissions):
    path = write_tokens(tmp_path / "t", tokens_of("<u4", 5000), format)
    corpus = open_tokens(path, dtype="u4", mmap_mode=mode)
    data_start = os.path.getsize(path) - 5000 * 4
    assert place_in_file(corpus[:], path) == (data_start, permissions)
    assert place_in_file(corpus[1234:2000], path) == (data_start + 4 * 1234, permissions)
    assert place_in_file(corpus[10:20:3][:1], path) == (data_start + 40, permissions)


def test_reads_are_the_callers_own(path):
    corpus = open_tokens(path)
    copy = corpus.read(3, 9)
    assert copy.flags.writeable
    assert place_in_file(copy, path) is None
    copy[:] = 0
    np.testing.assert_array_equal(corpus[3:9], tokens_of("<u2", 9)[3:])


@every_mode
def test_slices_cannot_be_written(path, mode):
    corpus = open_tokens([path, path], mmap_mode=mode)
    for part in (corpus[:10], corpus[4990:5010], corpus[::-1], corpus[:0]):
        with pytest.raises(ValueError, match="read-only"):
            part[...] = 0


@every_mode
@pytest.mark.parametrize("lengths", [[500], [200, 0, 300]])
def test_numpy_makes_an_array_of_a_corpus_natively(tmp_path, mode, lengths, monkeypatch):
    tokens = tokens_of("<u2", sum(lengths))
    corpus = open_tokens(write_shards(tmp_path, tokens, lengths), mmap_mode=mode)
    monkeypatch.setattr(TokenCorpus, "__getitem__", None)  # reading token by token would take far too long
    for array in (np.asarray(corpus), np.array(corpus), np.array(corpus, copy=True)):
        np.testing.assert_array_equal(array, tokens, strict=True)
        assert array.flags.writeable
        assert array.flags.owndata
    np.testing.assert_array_equal(np.asarray(corpus, "i8"), tokens.astype("i8"), strict=True)
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        return  # its asarray has no argument `copy`
    if mode != "read" and len(lengths) == 1:
        view = np.asarray(corpus, copy=False)
        np.testing.assert_array_equal(view, tokens, strict=True)
        assert not view.flags.writeable
        assert not view.flags.owndata
    else:
        with pytest.raises(ValueError, match="copy=False"):
            np.asarray(corpus, copy=False)
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(corpus, "i8", copy=False)


def test_only_a_range_across_files_is_copied(tmp_path):
    tokens = tokens_of("<u2", 300)
    first, empty, second = write_shards(tmp_path, tokens, [100, 0, 200])
    corpus = open_tokens([first, empty, second])
    assert place_in_file(corpus[:100], first)[0] == 0
    assert place_in_file(corpus[100:], second)[0] == 0
    across = corpus[99:101]
    assert place_in_file(across, first) is place_in_file(across, second) is None
    np.testing.assert_array_equal(across, tokens[99:101])


def test_a_slice_outlives_its_corpus_and_then_lets_the_mapping_go(path):
    corpus = open_tokens(path)
    part = corpus[100:200]
    corpus.close()
    del corpus
    gc.collect()
    np.testing.assert_array_equal(part, tokens_of("<u2", 200)[100:])
    assert mappings_of(path)
    del part
    gc.collect()
    assert mappings_of(path) == []


def test_a_closed_corpus_refuses_and_says_so(path):
    corpus = open_tokens(path)
    corpus.close()
    for ask in (lambda: corpus[0], lambda: corpus[:10], lambda: corpus.read(0, 1), corpus.check):
        with pytest.raises(ValueError, match="closed"):
            ask()
    assert len(corpus) == 5000


def test_shards_tell_what_was_opened(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = open_tokens(["tokens.bin", path])
    assert corpus.shards == (
        TokenShard(path, "raw", 5000, 0, "shared", None, 0, 5000),
        TokenShard(path, "raw", 5000, 5000, "shared", None, 0, 5000),
    )
    assert corpus.documents is None


@pytest.mark.parametrize(
    ("asked", "found"), [("auto", "shared"), ("shared", "shared"), ("private", "private"), ("read", "read")]
)
def test_the_mode_in_use_is_told(path, asked, found):
    corpus = open_tokens(path, mmap_mode=asked)
    assert [(shard.mode, shard.reason) for shard in corpus.shards] == [(found, None)]
    assert bool(mappings_of(path)) == (found != "read")


@every_mode
@every_format
def test_a_file_without_tokens_is_an_empty_corpus(tmp_path, format, mode):
    corpus = open_tokens(
        write_tokens(tmp_path / "t", tokens_of("<u2", 0), format), format=format, mmap_mode=mode
    )
    assert len(corpus) == 0
    np.testing.assert_array_equal(corpus[:], np.zeros(0, "<u2"), strict=True)
    with pytest.raises(IndexError):
        corpus[0]


# Refusals


@pytest.mark.parametrize(
    ("dtype", "size"), [("u2", 1), ("u2", 9999), ("u4", 6), ("u8", 12), ("i4", 3), ("i8", 7)]
)
def test_a_raw_file_of_an_odd_size_is_refused_with_its_size_and_type(tmp_path, dtype, size):
    path = written(tmp_path, bytes(size))
    with pytest.raises(FormatError, match=f"{size} bytes.*{np.dtype(dtype).name}") as caught:
        open_tokens(path, dtype=dtype)
    assert str(caught.value).startswith(f"{path}: ")


DICT = "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }"
TOKENS = bytes(6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy_bytes(np.zeros((2, 3), "<u2")), r"shape \[2, 3\].*one-dimensional"),
        (npy_bytes(np.zeros((2, 3), "<u2", order="F")), "one-dimensional"),
        (npy_bytes(np.array(5, "<u2")), r"shape \[\].*one-dimensional"),
        (npy_bytes(np.zeros(3, "<f4")), '"<f4"'),
        (npy_bytes(np.zeros(3, "<f2")), '"<f2"'),
        (npy_bytes(np.zeros(3, bool)), r'"\|b1"'),
        (npy_bytes(np.zeros(3, "<U1")), '"<U1"'),
        (npy_bytes(np.zeros(3, ">u2")), "big-endian"),
        (npy_bytes(np.zeros(3, [("a", "<u2"), ("b", "<u4")])), "structured"),
        (npy_of_header(DICT.replace("<u2", "|O"), TOKENS), r'"\|O"'),
        (npy_bytes(np.zeros(3, "<u2"))[:-1], "3 tokens of type uint16.*134 bytes, but it has 133"),
        (npy_bytes(np.zeros(3, "<u2")) + b"\0", "134 bytes, but it has 135"),
        (npy_bytes(np.zeros(3, "<u2"))[:60], "cut off"),
        (npy_bytes(np.zeros(3, "<u2"))[:9], "cut off"),
        (b"\x93NUMPY", "cut off"),
        (b"\x93NUMPY\2\0\0\0", "cut off"),
        (b"\x93NUMPY\4\0\0\0\0\0", "version 4"),
        (npy_of_header(DICT, TOKENS, 2, (1 << 32) - 1), "claims 4294967295 bytes"),
        (npy_of_header(DICT, TOKENS, 3, 10_001), "claims 10001 bytes"),
        (npy_of_header(DICT, TOKENS, 1, 9_999), "cut off"),
        (npy_of_header("", TOKENS), "cannot be understood"),
        (npy_of_header("__import__('os')._exit(1)", TOKENS), "cannot be understood"),
        (npy_of_header(DICT.encode() + b"\xff", TOKENS), "not text"),
        (npy_of_header(DICT.replace("(3,)", "(-3,)"), TOKENS), "cannot be understood"),
        (npy_of_header(DICT.replace("(3,)", f"({1 << 63},)"), TOKENS), "more than 2\\^64"),
        (npy_of_header(DICT.replace("(3,)", f"({1 << 64},)"), TOKENS), "cannot be understood"),
        (npy_of_header(DICT.replace("(3,)", f"({'1, ' * 3000})"), TOKENS), "one-dimensional"),
    ],
)
def test_a_npy_file_that_holds_no_tokens_is_refused_with_the_cause(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(FormatError, match=f"(?s){message}") as caught:
        open_tokens(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 12_000


def test_fortran_order_means_nothing_in_one_dimension(tmp_path):
    path = written(tmp_path, npy_of_header(DICT.replace("False", "True"), b"\1\0\2\0\3\0"))
    np.testing.assert_array_equal(open_tokens(path)[:], [1, 2, 3])


def test_a_type_that_disagrees_with_the_header_is_refused(tmp_path):
    path = written(tmp_path, npy_bytes(np.zeros(4, "<u4")))
    with pytest.raises(FormatError, match=r"holds uint32 tokens, but dtype=uint16"):
        open_tokens(path, dtype="u2")


def test_raw_reads_a_npy_file_from_its_first_byte_and_npy_no_raw_file(tmp_path, path):
    content = npy_bytes(np.zeros(3, "<u2"))
    raw = open_tokens(written(tmp_path, content), format="raw")
    assert raw[:].tobytes() == content
    with pytest.raises(FormatError, match="does not begin with"):
        open_tokens(path, format="npy")
    with pytest.raises(ValueError, match="parquet"):
        open_tokens(path, format="parquet")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (npy_bytes(np.zeros(3, "<u2")), npy_bytes(np.zeros(3, "<u4")), ["uint16", "uint32"]),
        (npy_bytes(np.zeros(3, "<u2")), npy_bytes(np.zeros(3, "<i2")), ["uint16", "int16"]),
        (bytes(6), npy_bytes(np.zeros(3, "<u2")), ["raw", "npy"]),
        (npy_bytes(np.zeros(3, "<u2")), bytes(6), ["raw", "npy"]),
    ],
)
def test_files_that_do_not_agree_are_refused_and_both_named(tmp_path, first, second, words):
    paths = [written(tmp_path, first, "first"), written(tmp_path, second, "second")]
    with pytest.raises(FormatError) as caught:
        open_tokens(paths)
    assert all(word in str(caught.value) for word in [*words, *paths])


def test_no_files_are_a_value_error():
    with pytest.raises(ValueError, match="no token files"):
        open_tokens([])


@pytest.mark.parametrize(
    ("name", "error", "number"),
    [("missing", FileNotFoundError, errno.ENOENT), ("", IsADirectoryError, errno.EISDIR)],
)
def test_what_cannot_be_opened_has_errno_and_filename(path, tmp_path, name, error, number):
    asked = os.path.join(tmp_path, name)
    with pytest.raises(error) as caught:
        open_tokens([path, asked])
    assert (caught.value.errno, caught.value.filename) == (number, asked)


@pytest.mark.parametrize("wrap", [str, os.fsencode, lambda path: path], ids=["str", "bytes", "path"])
def test_every_kind_of_path_opens_alone_and_in_a_list(tmp_path, path, wrap):
    given_path = wrap(tmp_path / "tokens.bin")
    assert len(open_tokens(given_path)) == 5000
    assert len(open_tokens((given_path, given_path))) == 10000


# Files that change


@every_mode
def test_a_file_that_was_cut_is_an_error_of_read_with_path_and_offset(path, mode):
    corpus = open_tokens(path, mmap_mode=mode)
    os.truncate(path, 4096)
    for ask in (lambda: corpus.read(0, 5000), lambda: corpus[4999]):
        with pytest.raises(MappedReadError, match="truncated") as caught:
            ask()
        assert caught.value.filename == path
        assert caught.value.offset >= 4096
    with pytest.raises(FileChangedError, match="truncated"):
        corpus.check()


@every_mode
def test_a_pickle_ships_paths_and_opens_them_again(tmp_path, mode, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = tokens_of("<u4", 100_000)
    write_shards(tmp_path, expected, [60_000, 40_000])
    corpus = open_tokens(["shard0", "shard1"], dtype="u4", mmap_mode=mode)
    shipped = pickle.dumps(corpus)
    assert len(shipped) < 1000
    monkeypatch.chdir("/")
    again = pickle.loads(shipped)
    np.testing.assert_array_equal(again[59_000:61_000], expected[59_000:61_000], strict=True)
    assert again.shards == corpus.shards


def test_a_pickle_keeps_the_format_that_was_asked_for(tmp_path):
    content = npy_bytes(np.zeros(3, "<u2"))
    again = pickle.loads(pickle.dumps(open_tokens(written(tmp_path, content), format="raw")))
    assert again[:].tobytes() == content


@pytest.mark.parametrize("size", [0, 9998, 10002])
def test_a_file_that_changed_its_size_since_pickling_is_refused(path, size):
    shipped = pickle.dumps(open_tokens([path, path]))
    os.truncate(path, size)
    with pytest.raises(FileChangedError, match=f"{size // 2} tokens, but had 5000") as caught:
        pickle.loads(shipped)
    assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, path)


def test_a_file_that_is_gone_since_pickling_is_refused(path):
    shipped = pickle.dumps(open_tokens(path))
    os.unlink(path)
    with pytest.raises(FileNotFoundError) as caught:
        pickle.loads(shipped)
    assert caught.value.filename == path


@pytest.mark.parametrize("shift", [0, 1, 31])
def test_a_batch_whose_x_and_y_overlap_is_refused(token_file, shift):
    """Two threads could write at the same time, and the values would be wrong."""
    memory = np.zeros(64, "i8")
    corpus = native_corpus(open_tokens(token_file))
    with pytest.raises(ValueError, match="x and y overlap"):
        corpus.assemble([0, 1], 16, 16, "shift", "int64", None, memory[:32], memory[shift : shift + 32])
    x, y = memory[:32], memory[32:]
    corpus.assemble([0, 1], 16, 16, "shift", "int64", None, x, y)
    assert (x == np.arange(32)).all()
    assert (y == np.arange(1, 33)).all()
