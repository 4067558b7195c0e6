"""Environment variables: the effect of each one, and the errors for invalid values."""

import logging

import numpy as np
import pytest

from support.process import PROGRAMS, output_of, run_python

USES = PROGRAMS / "environment/uses.py"


@pytest.fixture
def path(tmp_path):
    np.arange(4096, dtype="u2").tofile(tmp_path / "tokens.bin")
    return tmp_path / "tokens.bin"


def test_the_library_is_silent_by_itself(path):
    done = run_python(USES, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    kinds = "import logging, pagestream; print(*map(type, logging.getLogger('pagestream').handlers))"
    assert output_of(kinds) == str(logging.NullHandler)


def test_a_level_makes_it_tell_what_it_does(path):
    told = {}
    for level in ("debug", "info", "warning", "error"):
        done = run_python(USES, path, PAGESTREAM_LOG=level)
        assert (done.returncode, done.stdout) == (0, "")
        told[level] = done.stderr
    assert told["warning"] == told["error"] == ""
    assert f"opened <TokenCorpus 4096 uint16 tokens in {path}>" in told["info"]
    assert "INFO: started <TokenLoader shuffled [2, 8]" in told["info"]
    assert "DEBUG" not in told["info"]
    assert f"DEBUG: opened {path}: shared" in told["debug"]
    assert f"DEBUG: opened {path}: read" in told["debug"]
    assert "DEBUG: stopped, with {" in told["debug"]
    assert all(line in told["debug"] for line in told["info"].splitlines())


def test_a_mode_that_is_not_the_first_choice_is_told_with_its_reason(tmp_path, direct_mount):
    np.arange(100, dtype="u2").tofile(tmp_path / "source" / "t.bin")
    code = "import sys, pagestream; pagestream.MappedFile(sys.argv[1])"
    done = run_python(code, direct_mount / "t.bin", PAGESTREAM_LOG="info")
    assert "t.bin: private, because MAP_SHARED: ENODEV" in done.stderr


@pytest.mark.parametrize("value", ["", "loud", "INFO", "10"])
def test_a_level_that_there_is_not_is_an_error_that_names_the_variable(value):
    done = run_python("import pagestream", PAGESTREAM_LOG=value)
    assert (
        f'ValueError: PAGESTREAM_LOG must be "debug", "info", "warning" or "error", not {value!r}'
        in done.stderr
    )


def test_a_program_that_logs_hears_the_library(path):
    code = PROGRAMS / "environment/a_program_that_logs_hears_the_library.py"
    assert output_of(code, path) == "pagestream.tokens INFO"
