"""The notice of damage reaches a caller, and our signal handler moves back to the front."""

from pathlib import Path

import pytest
from safetensors.numpy import save_file

from support.process import PROGRAMS, output_of


@pytest.mark.parametrize("callback", ["finaliser", "weak reference", "collector", "fork", "two finalisers"])
def test_a_notice_that_nobody_could_catch_is_raised_again(big_file, callback):
    code = PROGRAMS / "faults_notice/a_notice_that_nobody_could_catch_is_raised_again.py"
    assert output_of(code, big_file, callback).split() == ["True", "True", "False"]


def test_a_notice_that_was_caught_is_not_raised_again(big_file):
    code = PROGRAMS / "faults_notice/a_notice_that_was_caught_is_not_raised_again.py"
    assert output_of(code, big_file) == "True False ['KeyError']"


def test_an_earlier_hook_gets_the_same_calls_as_before(big_file):
    code = PROGRAMS / "faults_notice/a_hook_gets_what_it_got_before.py"
    assert output_of(code, big_file) == "MappedReadError KeyError"


@pytest.mark.parametrize("wait", ["join", "queue", "lock", "condition"])
def test_a_main_thread_that_waits_for_a_worker_gets_the_notice_at_once(big_file, wait):
    """The worker continues only after the main thread has the notice, or gives up after a minute."""
    code = PROGRAMS / "faults_notice/a_main_thread_that_waits_hears_of_it.py"
    assert output_of(code, big_file, wait) == "True []"


def test_a_notice_leaves_the_fork_hooks_of_a_child_alone(big_file):
    """The child gets the exception in its first call."""
    code = PROGRAMS / "faults_notice/a_child_of_the_faulting_thread.py"
    assert output_of(code, big_file).splitlines() == ["1 [] True False", "True"]


# --- back in front of later handlers --------------------------------------------------------------


CALLS = [
    "check",
    "read",
    "read_into",
    "view",
    "advise",
    "residency",
    "warm",
    "evict",
    "unlock",
    "refresh",
    "corpus",
    "tokens",
    "slice",
    "loader",
    "checkpoint",
    "tensor",
    "safe_open",
    "guard",
]


@pytest.mark.parametrize("handler", ["faulthandler", "python", "default"])
@pytest.mark.parametrize("call", CALLS)
def test_each_call_on_a_file_passes_a_handler_that_came_later(big_file, tmp_path, call, handler):
    """A fault behind one of these handlers kills the process, or never ends."""
    import numpy as np

    save_file({"x": np.ones(10, "f4")}, tmp_path / "x.safetensors")
    code = PROGRAMS / "faults_notice/a_call_passes_a_handler_that_came_later.py"
    assert output_of(code, big_file, tmp_path / "x.safetensors", call, handler) == "True"


def test_the_guard_says_when_it_is_off(big_file):
    code = "import pagestream\nprint(pagestream.guard())"
    assert output_of(code, PAGESTREAM_FAULT_GUARD="off") == "False"
    assert output_of(code) == "True"


@pytest.mark.frameworks
def test_a_worker_of_a_data_loader_that_only_slices_arrays_is_guarded(tmp_path):
    """torch installs its own handler in each worker after the fork."""
    program = Path(__file__).parent / "support/guarded_workers.py"
    assert output_of(program, tmp_path / "t.bin") == "MappedReadError"
