"""Programs that change the ground under pagestream, for example their directory, while it works."""

import numpy as np
import safetensors.numpy

from support import real
from support.process import PROGRAMS, output_of

MIB = 1 << 20


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
