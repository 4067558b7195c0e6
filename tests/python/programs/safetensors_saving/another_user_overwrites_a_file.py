"""Saves a file as another user, who may write the file but not its folder."""

import os
import tempfile
from contextlib import ExitStack

import numpy as np

from pagestream.safetensors import SafetensorError, _saving
from pagestream.safetensors.numpy import load_file, save_file

FIRST = np.arange(1 << 16, dtype="f4")
_saving._UNMAP_SECONDS = 0

with tempfile.TemporaryDirectory() as folder, ExitStack() as restore:
    path = f"{folder}/model.safetensors"
    save_file({"a": FIRST}, path)
    os.chmod(folder, 0o755)
    os.chmod(path, 0o666)
    inode = os.stat(path).st_ino
    os.seteuid(65534)
    restore.callback(os.seteuid, 0)
    loaded = load_file(path)["a"]
    try:
        save_file({"a": FIRST + 1}, path)
    except SafetensorError as error:
        assert "Permission denied" in str(error), error
    else:
        raise AssertionError
    assert (loaded == FIRST).all()
    del loaded
    save_file({"a": FIRST + 1}, path)
    assert os.stat(path).st_ino == inode
    assert (load_file(path)["a"] == FIRST + 1).all()
print("refused, saved")
