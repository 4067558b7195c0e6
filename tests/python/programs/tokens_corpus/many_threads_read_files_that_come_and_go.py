"""Many threads read a corpus whose files keep being opened and closed."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from few_descriptors import contents, paths

from pagestream import open_tokens

corpus = open_tokens(paths)
expected = contents()


def work(seed):
    rng = np.random.default_rng(seed)
    for start in rng.integers(0, 2900, 400).tolist():
        assert (corpus[start : start + 100] == expected[start : start + 100]).all()
        assert (corpus.read(start, start + 100) == expected[start : start + 100]).all()


with ThreadPoolExecutor(8) as pool:
    list(pool.map(work, range(8)))
assert corpus._files.open_count <= 16, corpus._files.open_count
print("good")
