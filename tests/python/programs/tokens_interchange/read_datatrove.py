"""datatrove reads token files of pagestream."""

import sys

import numpy as np
from datatrove.utils.dataset import DatatroveFileDataset

for name, size in (("uint16", 2), ("uint32", 4)):
    windows = DatatroveFileDataset(f"{sys.argv[1]}/{name}.ds", 16, token_size=size)
    expected = np.fromfile(f"{sys.argv[1]}/{name}.ds", name)
    assert len(windows) == len(expected) // 17
    for number in range(len(windows)):
        found = windows[number]["input_ids"].tolist()
        assert found == expected[17 * number : 17 * number + 17].tolist(), (name, number)
print("good")
