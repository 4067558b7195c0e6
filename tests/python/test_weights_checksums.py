"""Checksums: the files written beside weights, the findings of a verification, and streams that compare."""

import dataclasses
import errno
import hashlib
import json
import os
import pickle
import socket
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy
import xxhash

import pagestream
from pagestream import MappedFile, VerifyReport, open_checkpoint
from pagestream.errors import ChecksumError, FileChangedError, FormatError, MappedReadError

from support import real
from support.checkpoints import contents, hub_cache, sharded
from support.process import PROGRAMS, output_of, start_python, threads_end

MIB = 1 << 20
MODES = ["shared", "private", "read"]
every_mode = pytest.mark.parametrize("mode", MODES)

TENSORS = {
    "a.large": np.arange(3 * MIB // 4 + 5, dtype="<u4"),
    "b.empty": np.zeros((0, 3), "<f4"),
    "c.small": np.arange(7, dtype="u1"),
    "d.scalar": np.array(1.5, "<f4"),
    'e "é\n': np.ones(3, "<f8"),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(TENSORS, path, {"made": "here"})
    return path


def beside(path):
    return path.with_name(f"{path.name}.xxh3.json")


def flip(path, offset):
    """Flips one bit of a file and keeps its size."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def found_bad(report):
    return [(error.name, error.offset) for error in report.bad]


def data_start(path):
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


# Writing


def test_checksums_are_those_of_the_xxhash_package(path):
    weights = open_checkpoint(path)
    assert weights.write_checksums() == (str(beside(path)),)
    written = json.loads(beside(path).read_text())
    content = path.read_bytes()
    expected = {}
    for name in weights:
        info = weights.info(name)
        expected[name] = xxhash.xxh3_128_hexdigest(content[info.offset : info.offset + info.nbytes])
    assert written == {
        "format": "pagestream-checksums",
        "version": 1,
        "algorithm": "xxh3-128",
        "file_bytes": len(content),
        "header": xxhash.xxh3_128_hexdigest(content[: data_start(path)]),
        "tensors": expected,
    }
    # Header and tensors make up the whole file.
    assert data_start(path) + sum(weights.info(name).nbytes for name in weights) == len(content)


@every_mode
def test_the_text_of_a_file_is_always_the_same(path, mode):
    texts = set()
    for threads in (None, 1, 2, 7):
        open_checkpoint(path, mmap_mode=mode).write_checksums(threads=threads)
        texts.add(beside(path).read_bytes())
    assert len(texts) == 1


def test_a_file_of_several_lanes_is_hashed_like_one_of_one(tmp_path):
    path = tmp_path / "model.safetensors"
    rng = np.random.default_rng(3)
    tensors = {
        f"t{number}": rng.integers(0, 256, size, "u1")
        for number, size in enumerate([40 * MIB, 3, 33 * MIB + 1])
    }
    safetensors.numpy.save_file(tensors, path)
    weights = open_checkpoint(path)
    weights.write_checksums()
    written = json.loads(beside(path).read_text())["tensors"]
    assert written == {name: xxhash.xxh3_128_hexdigest(array) for name, array in tensors.items()}
    assert weights.verify() == VerifyReport((str(path),), (), ())


def test_checksums_take_their_name_at_once_and_leave_nothing_else(path):
    open_checkpoint(path).write_checksums()
    assert sorted(os.listdir(path.parent)) == [path.name, beside(path).name]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(beside(path).stat().st_mode) == 0o666 & ~umask


def test_a_link_in_their_place_is_replaced_and_not_followed(path, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    beside(path).symlink_to(elsewhere)
    open_checkpoint(path).write_checksums()
    assert elsewhere.read_text() == "mine"
    assert not beside(path).is_symlink()
    assert open_checkpoint(path).verify().bad == ()


def test_a_folder_in_their_place_is_an_error(path):
    beside(path).mkdir()
    with pytest.raises(IsADirectoryError, match="checksums are written to a file") as caught:
        open_checkpoint(path).write_checksums()
    assert caught.value.filename == str(beside(path))
    (error,) = open_checkpoint(path).verify().bad
    assert (error.path, error.name) == (str(beside(path)), None)
    assert "it is a directory; remove what is there, and write_checksums() makes new ones" in str(error)


def test_a_fifo_or_link_loop_in_their_place_is_bad_and_does_not_block(path):
    weights = open_checkpoint(path)
    for make in (os.mkfifo, lambda name: os.symlink(name, name)):
        make(beside(path))
        (error,) = weights.verify().bad
        assert (error.path, error.name) == (str(beside(path)), None)
        assert "the checksums cannot be used" in str(error)
        with pytest.raises(ChecksumError, match="the checksums cannot be used"):
            weights.stream(verify=True)
        beside(path).unlink()


def test_a_name_without_room_for_the_suffix_has_no_checksums(path):
    long = path.with_name("m" * 240 + ".safetensors")
    path.rename(long)
    weights = open_checkpoint(long)
    assert weights.verify() == VerifyReport((), (str(long),), ())
    with pytest.raises(OSError, match="too long") as caught:
        weights.write_checksums()
    assert caught.value.errno == errno.ENAMETOOLONG


def test_checksums_lie_beside_the_name_that_was_given(path, tmp_path):
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "other.safetensors").symlink_to(path)
    weights = open_checkpoint(folder / "other.safetensors")
    assert weights.write_checksums() == (str(folder / "other.safetensors.xxh3.json"),)
    assert not beside(path).exists()
    assert weights.verify().checked == (str(folder / "other.safetensors"),)
    assert open_checkpoint(path).verify().unchecked == (str(path),)


def test_a_checkpoint_of_many_files_has_checksums_beside_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sharded("model", shards=40)
    weights = open_checkpoint("model")
    monkeypatch.chdir("/")
    written = weights.write_checksums()
    assert written == tuple(f"{tmp_path}/{file}.xxh3.json" for file in weights.files)
    monkeypatch.chdir(tmp_path)
    flip(tmp_path / weights.files[11], -1 + os.path.getsize(weights.files[11]))
    report = open_checkpoint("model").verify()
    assert report.checked == weights.files
    assert [error.path for error in report.bad] == [weights.files[11]]
    # The folder still opens as before.
    assert open_checkpoint("model").files == weights.files


# Verification


@every_mode
def test_a_flipped_byte_of_a_tensor_is_named(path, mode):
    open_checkpoint(path).write_checksums()
    for name in TENSORS:
        info = open_checkpoint(path).info(name)
        for at in {info.offset, info.offset + info.nbytes // 2, info.offset + info.nbytes - 1}:
            if not info.nbytes:
                continue
            flip(path, at)
            report = open_checkpoint(path, mmap_mode=mode).verify()
            assert report.checked == (str(path),)
            assert found_bad(report) == [(name, info.offset)]
            (error,) = report.bad
            content = path.read_bytes()[info.offset : info.offset + info.nbytes]
            assert error.found == xxhash.xxh3_128_hexdigest(content) != error.expected
            assert error.expected == json.loads(beside(path).read_text())["tensors"][name]
            assert error.path == str(path)
            assert f"at byte {info.offset} has the xxh3-128 {error.found}" in str(error)
            flip(path, at)
    assert open_checkpoint(path, mmap_mode=mode).verify() == VerifyReport((str(path),), (), ())


def test_a_flipped_byte_of_the_header_is_named(path):
    open_checkpoint(path).write_checksums()
    flip(path, path.read_bytes().index(b"here"))
    report = open_checkpoint(path).verify()
    assert found_bad(report) == [(None, 0)]
    assert report.bad[0].found == xxhash.xxh3_128_hexdigest(path.read_bytes()[: data_start(path)])
    flip(path, path.read_bytes().index(b"c.small"))
    # The header differs, and so do both names.
    report = open_checkpoint(path).verify()
    assert {error.name for error in report.bad} == {None, "b.small", "c.small"}


def test_every_flipped_byte_of_the_checksums_is_found(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": np.ones(3, "u1"), "b": np.zeros(0)}, path)
    weights = open_checkpoint(path)
    weights.write_checksums()
    good = beside(path).read_bytes()
    for offset in range(len(good)):
        changed = bytearray(good)
        changed[offset] ^= 1
        beside(path).write_bytes(changed)
        bad = weights.verify(threads=1).bad
        assert bad, changed[max(0, offset - 20) : offset + 20]
        assert {error.path for error in bad} <= {str(path), str(beside(path))}


BAD_TEXTS = {
    "empty": b"",
    "no JSON": b"\x00\xff",
    "a list": b"[]",
    "no fields": b"{}",
    "deep": b"[" * 20_000,
    "deep in a field": b'{"tensors": ' + b'{"a":' * 10_000,
    "a number": b"1" * 10_000,
    "surrogate": b'{"\\ud800": 1}',
    "another format": b'{"format": "sha256sum"}',
    "a link of git": b"version https://git-lfs.github.com/spec/v1\n",
}
CHANGES = {
    "newer": {"version": 2},
    "old": {"version": 0},
    "version as text": {"version": "1"},
    "fraction": {"version": 1.5},
    "another algorithm": {"algorithm": "md5"},
    "no algorithm": {"algorithm": None},
    "negative size": {"file_bytes": -1},
    "huge size": {"file_bytes": 10**30},
    "header as a number": {"header": 7},
    "short header": {"header": "00"},
    "capitals": {"header": "A" * 32},
    "tensors as a list": {"tensors": []},
    "a tensor as an object": {"tensors": {"a.large": {"xxh3": "0" * 32}}},
    "a tensor as null": {"tensors": {"a.large": None}},
    "unknown field": {"more": 1},
}


@pytest.mark.parametrize("text", [*BAD_TEXTS, *CHANGES])
def test_bad_checksums_are_reported_and_refused(path, text):
    weights = open_checkpoint(path)
    weights.write_checksums()
    if text in BAD_TEXTS:
        beside(path).write_bytes(BAD_TEXTS[text])
    else:
        good = json.loads(beside(path).read_text())
        beside(path).write_text(json.dumps(good | CHANGES[text]))
    report = weights.verify()
    assert (report.checked, report.unchecked) == ((), (str(path),))
    (error,) = report.bad
    assert (error.path, error.name, error.expected) == (str(beside(path)), None, None)
    assert "invalid checksums" in str(error)
    with pytest.raises(ChecksumError, match="invalid checksums"):
        weights.stream(verify=True)
    # New checksums replace bad ones.
    weights.write_checksums()
    assert weights.verify().bad == ()


def test_checksums_that_are_too_large_are_not_read(path):
    weights = open_checkpoint(path)
    with open(beside(path), "wb") as file:
        file.truncate(1 << 40)
    (error,) = weights.verify().bad
    assert "checksums too large: found 1099511627776 bytes, expected at most" in str(error)


def test_duplicates_are_refused_wherever_they_stand(path):
    weights = open_checkpoint(path)
    weights.write_checksums()
    good = beside(path).read_text()
    for line in good.splitlines():
        if line.endswith(","):
            beside(path).write_text(good.replace(line, f"{line}\n{line}"))
            (error,) = weights.verify().bad
            assert "duplicate" in str(error), line


def test_names_that_only_one_of_them_has_are_bad(path):
    weights = open_checkpoint(path)
    weights.write_checksums()
    good = json.loads(beside(path).read_text())
    good["tensors"]["other"] = good["tensors"].pop("c.small")
    beside(path).write_text(json.dumps(good))
    report = weights.verify()
    assert report.checked == (str(path),)
    assert {error.name: error.offset for error in report.bad} == {
        "c.small": weights.info("c.small").offset,
        "other": None,
    }
    with pytest.raises(ChecksumError, match='name tensor "other", which it does not have'):
        weights.stream(["a.large"], verify=True)


def test_stale_checksums_are_bad(path):
    open_checkpoint(path).write_checksums()
    safetensors.numpy.save_file(
        {name: np.asarray(array + 1, array.dtype) for name, array in TENSORS.items()}, path, {"made": "here"}
    )
    assert {error.name for error in open_checkpoint(path).verify().bad} == set(TENSORS) - {"b.empty"}
    safetensors.numpy.save_file({"new": np.ones(3)}, path)
    report = open_checkpoint(path).verify()
    assert {error.name for error in report.bad} == {None, "new", *TENSORS}
    sizes = [error for error in report.bad if error.expected and len(error.expected) < 32]
    assert [(error.offset, error.found) for error in sizes] == [(0, str(path.stat().st_size))]


def test_a_file_without_checksums_is_unchecked_and_not_read(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file({"t": np.ones(8 * MIB, "u1")}, source / "model.safetensors")
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True) as slow:
        path = slow.path / "model.safetensors"
        with open_checkpoint(path) as weights:
            assert weights.verify() == VerifyReport((), (str(path),), ())
    assert slow.counts["read_bytes"] < MIB


def test_the_report_is_a_frozen_value_whose_errors_pickle(path):
    open_checkpoint(path).write_checksums()
    flip(path, path.stat().st_size - 1)
    report = open_checkpoint(path).verify()
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.bad = ()
    (error,) = pickle.loads(pickle.dumps(report)).bad
    assert isinstance(error, ChecksumError)
    assert isinstance(error, FormatError)
    assert vars(error) == vars(report.bad[0])
    assert str(error) == str(report.bad[0])


# The Hugging Face cache


@pytest.mark.parametrize("shared", [False, True])
def test_files_of_the_cache_are_compared_with_their_names(tmp_path, path, shared):
    content = path.read_bytes()
    key = hashlib.sha256(content).hexdigest()
    snapshot = hub_cache(tmp_path / "hub", {"model.safetensors": content}, shared=shared, keys=[key])
    file = f"{snapshot}/model.safetensors"
    weights = open_checkpoint(snapshot)
    assert weights.verify() == VerifyReport((file,), (), ())
    before = contents(tmp_path / "hub")
    (written,) = weights.write_checksums()
    assert written == f"{file}.xxh3.json"
    assert not os.path.islink(written)
    added = set(contents(tmp_path / "hub")) - set(before)
    assert {str(tmp_path / "hub" / name) for name in added} == {written}
    assert weights.verify() == VerifyReport((file,), (), ())
    flip(file, len(content) - 1)
    by_both, by_name = open_checkpoint(snapshot).verify(), None
    assert [error.name for error in by_both.bad] == ["c.small", None]
    os.unlink(written)
    by_name = open_checkpoint(snapshot).verify()
    (error,) = by_name.bad
    assert (error.path, error.name, error.offset) == (file, None, 0)
    assert error.expected == key
    with open(file, "rb") as opened:
        assert error.found == hashlib.file_digest(opened, "sha256").hexdigest()
    with pytest.raises(ChecksumError, match="has no checksums beside it"):
        open_checkpoint(snapshot).stream(verify=True)


def test_names_that_are_not_sha256_are_ignored(tmp_path, path):
    content = path.read_bytes()
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    sha256 = hashlib.sha256(content).hexdigest()
    for number, key in enumerate([git, sha256.upper(), f"{sha256}.incomplete", f"sha256-{sha256}"]):
        snapshot = hub_cache(tmp_path / f"hub{number}", {"model.safetensors": content}, keys=[key])
        report = open_checkpoint(snapshot).verify()
        assert (report.checked, len(report.unchecked), report.bad) == ((), 1, ())


def test_links_of_checksums_that_lead_out_of_the_folder_are_refused(tmp_path, path):
    model = tmp_path / "model"
    model.mkdir()
    os.rename(path, model / path.name)
    open_checkpoint(model / path.name).write_checksums()
    os.rename(beside(model / path.name), tmp_path / "stolen")
    beside(model / path.name).symlink_to(tmp_path / "stolen")
    (error,) = open_checkpoint(model).verify().bad
    assert "which is outside" in str(error)
    # A file that the caller names may be a link to anywhere.
    assert open_checkpoint(model / path.name).verify().bad == ()


def test_audit_hooks_see_checksums_that_are_there_and_can_refuse_them(path):
    assert output_of(PROGRAMS / "weights_checksums" / "audited.py", path) == "\n".join(
        ["[]", f"['{beside(path)}']", f"['{beside(path)}']", "refused", "refused"]
    )


# Streams


@every_mode
def test_a_verifying_stream_has_the_same_tensors(path, mode):
    weights = open_checkpoint(path, mmap_mode=mode)
    weights.write_checksums()
    for order in ("file", "plan", "layer"):
        found = dict(weights.stream(sorted(TENSORS), order=order, verify=True))
        assert set(found) == set(TENSORS)
        for name, array in found.items():
            assert array.tobytes() == TENSORS[name].tobytes()
            assert not array.flags.writeable


@every_mode
def test_a_bad_tensor_is_an_error_in_its_place(path, mode):
    open_checkpoint(path).write_checksums()
    weights = open_checkpoint(path)
    info = weights.info("c.small")
    names = list(weights)
    flip(path, info.offset + 3)
    weights = open_checkpoint(path, mmap_mode=mode)
    stream = weights.stream(verify=True)
    # The tensors before it arrive.
    for name in names[: names.index("c.small")]:
        assert next(stream)[0] == name
    with pytest.raises(ChecksumError) as caught:
        next(stream)
    error = caught.value
    assert (error.name, error.path, error.offset) == ("c.small", str(path), info.offset)
    content = path.read_bytes()[info.offset : info.offset + info.nbytes]
    assert error.found == xxhash.xxh3_128_hexdigest(content) != error.expected
    assert list(stream) == []
    # A plan without this tensor raises nothing.
    others = [name for name in names if name != "c.small"]
    assert [name for name, _ in weights.stream(others, verify=True)] == others
    assert len(list(weights.stream(verify=False))) == len(names)


def test_a_bad_piece_of_a_large_tensor_is_found_wherever_it_is(path):
    open_checkpoint(path).write_checksums()
    info = open_checkpoint(path).info("a.large")
    for at in (0, MIB, 2 * MIB + 77, info.nbytes - 1):
        flip(path, info.offset + at)
        with pytest.raises(ChecksumError) as caught:
            list(open_checkpoint(path).stream(verify=True))
        assert caught.value.name == "a.large"
        flip(path, info.offset + at)
    assert len(list(open_checkpoint(path).stream(verify=True))) == len(TENSORS)


def test_a_stream_that_cannot_verify_is_refused_before_it_reads(tmp_path):
    folder = tmp_path / "model"
    sharded(folder)
    weights = open_checkpoint(folder)
    weights.write_checksums()
    os.unlink(f"{weights.files[7]}.xxh3.json")
    with pytest.raises(ChecksumError, match="has no checksums beside it") as caught:
        weights.stream(verify=True)
    assert caught.value.path == weights.files[7]
    # Files outside the plan need no checksums.
    assert list(weights.stream([], verify=True)) == []
    assert len(list(weights.stream(["layer.0.0"], verify=True))) == 1
    written = f"{weights.files[0]}.xxh3.json"
    with open(written, encoding="utf-8") as file:
        good = json.load(file)
    del good["tensors"]["layer.0.1"]
    with open(written, "w", encoding="utf-8") as file:
        json.dump(good, file)
    assert len(list(weights.stream(["layer.0.0"], verify=True))) == 1
    with pytest.raises(ChecksumError, match="leave out tensor") as caught:
        list(weights.stream(["layer.0.1"], verify=True))
    assert caught.value.name == "layer.0.1"


def test_a_stream_compares_header_and_size(path):
    open_checkpoint(path).write_checksums()
    flip(path, path.read_bytes().index(b"here"))
    with pytest.raises(ChecksumError, match="its header at byte 0 has the xxh3-128"):
        open_checkpoint(path).stream(["c.small"], verify=True)


def test_streams_that_cannot_be_verified_are_refused(path):
    weights = open_checkpoint(path)
    weights.write_checksums()
    with pytest.raises(ValueError, match=r"the plan wants a part of 'a\.large'"):
        weights.stream({"a.large": np.s_[:3]}, verify=True)
    with pytest.raises(ValueError, match='strategy="mapped" yields views'):
        weights.stream(strategy="mapped", verify=True)
    with pytest.raises(TypeError, match="verify must be True or False, not 1"):
        weights.stream(verify=1)
    weights.close()
    for call in (weights.verify, weights.write_checksums, lambda: weights.stream(verify=True)):
        with pytest.raises(ValueError, match="closed"):
            call()


# Storage


def test_a_direct_io_mount_is_verified_and_streamed(direct_mount, tmp_path):
    source = tmp_path / "source" / "model.safetensors"
    safetensors.numpy.save_file(TENSORS, source)
    weights = open_checkpoint(direct_mount / source.name)
    assert weights.mode == "private"
    weights.write_checksums()
    assert weights.verify().bad == ()
    assert len(list(weights.stream(verify=True))) == len(TENSORS)
    weights.close()
    flip(direct_mount / source.name, source.stat().st_size - 1)
    damaged = open_checkpoint(direct_mount / source.name)
    assert len(damaged.verify().bad) == 1
    with pytest.raises(ChecksumError):
        list(damaged.stream(verify=True))
    damaged.close()


@pytest.mark.parametrize("by_name", [False, True])
def test_many_requests_are_in_flight_on_a_slow_mount(tmp_path, by_name):
    content = safetensors.numpy.save({f"t{number:02}": np.full(MIB, number, "u1") for number in range(64)})
    name = hashlib.sha256(content).hexdigest() if by_name else "model.safetensors"
    source = tmp_path / "source"
    (source / "blobs").mkdir(parents=True)
    (source / "blobs" / name).write_bytes(content)
    if not by_name:
        open_checkpoint(source / "blobs" / name).write_checksums()
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True, gather=32) as slow:
        path = slow.path / "blobs" / name
        with open_checkpoint(path) as weights:
            assert weights.verify() == VerifyReport((str(path),), (), ())
    assert slow.counts["most_in_flight"] >= 32
    assert len(content) <= slow.counts["read_bytes"] <= 1.02 * len(content)


def test_the_page_cache_is_left_as_it_was(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({f"t{n}": np.full(4 * MIB, n, "u1") for n in range(8)}, path)
    open_checkpoint(path).write_checksums()
    with MappedFile(path) as file:
        assert file.residency().fraction > 0.99
        assert open_checkpoint(path).verify().bad == ()
        assert file.residency().fraction > 0.99
        file.evict()
        assert file.residency().fraction == 0
        assert open_checkpoint(path).verify().bad == ()
        assert file.residency().fraction < 0.05


def test_memory_is_bounded_whatever_the_tensors_are(tmp_path):
    path = tmp_path / "model.safetensors"
    size = 1 << 30
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    peak = output_of(PROGRAMS / "weights_checksums" / "peak.py", path)
    assert int(peak) < 160 * MIB


def test_a_file_that_was_cut_is_an_error_with_its_path(path):
    weights = open_checkpoint(path)
    weights.write_checksums()
    os.truncate(path, 2 * MIB)
    with pytest.raises(MappedReadError, match="truncated") as caught:
        weights.verify()
    assert caught.value.filename == str(path)


def test_a_file_that_is_cut_during_a_verification_is_an_error(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file({f"t{n}": np.ones(MIB, "u1") for n in range(8)}, source / "m.safetensors")
    open_checkpoint(source / "m.safetensors").write_checksums()
    with real.slow_fuse(source, tmp_path / "slow", delay_ms=20, direct_io=True) as slow:
        weights = open_checkpoint(slow.path / "m.safetensors")

        def cut(_done, _total):
            os.truncate(source / "m.safetensors", MIB)

        with pytest.raises(MappedReadError, match=r"truncated|returned no data") as caught:
            weights.verify(threads=1, progress=cut)
        assert caught.value.filename == str(slow.path / "m.safetensors")
        weights.close()


def test_a_file_that_was_rewritten_since_it_was_opened_is_an_error(path):
    weights = open_checkpoint(path)
    weights.write_checksums()
    flip(path, path.stat().st_size - 1)
    for call in (weights.verify, weights.write_checksums, lambda: list(weights.stream(verify=True))):
        with pytest.raises(FileChangedError):
            call()


def test_storage_that_fails_is_an_error_with_its_offset(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file({f"t{n}": np.ones(MIB, "u1") for n in range(8)}, source / "m.safetensors")
    open_checkpoint(source / "m.safetensors").write_checksums()
    failing = real.slow_fuse(source, tmp_path / "slow", direct_io=True, fail_range=(4 * MIB, 5 * MIB))
    with failing as slow:
        weights = open_checkpoint(slow.path / "m.safetensors")
        with pytest.raises(MappedReadError) as caught:
            weights.verify()
        assert caught.value.errno == errno.EIO
        assert 3 * MIB <= caught.value.offset <= 5 * MIB
        weights.close()


def test_checksums_that_cannot_be_read_are_an_error(path):
    assert output_of(PROGRAMS / "weights_checksums" / "forbidden.py", path) == str(beside(path))


def test_ctrl_c_works_while_reads_hang(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file({"t": np.ones(8 * MIB, "u1")}, source / "m.safetensors")
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True) as slow:
        slow.gate.hold(4096)
        program = PROGRAMS / "weights_checksums" / "interrupted.py"
        with start_python(program, slow.path / "m.safetensors") as process:
            slow.gate.wait_for(1)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "heard after 0 bytes\n"
            slow.gate.open()


def test_a_child_of_a_fork_is_told_and_verifies_by_itself(path):
    open_checkpoint(path).write_checksums()
    found = output_of(PROGRAMS / "weights_checksums" / "forked.py", path)
    assert sorted(found.splitlines()) == sorted(["told", "1 0", "0 1 0"])


def test_several_threads_verify_at_once(path):
    weights = open_checkpoint(path)
    weights.write_checksums()
    with ThreadPoolExecutor(6) as pool:
        assert {pool.submit(weights.verify).result().bad for _ in range(12)} == {()}


def test_progress_counts_bytes_and_threads_end(tmp_path):
    sharded(tmp_path / "model")
    weights = open_checkpoint(tmp_path / "model")
    total = sum(os.path.getsize(file) for file in weights.files)
    for call in (weights.verify, weights.write_checksums, weights.verify):
        seen = []
        call(progress=lambda *counts, seen=seen: seen.append(counts))
        assert seen[-1] == (total, total)
        assert seen == sorted(seen)
    weights.close()
    assert threads_end("pagestream-hash")


def test_an_error_of_progress_ends_the_verification(path):
    weights = open_checkpoint(path)
    weights.write_checksums()

    def fail(_done, _total):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        weights.verify(progress=fail)
    assert weights.verify().bad == ()


def test_the_number_of_threads_is_checked(path):
    with pytest.raises(ValueError, match="threads must be"):
        open_checkpoint(path).verify(threads=0)
    with pytest.raises(ValueError, match="threads must be 1 to 1024"):
        open_checkpoint(path).write_checksums(threads=5000)
    assert pagestream.VerifyReport is VerifyReport


def bind_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (bind_socket, "No such device or address: it is a socket; only regular files can be mapped"),
        (lambda path: path.symlink_to("/proc/self/mem"), "Input/output error"),
    ],
    ids=["socket", "cannot be read"],
)
def test_checksums_that_cannot_be_read_leave_the_other_files(tmp_path, make, reason):
    files = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for file in files:
        safetensors.numpy.save_file({file.stem: np.arange(9)}, file)
    weights = open_checkpoint(files)
    weights.write_checksums()
    beside(files[1]).unlink()
    make(beside(files[1]))
    report = weights.verify()
    assert (report.checked, report.unchecked) == ((str(files[0]), str(files[2])), (str(files[1]),))
    (error,) = report.bad
    assert error.path == str(beside(files[1]))
    assert reason in str(error)
    assert "remove what is there, and write_checksums() makes new ones" in str(error)
