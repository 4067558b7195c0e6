"""Only the unreadable pages of a disk are replaced."""

import sys

import numpy as np

from pagestream import MappedFile
from pagestream.errors import MappedReadError

path = sys.argv[1]
f = MappedFile(path)
f.advise("random")  # one page per request
array = np.frombuffer(f, "u8").reshape(256, 512)
assert [array[page, 0] for page in (97, 102)] == [98, 103]
try:
    array[100, 0]
    for _ in range(100):
        pass
except MappedReadError as error:
    assert error.filename == path and error.offset <= 100 * 4096 < error.offset + error.length
    assert error.length <= 65536, error.length
    assert "storage failed" in str(error), error
    broken = range(error.offset // 4096, (error.offset + error.length) // 4096)
else:
    raise AssertionError("nothing was raised")
assert 97 not in broken and 102 not in broken, broken
whole = [page for page in range(256) if page not in broken]
assert (array[whole] == np.array(whole)[:, None] + 1).all() and not array[list(broken)].any()
assert f.read(0, 4096) == array[0].tobytes()
try:
    f.read(100 * 4096, 10)
except MappedReadError as error:
    assert error.errno == 5 and "Input/output error" in str(error)
    print("raised")
