"""Instructions per call, counted by callgrind.

On a busy machine, timing cannot reveal a call that has become 20 % slower. The number of instructions does
not vary.
"""

import re
import subprocess

import pytest

from support import real
from support.process import PROGRAMS, output_of

# Instructions per call of pagestream, and of a reference in the same process: safetensors for weights, NumPy
# for tokens. The test compares their quotients, so another version of Python or NumPy changes little.
NUMPY = {
    "get_tensor": (8_871, 18_819),
    "open 1,000 tensors": (2_971_474, 7_818_344),
    "open 30,000 tensors": (85_781_572, 247_821_521),
}
TORCH = {"get_tensor": (15_316, 76_093)}
TOKENS = {"one window": (11_817, 16_230), "next(loader)": (51_676, 733_057)}
LIMIT = 1.1


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Builds the library that starts and ends a count."""
    real.need_tool("valgrind")  # and its headers
    library = tmp_path_factory.mktemp("costs") / "count.so"
    compile_it = [real.need_tool("gcc"), "-shared", "-fPIC", PROGRAMS / "costs/count.c", "-o", library]
    subprocess.run(compile_it, check=True)
    return library


def counted(program, library, folder, *arguments):
    """Returns the instructions per call of each case, of pagestream and of the reference."""
    callgrind = [
        real.need_tool("valgrind"),
        "--tool=callgrind",
        "--instr-atstart=no",
        f"--callgrind-out-file={folder}/counts",
    ]
    output_of(
        PROGRAMS / "costs" / program,
        folder,
        *arguments,
        wrapper=callgrind,
        COUNT_LIBRARY=str(library),
        PYTHONHASHSEED="0",
    )
    found = {}
    for path in folder.glob("counts.*"):
        text = path.read_text()
        who, what, times = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)[1].split(
            "|"
        )
        found[who, what] = int(re.search(r"^totals: (\d+)$", text, re.MULTILINE)[1]) // int(times)
    cases = dict.fromkeys(what for _, what in found)
    return {what: (found["pagestream", what], found["reference", what]) for what in cases}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "arguments", "recorded"),
    [
        pytest.param("weights.py", ["np"], NUMPY, id="numpy"),
        pytest.param("weights.py", ["pt"], TORCH, id="torch"),
        pytest.param("tokens.py", [], TOKENS, id="tokens"),
    ],
)
def test_calls_take_no_more_instructions_than_recorded(library, tmp_path, program, arguments, recorded):
    found = counted(program, library, tmp_path, *arguments)
    print(found)  # pytest shows this if the test fails
    assert found.keys() == recorded.keys()
    for what, (ours, reference) in found.items():
        quotient, allowed = ours / reference, LIMIT * recorded[what][0] / recorded[what][1]
        assert quotient <= allowed, (
            f"{what}: {ours:,} instructions are {quotient:.3f} of the reference's {reference:,}, but at most "
            f"{allowed:.3f} are allowed. If the change is worth its cost, record the new counts here"
        )
