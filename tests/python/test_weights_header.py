"""safetensors headers, above all unusual ones: pagestream's refusals and upstream's answers."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from pagestream import open_checkpoint
from pagestream.errors import MappedReadError, SafetensorError
from pagestream.safetensors import safe_open

from support import real
from support.process import PROGRAMS, output_of
from support.weight_files import entry, weight_file, write

TIB = 1 << 40


@dataclass(frozen=True)
class Case:
    row: int
    what: str
    content: bytes
    refusal: str | None  # our error message; None if we accept the file
    upstream_accepts: bool
    lenient_refusal: str | None = None  # the message with strict=False, if it differs

    def __str__(self):
        return f"{self.row}-{self.what}"


def accepted(row, what, header, data=0):
    return Case(row, what, weight_file(header, data), None, upstream_accepts=True)


def refused(row, what, refusal, header, data=0, lenient_refusal=None):
    return Case(row, what, weight_file(header, data), refusal, False, lenient_refusal or refusal)


def refused_if_strict(row, what, refusal, header, data=0):
    return Case(row, what, weight_file(header, data), refusal, upstream_accepts=True)


def one(dtype="U8", shape="[1]", offsets="[0,1]", name="a", more=""):
    """Returns a header with one tensor. Each part is given as JSON text."""
    return f'{{"{name}":{{"dtype":"{dtype}",{more}"shape":{shape},"data_offsets":{offsets}}}}}'


def extents(*ranges):
    """Returns a header of byte tensors a, b, … at these offsets."""
    names = "abcdefgh"
    return {
        name: entry("U8", [max(end - begin, 0)], begin, end)
        for name, (begin, end) in zip(names, ranges, strict=False)
    }


def twice(first, second, name="a"):
    """Returns a header with two entries for the name a. The second entry spells it as `name`."""
    return f'{{"a":{json.dumps(first)},"{name}":{json.dumps(second)}}}'


def bare(length):
    return length.to_bytes(8, "little") + b"{}"


FOUR = entry("U8", [4], 0, 4)
NESTED = "[" * 200 + "]" * 200

CASES = [
    Case(1, "empty file", b"", "too small: found 0 bytes", False),
    Case(1, "seven bytes", bytes(7), "too small: found 7 bytes", False),
    refused(2, "length 0", "EOF", b""),
    Case(3, "longer than the file", bare(3), "header length: found 3 bytes, but the file has 2", False),
    Case(3, "largest allowed", bare(100_000_000), "found 100000000 bytes, but the file has 2", False),
    Case(4, "beyond the limit", bare(100_000_001), "too large: found 100000001", False),
    Case(4, "2^63", bare(1 << 63), f"too large: found {1 << 63}", False),
    Case(4, "2^64-1", bare((1 << 64) - 1), f"too large: found {(1 << 64) - 1}", False),
    refused(5, "bad UTF-8", "invalid UTF-8", b'{"\xff":1}'),
    refused(5, "byte order mark", "invalid JSON", b"\xef\xbb\xbf{}"),
    refused(6, "no JSON", "invalid JSON", "hello"),
    refused(6, "an array", "invalid JSON", "[]"),
    refused(6, "null", "invalid JSON", "null"),
    refused(6, "a string", "invalid JSON", '"a"'),
    accepted(7, "no tensors", "{}"),
    accepted(7, "metadata alone", '{"__metadata__":{"a":"b"}}'),
    refused_if_strict(7, "null metadata", "__metadata__", '{"__metadata__":null}'),
    refused(8, "a byte without a tensor", "1 extra", "{}", 1),
    refused(8, "a trailing byte", "1 extra", extents((0, 4)), 5),
    refused(8, "a byte short", "short by 1", extents((0, 4)), 3),
    refused(8, "no data", "short by 4", extents((0, 4)), 0),
    refused(9, "metadata value of type int", "invalid type", '{"__metadata__":{"a":1}}'),
    refused(9, "metadata value of type object", "invalid type", '{"__metadata__":{"a":{}}}'),
    refused(9, "metadata a list", "invalid type", '{"__metadata__":[]}'),
    refused(9, "a tensor called __metadata__", "invalid type", one(name="__metadata__"), 1),
    refused(10, "metadata twice", "duplicate field", '{"__metadata__":{},"__metadata__":{}}'),
    refused_if_strict(11, "metadata key twice", 'duplicate key "k"', '{"__metadata__":{"k":"1","k":"2"}}'),
    refused_if_strict(12, "tensor twice", 'duplicate key "a"', twice(FOUR, FOUR), 4),
    refused_if_strict(
        12, "tensor twice as two types", 'duplicate key "a"', twice(FOUR, entry("F32", [1], 0, 4)), 4
    ),
    refused(13, "two with a name", 'duplicate key "a"', twice(FOUR, entry("U8", [4], 4, 8)), 8, "offset"),
    refused(
        13, "two spellings", 'duplicate key "a"', twice(FOUR, entry("U8", [4], 4, 8), r"\u0061"), 8, "offset"
    ),
    refused(14, "dtype twice", "duplicate field `dtype`", one(more='"dtype":"U8",'), 1),
    refused(14, "shape twice", "duplicate field `shape`", one(more='"shape":[1],'), 1),
    refused(14, "offsets twice", "duplicate field `data_offsets`", one(more='"data_offsets":[0,1],'), 1),
    accepted(15, "unknown field", one(more='"extra":{"x":[1.5,null]},'), 1),
    refused_if_strict(16, "entry as an array", "invalid type", '{"a":["F32",[1],[0,4]]}', 4),
    refused(17, "no dtype", "missing field `dtype`", '{"a":{"shape":[1],"data_offsets":[0,1]}}', 1),
    refused(17, "no shape", "missing field `shape`", '{"a":{"dtype":"U8","data_offsets":[0,1]}}', 1),
    refused(17, "no offsets", "missing field `data_offsets`", '{"a":{"dtype":"U8","shape":[1]}}', 1),
    refused(17, "entry null", "invalid type: null", '{"a":null}'),
    refused(18, "unknown type", '"C128"', one("C128"), 1),
    refused(18, "lower case", '"f32"', one("f32", offsets="[0,4]"), 4),
    *[
        refused(19, f"dimension {number}", "invalid JSON", one(shape=f"[{number}]"), 1)
        for number in ["-1", "1.0", "1e0", '"1"', "null", "01", "-0", str(1 << 64)]
    ],
    refused(20, "product overflows", "overflow", one(shape=f"[{1 << 32},{1 << 32}]", offsets="[0,0]")),
    refused(20, "bits overflow", "overflow", one("F64", f"[{1 << 58}]", "[0,0]")),
    refused(20, "overflow, then 0", "overflow", one(shape=f"[{TIB},{TIB},0]", offsets="[0,0]")),
    accepted(21, "0, then overflow", one("F32", f"[0,{TIB},{TIB}]", "[0,0]")),
    refused(22, "one offset", "invalid length 1", one(offsets="[0]"), 1),
    refused(22, "three offsets", "invalid length 3", one(offsets="[0,1,2]"), 1),
    refused(22, "negative offset", "invalid value", one(offsets="[-1,1]"), 1),
    refused(23, "begin after end", "end before they begin", extents((4, 0)), 4),
    refused(23, "first not at 0", "a hole of 1 bytes", extents((1, 5)), 5),
    refused(23, "hole", "a hole of 1 bytes", extents((0, 4), (5, 6)), 6),
    refused(23, "overlap", "an overlap of 1 bytes", extents((0, 4), (3, 6)), 6),
    refused(23, "one region twice", 'tensor "b": its data begin at 0', extents((0, 4), (0, 4)), 4),
    accepted(24, "other order than the data", extents((4, 6), (0, 4)), 6),
    refused(25, "shape too small", "takes 4 bytes", one("F32", "[1]", "[0,8]"), 8),
    refused(25, "shape too large", "takes 12 bytes", one("F32", "[3]", "[0,8]"), 8),
    refused(26, "2^60 elements", "short by", one(shape=f"[{1 << 60}]", offsets=f"[0,{1 << 60}]")),
    refused(27, "odd count of F4", "byte boundary", one("F4", "[3]", "[0,1]"), 1),
    refused(27, "F6 with a broken byte", "byte boundary", one("F6_E2M3", "[2]", "[0,1]"), 1),
    accepted(28, "rank 0", one("F32", "[]", "[0,4]"), 4),
    accepted(28, "empty dimension", one("F32", "[3,0]", "[0,0]")),
    accepted(28, "empties between", extents((0, 0), (0, 4), (4, 4), (4, 4), (4, 5), (5, 5)), 5),
    accepted(29, "rank 1000", one(shape=f"[{'1,' * 999}1]"), 1),
    accepted(30, "white space first", " \t\r\n{}"),
    accepted(31, "white space last", "{} \t\r\n"),
    refused(32, "NUL padding", "trailing characters", "{}\0"),
    refused(32, "garbage", "trailing characters", "{}x"),
    refused(32, "second object", "trailing characters", "{}{}"),
    refused(33, "comment", "invalid JSON", "{/* */}"),
    refused(33, "trailing comma", "trailing comma", one(shape="[1,]"), 1),
    refused(33, "raw control character", "control character", '{"__metadata__":{"a":"\n"}}'),
    refused(33, "lone surrogate", "invalid JSON", one(name=r"\ud800"), 1),
    accepted(34, "empty name", one(name=""), 1),
    accepted(34, "path-like name", one(name="../../etc/passwd"), 1),
    accepted(34, "escaped unicode", one(name=r"\u00e9"), 1),
    refused_if_strict(34, "NUL in a name", "NUL", one(name=r"a\u0000"), 1),
    *[
        accepted(35, f"{pad} of padding", json.dumps(extents((0, 1), (1, 5))) + " " * pad, 5)
        for pad in range(8)
    ],
    refused(36, "deep metadata", "invalid type", f'{{"__metadata__":{NESTED}}}'),
    refused_if_strict(37, "type as an object", "invalid type", one().replace('"U8"', '{"U8":null}'), 1),
    accepted(38, "unknown field twice", one(more='"x":1,"x":2,'), 1),
    accepted(39, "NUL in metadata", r'{"__metadata__":{"a":"\u0000"}}'),
    refused(40, "huge number ignored", "number out of range", one(more='"x":1e400,'), 1),
    refused(40, "deep value ignored", "recursion limit", one(more=f'"x":{NESTED},'), 1),
]

OPENERS = {
    "open_checkpoint": open_checkpoint,
    "safe_open": lambda path, strict: safe_open(path, "np", strict=strict),
}

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_opener = pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS.keys())


@pytest.fixture
def path(tmp_path, request):
    """Writes the file of the case."""
    return write(tmp_path / "case.safetensors", request.getfixturevalue("case").content)


def accepts(opener, path):
    try:
        opener(path)
    except safetensors.SafetensorError:
        return False
    return True


def test_the_table_has_every_row_of_the_specification():
    assert sorted({case.row for case in CASES}) == list(range(1, 41))


@every_case
def test_upstream_decides_as_the_table_says(case, path):
    assert accepts(lambda path: safetensors.safe_open(path, "np"), path) == case.upstream_accepts


@every_opener
@every_case
def test_strict_decides_as_the_table_says_and_tells_what_was_found(case, path, opener):
    if case.refusal is None:
        opener(path, strict=True)
        assert case.upstream_accepts, "strict accepts nothing that upstream refuses"
    else:
        with pytest.raises(SafetensorError, match=re.escape(case.refusal)) as caught:
            opener(path, strict=True)
        assert str(caught.value).startswith(f"{path}: ")


@every_opener
@every_case
def test_lenient_decides_as_upstream_does(case, path, opener):
    if case.upstream_accepts:
        opener(path, strict=False)
    else:
        refusal = case.lenient_refusal or case.refusal
        with pytest.raises(SafetensorError, match=re.escape(refusal)) as caught:
            opener(path, strict=False)
        assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("case", [case for case in CASES if case.upstream_accepts], ids=str)
def test_lenient_finds_what_upstream_finds(case, path):
    assert contents(path, safe_open, strict=False) == contents(path, safetensors.safe_open)
    assert infos(path) == slices(path)


@pytest.mark.parametrize("case", [case for case in CASES if case.refusal is None], ids=str)
def test_only_unknown_fields_are_warned_of(case, path):
    assert bool(open_checkpoint(path).warnings) == (case.row in (15, 38))


@pytest.mark.parametrize("row", [21, 29])
def test_shapes_beyond_numpy_open_and_are_refused_as_arrays(row, tmp_path):
    case = next(case for case in CASES if case.row == row)
    path = write(tmp_path / "case.safetensors", case.content)
    weights = open_checkpoint(path)
    assert len(weights.info("a").shape) == {21: 3, 29: 1000}[row]
    with pytest.raises(ValueError, match=r"dimension|too big"):
        weights["a"]
    with pytest.raises(ValueError, match=r"dimension|too big"):
        safe_open(path, "np").get_tensor("a")


def contents(path, opener, **options):
    with opener(path, "np", **options) as file:
        return file.keys(), file.metadata()


def infos(path):
    weights = open_checkpoint(path, strict=False)
    found = (weights.info(name) for name in weights)
    return {info.name: (info.dtype, list(info.shape)) for info in found}


def slices(path):
    with safetensors.safe_open(path, "np") as file:
        pieces = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return {name: (piece.get_dtype(), piece.get_shape()) for name, piece in pieces.items()}


BASES = [
    {"weight": np.arange(6, dtype="f4").reshape(2, 3), "bias": np.zeros(3, "f4")},
    {"a": np.zeros((2, 0), "i8"), "b": np.array(1.5), "c": np.ones(5, bool)},
    {f"layer.{i}": np.full((i, 2), i, "u2") for i in range(8)},
]


# Patterns in a header, and their replacements.
SUBSTITUTES = [
    (rb"\d+", [b"0", b"1", b"2", b"12", b"24", b"-1", b"1.0"]),
    (rb'"[A-Z]+\d*"', [b'"F32"', b'"I64"', b'"U8"', b'"BF16"', b'"X"', b'{"U8":null}']),
    (rb'"[a-z_.\d]+"', [b'"weight"', b'"bias"', b'"a"', b'"__metadata__"', b'"dtype"', b'"extra"']),
    (rb"[,:]", [b", ", b" :", b":", b","]),
    (rb'"dtype"', [b'"x":[1],"dtype"', b'"dtype":"U8","dtype"']),
    (rb"\[0,", [b"[ 0,", b"[00,", b"[0.0,"]),
]
INSERTS = [b" ", b"0", b",", b'"', b"{", b"]", b"\\u0061", b"\xff", b"\0"]


def mutate(content, chance):
    """Applies one small change: to the header, to its length, or to the length of the data."""
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]
    kind = chance.randrange(10)
    at = chance.randrange(len(header) + 1)
    if kind < 6:
        header = substitute(*chance.choice(SUBSTITUTES), header, chance)
    elif kind == 6:
        header = header[:at] + chance.choice(INSERTS) + header[at + chance.randrange(3) :]
    elif kind == 7:
        header = header[:at] + header[chance.randrange(len(header) + 1) :]
    elif kind == 8:
        return chance.randrange(2 * len(header) + 1).to_bytes(8, "little") + header + data
    else:
        data = data[: chance.randrange(len(data) + 1)] + bytes(chance.randrange(3))
    return weight_file(header, data)


def substitute(pattern, choices, text, chance):
    places = list(re.finditer(pattern, text))
    if not places:
        return text
    found = chance.choice(places)
    return text[: found.start()] + chance.choice(choices) + text[found.end() :]


@pytest.mark.parametrize("seed", range(6))
def test_lenient_agrees_with_upstream_on_mutated_files(tmp_path, seed):
    chance = random.Random(seed)
    valid = [safetensors.numpy.save(base, {"format": "np"}) for base in BASES]
    count = {True: 0, False: 0}
    for number in range(1000):
        content = chance.choice(valid)
        for _ in range(chance.randint(1, 2)):
            content = mutate(content, chance)
        path = write(tmp_path / str(number), content)
        expected = accepts(lambda path: safetensors.safe_open(path, "np"), path)
        count[expected] += 1
        assert accepts(lambda path: open_checkpoint(path, strict=False), path) == expected, content
        assert expected or not accepts(open_checkpoint, path), content
        if expected:
            assert infos(path) == slices(path), content
            assert contents(path, safe_open, strict=False) == contents(path, safetensors.safe_open), content
    assert min(count.values()) > 100, f"the mutations should give files of both sorts: {count}"


MILLION = PROGRAMS / "weights_header/million.py"


def test_a_million_tensors_take_at_most_three_times_their_header(tmp_path):
    entries = (
        f'"model.layers.{i}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{i + 1}]}}'
        for i in range(1_000_000)
    )
    header = f"{{{','.join(entries)}}}"
    path = write(tmp_path / "million.safetensors", weight_file(header, 1_000_000))
    taken_bytes, count, offset = map(int, output_of(MILLION, path).split())
    assert (count, offset) == (1_000_000, 8 + len(header) + 999_999)
    assert taken_bytes <= 3 * len(header)


# --- reads ----------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("tensors", "reads"), [(10, 1), (2000, 2)])
def test_a_header_needs_one_read_and_a_long_one_two(source, tensors, reads):
    arrays = {f"layer.{number}": np.full(100, number, "i4") for number in range(tensors)}
    safetensors.numpy.save_file(arrays, source / "file.safetensors")
    with (
        real.slow_fuse(source, source.parent / "slow", direct_io=True) as slow,
        open_checkpoint(slow.path / "file.safetensors") as weights,
    ):
        assert set(weights) == set(arrays)
    assert slow.counts["read_requests"] == reads


def test_bytes_behind_the_header_need_not_be_readable(source):
    safetensors.numpy.save_file({"x": np.arange(1 << 16)}, source / "file.safetensors")
    with (
        real.slow_fuse(source, source.parent / "slow", direct_io=True, fail_range=(4096, 8192)) as slow,
        open_checkpoint(slow.path / "file.safetensors") as weights,
    ):
        assert weights.info("x").shape == (1 << 16,)
        with pytest.raises(MappedReadError, match="kernel log"):
            weights.read("x")
