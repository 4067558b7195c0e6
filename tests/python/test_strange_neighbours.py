"""Programs that change the ground under pagestream, for example their directory, while it works."""

import os

import numpy as np
import safetensors.numpy

from support import real
from support.process import PROGRAMS, output_of

MIB = 1 << 20
NOBODY = 65534


def test_the_next_shard_is_that_of_the_folder_in_which_the_first_was_opened(tmp_path):
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
