"""A view stays valid after its file is closed."""

import numpy as np
from few_descriptors import contents, paths

from pagestream import open_tokens

corpus = open_tokens(paths)
views = [corpus[3 * n : 3 * n + 3] for n in range(100)]
expected = contents()
corpus.close()
del corpus
assert (np.concatenate(views) == expected).all()
print("good")
