"""Programs that change their directory, wait for signals and so on, while pagestream works."""

import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy

from pagestream._common.threads import BackgroundThread

from support import real
from support.process import PROGRAMS, output_of

MIB = 1 << 20
NOBODY = 65534


def test_the_next_shard_comes_from_the_folder_of_the_first(tmp_path):
    source = tmp_path / "source"
    for value, name in enumerate(["here", "elsewhere"]):
        (source / name).mkdir(parents=True)
        for shard in (1, 2):
            content = {f"{shard}.{number:02}": np.full(MIB, value, "u1") for number in range(16)}
            safetensors.numpy.save_file(content, source / name / f"model-0000{shard}-of-00002.safetensors")
    with real.slow_fuse(source, tmp_path / "slow", direct_io=True) as slow:
        program = PROGRAMS / "strange_neighbours/changes_directory.py"
        lines = output_of(program, slow.path / "here", slow.path / "elsewhere").splitlines()
    assert lines == [f"{slow.path}/here/model-00002-of-00002.safetensors", "0"]


def test_a_relative_path_works_where_no_absolute_path_leads(tmp_path):
    if os.geteuid() != 0:
        real.missing("root, for dropping rights")
    folder = tmp_path / "closed/folder"
    folder.mkdir(parents=True)
    for number in range(2):
        path = folder / f"model-0000{number + 1}-of-00002.safetensors"
        safetensors.numpy.save_file({f"t{number}": np.full(5, number, "u1")}, path)
        path.chmod(0o644)
    folder.chmod(0o755)
    folder.parent.chmod(0o700)
    program = PROGRAMS / "strange_neighbours/may_not_search_above.py"
    assert output_of(program, folder, NOBODY).split() == ["forbidden", "0", "5", "0", "5"]


def test_a_signal_that_the_program_waits_for_reaches_it(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    content = {f"{number:02}": np.full(MIB, number, "u1") for number in range(64)}
    safetensors.numpy.save_file(content, source / "model.safetensors")
    with real.slow_fuse(source, tmp_path / "slow", delay_ms=3) as slow:
        program = PROGRAMS / "strange_neighbours/waits_for_a_signal.py"
        names, received = output_of(program, slow.path / "model.safetensors").splitlines()
    assert {"pagestream-idle", "pagestream-read"} <= set(names.split())
    assert received == "SIGUSR1"


def test_a_background_thread_blocks_signals_except_synchronous_ones():
    masks = []

    class Look(BackgroundThread):
        def run(self):
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    thread = Look("look")
    thread.start()
    thread.join()
    assert thread.daemon
    assert {signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGPROF} <= masks[0]
    assert not {signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE} & masks[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_kept_file_is_not_handed_out_to_a_process_that_has_given_up_its_rights():
    if os.geteuid() != 0:
        real.missing("root, for dropping rights")
    content = {f"{number:02}": np.full(MIB, number, "u1") for number in range(64)}
    # Other users may read files in this folder and on a bindfs mount of it.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chmod(folder, 0o755)
        source = Path(folder) / "source"
        source.mkdir()
        safetensors.numpy.save_file(content, source / "model.safetensors")
        (source / "model.safetensors").chmod(0o600)
        with real.bindfs(source, Path(folder) / "mount") as mount:
            program = PROGRAMS / "strange_neighbours/gives_up_rights.py"
            lines = output_of(program, mount / "model.safetensors", NOBODY).splitlines()
    assert lines == ["PermissionError", "PermissionError", "64"]


def test_a_free_threaded_build_is_refused():
    code = """
import sys
sys.abiflags += "t"
try:
    import pagestream
except ImportError as error:
    print(error)
"""
    assert output_of(code).startswith("import pagestream: this is a free-threaded build of Python, ")


def test_each_interpreter_but_the_main_one_refuses_the_import():
    lines = output_of(PROGRAMS / "strange_neighbours/has_interpreters.py").splitlines()
    told = "ImportError: import pagestream: this is a sub-interpreter, "
    # The interpreters are isolated or legacy, before and after the main interpreter imports pagestream.
    assert [line.startswith(told) for line in lines] == [True, True, False, True, True]
    assert lines[2] == "imported"
