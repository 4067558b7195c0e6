"""llm.c, Megatron, datatrove and headerless files: accepted files, refused files, and their errors."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pagestream import TokenLoader, open_tokens
from pagestream.cli._app import app
from pagestream.errors import FormatError, PagestreamError

from support.token_files import TOKEN_TYPES, tokens_of
from support.token_formats import (
    MEGATRON_CODES,
    llmc_bytes,
    megatron_index,
    write_datatrove,
    write_file,
    write_megatron,
)

every_mode = pytest.mark.parametrize("mode", ["auto", "private", "read"])
U2 = tokens_of("<u2", 9)


# llm.c


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@pytest.mark.parametrize("rest", [b"\0", b"\xff", b"\xa5\x01\x02"], ids=["zero", "ones", "rubbish"])
@every_mode
def test_llmc_shards_are_read_whatever_the_unused_words_of_the_header_hold(tmp_path, dtype, rest, mode):
    expected = tokens_of(dtype, 300)
    path = write_file(tmp_path / "shard.bin", llmc_bytes(expected, rest=rest))
    for asked in (None, "llmc"):
        corpus = open_tokens(path, format=asked, mmap_mode=mode)
        np.testing.assert_array_equal(corpus[:], expected, strict=True)
        np.testing.assert_array_equal(corpus.read(100, 200), expected[100:200], strict=True)
        assert corpus.shards[0].format == "llmc"
        assert corpus.documents is None


def test_an_llmc_shard_without_tokens_is_empty(tmp_path):
    assert len(open_tokens(write_file(tmp_path / "s", llmc_bytes(np.zeros(0, "u2"))))) == 0


# Megatron


@pytest.mark.parametrize("dtype", TOKEN_TYPES)
@pytest.mark.parametrize("name", ["{}", "{}.bin", "{}.idx"])
def test_a_megatron_pair_is_named_by_either_file_or_their_stem(tmp_path, dtype, name):
    expected = tokens_of(dtype, 10)
    stem = write_megatron(tmp_path / "v1.5_text", expected, [4, 0, 6])
    for asked in (None, "megatron"):
        corpus = open_tokens(name.format(stem), format=asked)
        np.testing.assert_array_equal(corpus[:], expected, strict=True)
        assert (corpus.shards[0].format, corpus.shards[0].path) == ("megatron", f"{stem}.bin")
        assert [document.tolist() for document in corpus.documents] == [
            expected[:4].tolist(),
            [],
            expected[4:].tolist(),
        ]


def test_megatrons_arrays_are_not_aligned_and_modes_may_follow(tmp_path):
    stem = write_megatron(tmp_path / "t", U2, [2, 3, 4], modes=bytes(3))
    assert os.path.getsize(f"{stem}.idx") == 34 + 12 * 3 + 8 * 4 + 3
    corpus = open_tokens(stem)
    assert corpus.documents.starts.tolist() == [0, 2, 5, 9]


def test_a_megatron_pair_without_sequences_is_empty(tmp_path):
    corpus = open_tokens(write_megatron(tmp_path / "t", U2[:0], []))
    assert (len(corpus), len(corpus.documents)) == (0, 0)
    assert corpus.documents.starts.tolist() == [0]


def test_the_bin_of_a_pair_opens_raw_if_it_is_asked_for(tmp_path):
    write_megatron(tmp_path / "m", U2, [9])
    assert open_tokens(tmp_path / "m.bin", format="raw").shards[0].format == "raw"


# datatrove


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@every_mode
def test_datatrove_files_are_read_with_and_without_their_side_files(tmp_path, dtype, mode):
    expected = tokens_of(dtype, 9)
    size = expected.itemsize
    complete = write_datatrove(tmp_path / "a.ds", expected, [2, 2, 9], f"gpt2|{size}\n9\n9 tokens")
    corpus = open_tokens(complete, mmap_mode=mode)
    np.testing.assert_array_equal(corpus[:], expected, strict=True)
    assert corpus.shards[0].format == "datatrove"
    assert [len(document) for document in corpus.documents] == [2, 0, 7]
    bare = write_datatrove(tmp_path / "b.ds", expected)
    corpus = open_tokens(bare, dtype=dtype, mmap_mode=mode)
    np.testing.assert_array_equal(corpus[:], expected, strict=True)
    assert corpus.documents is None
    # The index alone determines the size of a token too.
    indexed = write_datatrove(tmp_path / "c.ds", expected, [9])
    assert open_tokens(indexed, mmap_mode=mode).dtype == np.dtype(dtype)


def test_datatrove_files_of_other_names_are_read_if_asked_for(tmp_path):
    path = write_datatrove(tmp_path / "tokens", tokens_of("<u4", 5), [5], "a|b|4\n5\n5")
    assert open_tokens(path).shards[0].format == "raw"
    corpus = open_tokens(path, format="datatrove")
    assert (corpus.dtype, len(corpus)) == (np.dtype("u4"), 5)


def test_files_disagree_about_documents_then_the_corpus_has_none(tmp_path):
    first = write_datatrove(tmp_path / "a.ds", U2, [4, 9])
    second = write_datatrove(tmp_path / "b.ds", U2)
    assert open_tokens([first]).documents is not None
    assert open_tokens([first, second]).documents is None


# OLMo and dolma


def test_a_npy_without_numpys_magic_is_raw_and_a_real_one_is_not(tmp_path):
    expected = tokens_of("<u4", 50)
    bare = write_file(tmp_path / "part-0.npy", expected.tobytes())
    corpus = open_tokens(bare, dtype="u4")
    np.testing.assert_array_equal(corpus[:], expected, strict=True)
    assert corpus.shards[0].format == "raw"
    np.save(tmp_path / "real.npy", expected)
    assert open_tokens(tmp_path / "real.npy").shards[0].format == "npy"


# Documents


@settings(max_examples=60)
@given(data=st.data())
def test_documents_are_those_of_the_naive_reading(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("d")
    paths, expected = [], []
    for number in range(data.draw(st.integers(1, 4))):
        documents = data.draw(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=8))
        lengths = [length for sequences in documents for length in sequences]
        tokens = tokens_of("<u2", sum(lengths), start=100 * number)
        firsts = np.cumsum([0, *map(len, documents)])
        paths.append(write_megatron(folder / f"s{number}", tokens, lengths, firsts))
        ends = np.cumsum([sum(sequences) for sequences in documents])
        expected += [part.tolist() for part in np.split(tokens, ends[:-1])] if documents else []
    corpus = open_tokens(paths, mmap_mode=data.draw(st.sampled_from(["auto", "read"])))
    documents = corpus.documents
    assert [document.tolist() for document in documents] == expected
    assert (
        documents.starts.tolist() == [0, *np.cumsum([len(d) for d in expected]).tolist()][: len(expected) + 1]
    )
    assert documents.starts.dtype == np.uint64
    if expected:
        number = data.draw(st.integers(-len(expected), len(expected) - 1))
        assert documents[number].tolist() == expected[number]
        assert not documents[number].flags.writeable
    ends = st.none() | st.integers(-10, 10)
    index = slice(data.draw(ends), data.draw(ends), data.draw(st.sampled_from([None, 1, 2, -1])))
    assert [document.tolist() for document in documents[index]] == expected[index]
    for outside in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError, match=f"document {outside} of {len(expected)}"):
            documents[outside]


# Refusals


def pair(tokens=U2, lengths=(2, 3, 4), documents=None, **changes):
    return lambda folder: f"{write_megatron(folder / 't', tokens, lengths, documents, **changes)}.bin"


def index_only(content):
    return lambda folder: write_file(folder / "t.idx", content)


def index_with(edit, tokens=U2):
    """Returns a valid pair whose index was edited byte by byte."""

    def write(folder):
        stem = write_megatron(folder / "t", tokens, [2, 3, 4])
        with open(f"{stem}.idx", "rb") as file:
            content = edit(bytearray(file.read()))
        write_file(f"{stem}.idx", content)
        return f"{stem}.idx"

    return write


def put(offset, value, layout="<Q"):
    def edit(content):
        struct.pack_into(layout, content, offset, value)
        return bytes(content)

    return edit


def single(name, content):
    return lambda folder: write_file(folder / name, content)


def trove(ends=None, metadata=None, tokens=U2):
    return lambda folder: write_datatrove(folder / "t.ds", tokens, ends, metadata)


def litdata(folder):
    write_file(folder / "index.json", b"{}")
    return write_file(folder / "chunk-0-0.bin", bytes(64))


# Lengths start at byte 34, pointers at 46, and documents at 70.
def fairseq_pair(folder):
    np.array([1, 2, 3], "u2").tofile(folder / "t.bin")
    (folder / "t.idx").write_bytes(b"TNTIDX\0\0" + bytes(40))
    return folder / "t.bin"


BAD = {
    # llm.c: each case names the file, the value found and the value expected
    "llmc: cut off in the header": (single("t.bin", llmc_bytes(U2)[:500]), "t.bin", ["500", "1024"]),
    "llmc: cut off after the magic": (single("t.bin", llmc_bytes(U2)[:4]), "t.bin", ["4 bytes", "1024"]),
    "llmc: other version": (single("t.bin", llmc_bytes(U2, version=2)), "t.bin", ["version 2", "version 1"]),
    "llmc: version of the other magic": (
        single("t.bin", llmc_bytes(U2.astype("u4"), version=1)),
        "t.bin",
        ["version 1", "version 7"],
    ),
    "llmc: negative count": (
        single("t.bin", llmc_bytes(U2, count=-1)),
        "t.bin",
        ["-1 tokens", "0 to 2147483647"],
    ),
    "llmc: count too small": (single("t.bin", llmc_bytes(U2, count=8)), "t.bin", ["1040", "1042"]),
    "llmc: count too large": (single("t.bin", llmc_bytes(U2, count=10)), "t.bin", ["1044", "1042"]),
    "llmc: count of a huge file": (
        single("t.bin", llmc_bytes(U2, count=2**31 - 1)),
        "t.bin",
        ["4294968318", "1042"],
    ),
    "llmc: one byte short": (single("t.bin", llmc_bytes(U2)[:-1]), "t.bin", ["1042", "1041"]),
    "llmc: uint32 tokens under the uint16 magic": (
        single("t.bin", llmc_bytes(U2.astype("u4"), 20240520, 1)),
        "t.bin",
        ["1042", "1060"],
    ),
    "llmc: evaluation file": (single("t.bin", llmc_bytes(U2, 20240522)), "t.bin", ["evaluation", "raw"]),
    # Megatron's header
    "megatron: index cut off in the magic": (
        pair(magic=b"MMIDIDX\0\0", version=0),
        "t.idx",
        ["version 0", "expected 1"],
    ),
    "megatron: Fast-LLM version 2": (pair(version=2), "t.idx", ["version 2", "Fast-LLM", "version 1"]),
    "megatron: Fast-LLM version 3": (pair(version=3), "t.idx", ["version 3", "Fast-LLM", "version 1"]),
    "megatron: later version": (pair(version=4), "t.idx", ["version 4", "expected 1"]),
    "megatron: byte-swapped version": (pair(version=1 << 56), "t.idx", ["72057594037927936", "expected 1"]),
    "megatron: header cut off": (
        index_with(lambda content: bytes(content[:33])),
        "t.idx",
        ["33 bytes", "34"],
    ),
    "megatron: header only": (index_with(lambda content: bytes(content[:34])), "t.idx", ["102", "34"]),
    "megatron: float64 or float32, code 6": (pair(code=6), "t.idx", ["code 6", "float", "1 to 5"]),
    "megatron: float32 or float64, code 7": (pair(code=7), "t.idx", ["code 7", "float", "1 to 5"]),
    "megatron: code 0": (pair(code=0), "t.idx", ["code 0", "1 to 5"]),
    "megatron: code 255": (pair(code=255), "t.idx", ["code 255", "1 to 5"]),
    "megatron: one byte short": (index_with(lambda content: bytes(content[:-1])), "t.idx", ["102", "101"]),
    "megatron: one byte long": (index_with(lambda content: bytes(content) + b"\0"), "t.idx", ["102", "103"]),
    "megatron: more sequences than there are": (pair(sequences=4), "t.idx", ["4 sequences", "114", "102"]),
    "megatron: 2^64-1 sequences": (
        pair(sequences=2**64 - 1),
        "t.idx",
        ["18446744073709551615", "more than 2^64", "102"],
    ),
    "megatron: 2^61 documents": (
        pair(entries=2**61),
        "t.idx",
        ["2305843009213693952", "more than 2^64", "102"],
    ),
    "megatron: 10^12 sequences": (
        pair(sequences=10**12),
        "t.idx",
        ["1000000000000 ", "12000000000066", "102"],
    ),
    # The ends of the index's arrays
    "megatron: negative first pointer": (index_with(put(46, -2, "<q")), "t.idx", ["byte -2", "0 or more"]),
    "megatron: pointer between two tokens": (index_with(put(54, 5)), "t.idx", ["byte 5", "multiple of 2"]),
    "megatron: last pointer too far": (index_with(put(62, 12)), "t.idx", ["byte 20", "18 bytes"]),
    "megatron: last pointer overflowed": (
        index_with(put(62, -(2**31), "<q")),
        "t.idx",
        ["sequence 2", "-2147483648", "expected 0 or more"],
    ),
    "megatron: last pointer huge": (
        index_with(put(62, 2**63 - 2)),
        "t.idx",
        ["9223372036854775814", "18 bytes"],
    ),
    "megatron: last length negative": (
        index_with(put(42, -4, "<i")),
        "t.idx",
        ["sequence 2", "-4 tokens", "expected 0 or more"],
    ),
    "megatron: a length negative in the middle": (
        index_with(put(38, -1, "<i")),
        "t.idx",
        ["sequence 1", "-1 tokens", "expected 0 or more"],
    ),
    "megatron: a length negative between pointers that agree": (
        pair(lengths=(2, -1, 8)),
        "t.idx",
        ["sequence 1", "-1 tokens", "expected 0 or more"],
    ),
    "megatron: .bin too short": (pair(tokens=U2[:8]), "t.idx", ["sequence 2", "byte 18", "16 bytes"]),
    "megatron: .bin empty": (pair(tokens=U2[:0]), "t.idx", ["sequence 0", "byte 4", "0 bytes"]),
    "megatron: .bin with half a token": (
        lambda folder: (pair()(folder), write_file(folder / "t.bin", bytes(17)))[0],
        "t.idx",
        ["17 bytes", "whole number of tokens of 2 bytes"],
    ),
    "megatron: no sequences but tokens": (pair(lengths=()), "t.idx", ["0 tokens", "18 bytes"]),
    "megatron: no document entries": (pair(documents=[]), "t.idx", ["no document entries", "at least one"]),
    "megatron: first document": (pair(documents=[1, 2, 3]), "t.idx", ["document 0 is 1", "expected 0"]),
    "megatron: last document": (pair(documents=[0, 1, 2]), "t.idx", ["document 2 is 2", "expected 3"]),
    "megatron: last document too far": (
        pair(documents=[0, 1, 4]),
        "t.idx",
        ["document 2 is 4", "expected 3"],
    ),
    "megatron: index without tokens": (
        index_only(megatron_index([1], [0, 1], 2, 8)),
        "t.idx",
        ["t.bin does not exist", "expected both"],
    ),
    # Indexes of other formats
    "fairseq index": (index_only(b"TNTIDX\0\0" + bytes(40)), "t.idx", ["gpt-neox", "convert"]),
    "the tokens of a fairseq index": (
        fairseq_pair,
        "t.bin",
        ["t.idx next to it", "gpt-neox", 'format="raw"'],
    ),
    "an index of no known kind": (index_only(bytes(40)), "t.idx", ["no Megatron index", "raw"]),
    # datatrove
    "datatrove: odd size": (single("t.ds", bytes(3)), "t.ds", ["3 bytes", "2 bytes"]),
    "datatrove: index of an odd size": (
        lambda folder: (
            write_file(folder / "t.ds.index", bytes(12)),
            write_file(folder / "t.ds", U2.tobytes()),
        )[1],
        "t.ds.index",
        ["12 bytes", "8 bytes"],
    ),
    "datatrove: index ends early": (trove([2, 8]), "t.ds.index", ["token 8", "9 of type uint16"]),
    "datatrove: index ends late": (trove([2, 10]), "t.ds.index", ["token 10", "9 of type uint16"]),
    "datatrove: empty index of a full file": (trove([]), "t.ds.index", ["token 0", "9 of type uint16"]),
    "datatrove: count of the metadata": (
        trove([9], "gpt2|2\n8\n8"),
        "t.ds.metadata",
        ["8 tokens", "9 of type uint16"],
    ),
    "datatrove: token size of the metadata": (
        trove([9], "gpt2|3\n9\n9"),
        "t.ds.metadata",
        ['"3" bytes', "2 or 4"],
    ),
    "datatrove: metadata of 4 bytes over 2": (
        trove(None, "gpt2|4\n9\n9"),
        "t.ds",
        ["18 bytes", "uint32 tokens of 4"],
    ),
    "datatrove: metadata that is no text": (
        trove([9], b"\xff\xfe\n"),
        "t.ds.metadata",
        ["not text", "expected"],
    ),
    "datatrove: count that is no number": (
        trove([9], "gpt2|2\nmany\n"),
        "t.ds.metadata",
        ['"many"', "expected a number"],
    ),
    "datatrove: huge metadata": (trove([9], b"x" * 70_000), "t.ds.metadata", ["70000 bytes", "65536"]),
    "datatrove: the index itself": (
        single("t.ds.index", bytes(16)),
        "t.ds.index",
        ["not tokens", "give the .ds file"],
    ),
    "datatrove: the metadata itself": (
        single("t.ds.metadata", b"gpt2|2\n9\n"),
        "t.ds.metadata",
        ["not tokens", "give the .ds"],
    ),
    "datatrove: the loss mask": (single("t.ds.loss", bytes(16)), "t.ds.loss", ["not tokens", "give the .ds"]),
    # Other formats
    "mds": (single("shard.00000.mds", bytes(64)), "shard.00000.mds", ["MosaicML", "export"]),
    "litdata": (litdata, "chunk-0-0.bin", ["LitData", "index.json"]),
    "parquet": (single("t.bin", b"PAR1" + bytes(60)), "t.bin", ["Parquet", "raw"]),
    "arrow": (single("t.bin", b"ARROW1\0\0" + bytes(60)), "t.bin", ["Arrow", "raw"]),
    "pickle": (single("meta.pkl", bytes(64)), "meta.pkl", ["pickle", ".bin"]),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("mode", ["auto", "read"])
def test_a_bad_file_is_refused_with_path_found_and_expected(tmp_path, case, mode):
    write, name, words = BAD[case]
    path = write(tmp_path)
    with pytest.raises(FormatError) as caught:
        open_tokens(path, mmap_mode=mode)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / name}: ")
    assert [word for word in words if word not in message] == [], message
    assert isinstance(caught.value, (ValueError, PagestreamError))


def test_a_raw_file_next_to_a_fairseq_index_opens_if_it_is_asked_for(tmp_path):
    path = fairseq_pair(tmp_path)
    assert open_tokens(path, format="raw")[:].tolist() == [1, 2, 3]


DISAGREE = {
    "npy": (lambda folder: (np.save(folder / "t.npy", U2), folder / "t.npy")[1], "int32", "uint16"),
    "llmc": (single("t.bin", llmc_bytes(U2)), "uint32", "uint16"),
    "llmc of Llama 3": (single("t.bin", llmc_bytes(U2.astype("u4"))), "uint16", "uint32"),
    "megatron": (pair(), "int32", "uint16"),
    "datatrove": (trove([9], "gpt2|2\n9\n9"), "uint32", "uint16"),
}


@pytest.mark.parametrize("case", DISAGREE)
def test_a_dtype_that_disagrees_with_the_header_is_refused_naming_both(tmp_path, case):
    write, asked, found = DISAGREE[case]
    path = write(tmp_path)
    with pytest.raises(FormatError, match=f"holds {found} tokens, but dtype={asked} was asked for"):
        open_tokens(path, dtype=asked)
    assert open_tokens(path, dtype=found).dtype == found


@pytest.mark.parametrize("format", ["npy", "llmc", "megatron"])
def test_a_format_that_was_asked_for_is_not_given_up_silently(tmp_path, format):
    path = write_file(tmp_path / "t.bin", U2.tobytes())
    expected = FileNotFoundError if format == "megatron" else FormatError
    with pytest.raises(expected, match=r"t\.(bin|idx)"):
        open_tokens(path, format=format)


# An index checks all of its documents when they are first requested.

DAMAGED = {
    "megatron: beyond the sequences": (index_with(put(78, 7)), "t.idx", ["document 2", "is 2", "7 or more"]),
    "megatron: negative": (index_with(put(78, -1, "<q")), "t.idx", ["document 1 is -1", "0 or more"]),
    "megatron: not sorted": (index_with(put(78, 3)), "t.idx", ["document 2 is 2", "expected 3 or more"]),
    "datatrove: beyond the tokens": (trove([10, 9]), "t.ds.index", ["document 1 is 9", "10 or more"]),
    "datatrove: not sorted": (trove([5, 3, 9]), "t.ds.index", ["document 1 is 3", "5 or more"]),
    "datatrove: negative": (trove([2**64 - 5, 9]), "t.ds.index", ["document 0 is -5", "0 or more"]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_list_of_documents_is_refused_wherever_it_is_used(tmp_path, case):
    write, name, words = DAMAGED[case]
    path = write(tmp_path)
    np.testing.assert_array_equal(open_tokens(path)[:], U2)
    loader = TokenLoader(
        open_tokens(path), sequence_length=2, batch_size=1, documents="boundaries", order="sequential"
    )
    with loader:
        for ask in (
            lambda: open_tokens(path).documents[0],
            lambda: open_tokens(path).documents.starts,
            lambda: list(open_tokens(path).documents),
            lambda: next(loader),
        ):
            with pytest.raises(FormatError) as caught:
                ask()
            assert str(caught.value).startswith(f"{tmp_path / name}: ")
            assert [word for word in words if word not in str(caught.value)] == [], caught.value
    for command in ("verify", "info"):
        shown = CliRunner().invoke(app, [command, str(path)])
        assert shown.exit_code != 0
        assert words[0] in " ".join((shown.output + shown.stderr).split())


def test_one_wrong_document_of_a_long_list_is_found_before_the_first_batch(tmp_path):
    lengths = np.full(10_001, 3)
    entries = np.arange(len(lengths) + 1)
    entries[7_000] = 2
    stem = write_megatron(tmp_path / "t", np.zeros(lengths.sum(), "<u2"), lengths, entries)
    options = {"sequence_length": 5, "batch_size": 1, "documents": "boundaries", "order": "sequential"}
    with (
        TokenLoader(stem, **options) as loader,
        pytest.raises(FormatError, match=r"document 7000 is 2, expected 6999 or more"),
    ):
        next(loader)


def test_the_tests_cover_the_codes_of_all_types():
    assert sorted(MEGATRON_CODES.values()) == [1, 2, 3, 4, 5, 8, 9, 10]
    assert len(BAD) >= 40
