"""Corpora of many files: paths, limited descriptors and mappings, changed files, fingerprints."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pagestream
from pagestream import MappedFile, open_tokens
from pagestream.errors import FileChangedError, FormatError

from support.process import PROGRAMS, output_of
from support.token_files import tokens_of, write_shards, write_tokens
from support.token_formats import llmc_bytes, write_datatrove, write_file, write_megatron

U2 = tokens_of("<u2", 6)


def names(corpus):
    return [os.path.basename(shard.path) for shard in corpus.shards]


def put(folder, *names, tokens=U2):
    for name in names:
        write_tokens(folder / name, tokens)


# Paths


@pytest.mark.parametrize("wrap", [str, os.fsencode, lambda path: path], ids=["str", "bytes", "path"])
def test_a_directory_means_its_token_files_in_natural_order(tmp_path, wrap):
    put(tmp_path, "s10.bin", "s9.bin", "s100.bin", "S1.bin", "s9a.bin", "s09b.bin")
    put(tmp_path, "meta.pkl", "README.md", "notes.txt", ".hidden.bin", "index.json", "s9.bin.json")
    (tmp_path / "s11.bin").mkdir()
    put(tmp_path / "s11.bin", "deeper.bin")
    corpus = open_tokens(wrap(tmp_path))
    assert names(corpus) == ["S1.bin", "s9.bin", "s9a.bin", "s09b.bin", "s10.bin", "s100.bin"]
    assert corpus[:].tolist() == U2.tolist() * 6


def test_side_files_of_every_format_are_set_aside(tmp_path):
    for number in (2, 10):
        write_datatrove(tmp_path / f"{number}.ds", U2, [6], "gpt2|2\n6\n6")
        write_file(tmp_path / f"{number}.ds.loss", bytes(6))
    assert names(open_tokens(tmp_path)) == ["2.ds", "10.ds"]
    assert names(open_tokens(tmp_path / "*")) == ["2.ds", "10.ds"]
    pairs = tmp_path / "megatron"
    pairs.mkdir()
    for number in (2, 10):
        write_megatron(pairs / f"t{number}", U2, [6])
    put(pairs, "0a-GPTDataset-train-document_index.npy", "0a-GPTDataset-train-shuffle_index.npy")
    for path in (pairs, pairs / "*", pairs / "*.bin", pairs / "*.idx"):
        corpus = open_tokens(path)
        assert names(corpus) == ["t2.bin", "t10.bin"]
        assert len(corpus.documents) == 2


@pytest.mark.parametrize("wrap", [str, os.fsencode], ids=["str", "bytes"])
def test_a_pattern_means_what_matches_in_natural_order(tmp_path, wrap):
    (tmp_path / "a" / "b").mkdir(parents=True)
    put(tmp_path, "t2.bin", "t10.bin", "u1.bin")
    put(tmp_path / "a" / "b", "t1.bin")
    assert names(open_tokens(wrap(str(tmp_path / "t*.bin")))) == ["t2.bin", "t10.bin"]
    assert names(open_tokens(wrap(str(tmp_path / "t[0-9].bin")))) == ["t2.bin"]
    assert names(open_tokens(wrap(str(tmp_path / "**" / "t?.bin")))) == ["t1.bin", "t2.bin"]


def test_a_file_whose_name_is_a_pattern_is_that_file(tmp_path):
    put(tmp_path, "t[1].bin", "t1.bin")
    assert names(open_tokens(tmp_path / "t[1].bin")) == ["t[1].bin"]


@pytest.mark.parametrize("wrong", [set, frozenset, dict.fromkeys, iter, bytearray, None, 3])
def test_unordered_collections_of_paths_are_refused(tmp_path, wrong):
    (tmp_path / "a.bin").write_bytes(bytes(64))
    names = wrong([os.fspath(tmp_path / "a.bin")]) if callable(wrong) and wrong is not bytearray else wrong
    names = bytearray(b"a.bin") if wrong is bytearray else names
    with pytest.raises(TypeError, match="a path or a list of paths, whose order counts"):
        open_tokens(names)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([1, 2, 3], r"^the list of token files has 1, which is not a path; .*write_tokens\("),
        ([np.zeros(3)], r"write_tokens\("),
        ([("a.bin", 0.7)], r"has \('a.bin', 0.7\), which is not a path; .*Mixture\("),
        (range(10), r"by range\(0, 10\); write tokens in memory with write_tokens\("),
        ({"a.bin"}, r"by \{'a.bin'\}; use sorted\(\)"),
    ],
    ids=repr,
)
def test_what_is_no_path_gets_the_function_to_use(wrong, told):
    with pytest.raises(TypeError, match=told):
        open_tokens(wrong)


def test_a_corpus_in_a_list_gets_mixture(tmp_path):
    put(tmp_path, "a.bin")
    with pytest.raises(TypeError, match=r"which is not a path; .*Mixture\("):
        open_tokens([open_tokens(tmp_path / "a.bin")])


def test_a_long_argument_is_shortened_in_the_error():
    class Tensor:
        shape = (100_000,)

        def __repr__(self):
            return f"tensor({[*range(1000)]})"

    with pytest.raises(TypeError, match=r"write_tokens\(") as caught:
        open_tokens(Tensor())
    assert len(str(caught.value)) < 250


def test_a_list_keeps_its_order_and_has_files_alone(tmp_path):
    put(tmp_path, "b.bin", "a.bin")
    assert names(open_tokens([tmp_path / "b.bin", tmp_path / "a.bin"])) == ["b.bin", "a.bin"]
    with pytest.raises(IsADirectoryError):
        open_tokens([tmp_path])
    with pytest.raises(FileNotFoundError):
        open_tokens([tmp_path / "*.bin"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "found meta.pkl, notes.txt; expected names that end in .bin"),
        ("empty", "found no files at all"),
        ("*.bin", "found nothing, expected at least one file"),
        ("*.pkl", "found 1 side files"),
        ("missing.bin", "No such file"),
    ],
)
def test_nothing_found_says_where_and_what_was_expected(tmp_path, name, message):
    put(tmp_path, "meta.pkl", "notes.txt")
    (tmp_path / "empty").mkdir()
    asked = os.fspath(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=message.replace("*", r"\*")) as caught:
        open_tokens(asked)
    assert (caught.value.errno, os.fspath(caught.value.filename)) == (errno.ENOENT, asked)


def test_two_formats_in_one_directory_are_refused_and_both_named(tmp_path):
    put(tmp_path, "a.bin")
    write_file(tmp_path / "b.bin", llmc_bytes(U2))
    with pytest.raises(FormatError, match=r"b\.bin: the file holds.*llmc.*a\.bin holds.*raw"):
        open_tokens(tmp_path)


# Many files


MANY = 10_000

MANY_CODE = PROGRAMS / "tokens_corpus/many_code.py"


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many") / "shards"
    folder.mkdir()
    for number in range(MANY):
        with open(folder / f"{number}.bin", "wb") as file:
            file.write(number.to_bytes(2, "little") * 3)
    return folder


@pytest.mark.parametrize(("limit", "bound"), [(0, 1024), (128, 32), (40, 16)])
@pytest.mark.parametrize("mode", ["auto", "read"])
def test_ten_thousand_files_need_a_bounded_number_of_descriptors_and_mappings(many, limit, bound, mode):
    opened, descriptors, maps, at_end = output_of(MANY_CODE, many, limit, mode).split(maxsplit=3)
    assert int(opened) <= bound
    assert int(descriptors) <= bound
    assert int(maps) <= (bound if mode == "auto" else 0)
    assert at_end == "(0, 0, 0)"


def test_many_threads_read_a_corpus_whose_files_come_and_go(tmp_path):
    expected = tokens_of("<u2", 3000)
    write_shards(tmp_path, expected, [30] * 100)
    code = PROGRAMS / "tokens_corpus/many_threads_read_files_that_come_and_go.py"
    assert output_of(code, tmp_path) == "good"


def test_several_corpora_share_what_the_process_may_open(tmp_path):
    write_shards(tmp_path, tokens_of("<u2", 600), [3] * 200)
    code = PROGRAMS / "tokens_corpus/several_corpora_share_what_the_process_may.py"
    first, again = output_of(code, tmp_path).splitlines()
    assert first == "[100, 100, 16, 16, 16, 16]"
    assert again == "100"


def test_a_view_outlives_the_file_that_made_room_for_others(tmp_path):
    expected = tokens_of("<u2", 300)
    write_shards(tmp_path, expected, [3] * 100)
    code = PROGRAMS / "tokens_corpus/a_view_outlives_its_file.py"
    assert output_of(code, tmp_path) == "good"


# The error message for each kind of change.
CHANGES = {
    "vanished": "No such file",
    "replaced": "found 6 bytes",
    "grown": "found 8 bytes",
    "cut": "found 4 bytes",
    "rewritten": "modified at 1.0",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_while_it_was_not_open_is_an_error_that_names_it(tmp_path, change):
    write_shards(tmp_path, tokens_of("<u2", 300), [3] * 100)
    code = PROGRAMS / "tokens_corpus/a_file_that_changed_is_an_error.py"
    lines = output_of(code, tmp_path, change).splitlines()
    assert len(lines) == 5
    for line in lines:
        assert CHANGES[change] in line
        assert "expected" in line
        assert "6 bytes" in line


@pytest.mark.parametrize("change", ["vanished", "replaced"])
def test_a_file_that_is_kept_open_and_loses_its_name_is_found_by_check(tmp_path, change):
    paths = write_shards(tmp_path, tokens_of("<u2", 9), [3, 3, 3])
    corpus = open_tokens(paths)
    if change == "vanished":
        os.unlink(paths[1])
    else:
        write_tokens(tmp_path / "new", U2[:3])
        os.replace(tmp_path / "new", paths[1])
    with pytest.raises(FileChangedError) as caught:
        corpus.check()
    assert caught.value.filename == paths[1]


def test_the_first_bad_file_of_many_is_the_one_that_is_named(tmp_path):
    paths = write_shards(tmp_path, tokens_of("<u2", 600), [3] * 200)
    for number in (180, 77, 120):
        os.truncate(paths[number], 5)
    for _ in range(5):
        with pytest.raises(FormatError, match="shard77: "):
            open_tokens(paths)


def test_closing_while_threads_read_gives_a_value_error_and_no_leak(tmp_path):
    corpus = open_tokens(write_shards(tmp_path, tokens_of("<u2", 300), [3] * 100))
    started = threading.Barrier(5)

    def work(_):
        started.wait()
        try:
            while True:
                corpus.read(0, 300)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(work, number) for number in range(4)]
        started.wait()
        corpus.close()
        assert all("closed" in one.result() for one in running)
    inside = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert [path for path in inside if path.startswith(os.path.realpath(tmp_path))] == []


# Processes


def test_forked_and_spawned_processes_read_the_same(tmp_path):
    write_shards(tmp_path, tokens_of("<u2", 300), [3] * 100)
    code = PROGRAMS / "tokens_corpus/forked_and_spawned_processes_read_the_same.py"
    assert output_of(code, tmp_path) == "True"


@pytest.mark.parametrize("format", ["megatron", "datatrove", "llmc"])
def test_a_pickle_finds_the_side_files_again(tmp_path, format):
    if format == "megatron":
        path = write_megatron(tmp_path / "t", U2, [2, 4])
    elif format == "datatrove":
        path = write_datatrove(tmp_path / "t.ds", U2, [2, 6])
    else:
        path = write_file(tmp_path / "t.bin", llmc_bytes(U2))
    corpus = open_tokens(path)
    again = pickle.loads(pickle.dumps(corpus))
    assert again.shards == corpus.shards
    assert again.fingerprint == corpus.fingerprint
    if format != "llmc":
        assert again.documents.starts.tolist() == [0, 2, 6]


# Fingerprints


def test_a_fingerprint_is_the_same_in_another_place_and_time_and_way_of_reading(tmp_path):
    (tmp_path / "a").mkdir()
    paths = write_shards(tmp_path / "a", tokens_of("<u2", 5000), [2000, 0, 3000])
    first = open_tokens(paths).fingerprint
    assert len(first) == 16
    assert int(first, 16) >= 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copies = [path.replace("/a/", "/b/") for path in paths]
    for number, path in enumerate(copies):
        os.utime(path, (number, number))
    assert open_tokens(copies).fingerprint == first
    assert open_tokens(copies, mmap_mode="read").fingerprint == first
    assert open_tokens(copies, format="raw", dtype="u2").fingerprint == first


def test_a_fingerprint_changes_with_the_data(tmp_path):
    tokens = tokens_of("<u2", 5000)
    seen = {open_tokens(write_shards(tmp_path, tokens, [2000, 0, 3000])).fingerprint}
    seen.add(open_tokens(write_shards(tmp_path, tokens, [2000, 3000])).fingerprint)
    seen.add(open_tokens(write_shards(tmp_path, tokens, [2001, 2999])).fingerprint)
    seen.add(open_tokens(write_shards(tmp_path, tokens, [2000, 3000])[::-1]).fingerprint)
    seen.add(open_tokens(write_shards(tmp_path, tokens, [2000, 3000]), dtype="u4", format="raw").fingerprint)
    seen.add(open_tokens(write_shards(tmp_path, tokens, [2000, 3000]), dtype="i2").fingerprint)
    seen.add(open_tokens(write_shards(tmp_path, tokens, [2000, 3000], "npy")).fingerprint)
    for position in (0, 4999, 3500):
        changed = tokens.copy()
        changed[position] ^= 1
        seen.add(open_tokens(write_shards(tmp_path, changed, [2000, 3000])).fingerprint)
    seen.add(open_tokens(write_megatron(tmp_path / "m", tokens, [5000])).fingerprint)
    seen.add(open_tokens(write_megatron(tmp_path / "m", tokens, [2000, 3000])).fingerprint)
    for lengths, pointers in (
        ([2000, 3000], [6000, 0]),
        ([3000, 2000], [0, 6000]),
        ([2000, 3000], [6000, 2]),
    ):
        stem = write_megatron(tmp_path / "m", tokens, lengths, pointers=pointers)
        seen.add(open_tokens(stem).fingerprint)
    assert len(seen) == 15


def test_a_fingerprint_does_not_change_from_version_to_version(tmp_path):
    np.arange(1000, dtype="<u2").tofile(tmp_path / "t")
    assert open_tokens(tmp_path / "t").fingerprint == "cc8d91c645c22c40"


@pytest.mark.parametrize("format", ["raw", "npy", "llmc", "megatron"])
def test_opening_and_the_fingerprint_bring_in_a_few_pages_alone(tmp_path, format):
    tokens = np.zeros(16 << 20, "u2")
    pagestream.write_tokens(tmp_path / "tokens.bin", [tokens], dtype="u2", format=format)
    with MappedFile(tmp_path / "tokens.bin") as file:
        file.evict()
        assert not file.residency().pages.any()
    corpus = open_tokens(tmp_path / "tokens.bin")
    assert corpus.fingerprint
    with MappedFile(tmp_path / "tokens.bin") as file:
        # The fingerprint samples the beginning, the middle and the end, and the header. A page fault would
        # have brought in the whole read-ahead window.
        assert file.residency().pages.sum() <= 8


# Modes


def test_a_corpus_says_how_its_files_are_read_and_why(direct_mount, tmp_path):
    put(tmp_path, "a.bin", "b.bin")
    put(tmp_path / "source", "c.bin", "d.bin")
    mapped = open_tokens(tmp_path)
    assert (mapped.mode, mapped.reason, mapped.closed) == ("shared", None, False)
    mixed = open_tokens(
        [tmp_path / "a.bin", direct_mount / "c.bin", tmp_path / "b.bin", direct_mount / "d.bin"]
    )
    assert mixed.mode == "private"
    assert mixed.reason == f"{direct_mount}/c.bin: {mixed.shards[1].reason} (and 1 more files)"
    assert "ENODEV" in mixed.reason
    alone = open_tokens(direct_mount / "c.bin")
    assert alone.reason == alone.shards[0].reason
    read = open_tokens(tmp_path, mmap_mode="read")
    assert (read.mode, read.reason) == ("read", None)
    with mapped:
        pass
    assert mapped.closed
    assert mapped.mode == "shared"


# Audit


AUDITED = PROGRAMS / "audit_side_files.py"


@pytest.mark.parametrize("refused", ["", ".idx", "m.bin", ".index", ".metadata"])
def test_hooks_see_side_files_and_can_refuse_them(tmp_path, refused):
    write_megatron(tmp_path / "m", U2, [2, 4])
    write_datatrove(tmp_path / "t.ds", U2, [2, 6], "gpt2|2\n6\n6")
    found = output_of(AUDITED.read_text(), tmp_path, refused or "nothing").splitlines()
    if not refused:
        assert found == ["m.bin", "m.idx", "t.ds", "t.ds.index", "t.ds.metadata"]
    else:
        # The hook's own exception is raised, and the file is not opened.
        assert found == [f"refused {refused}", "[]"]
