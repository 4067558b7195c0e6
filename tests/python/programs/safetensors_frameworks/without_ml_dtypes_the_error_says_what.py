"""Without ml_dtypes, the error gives advice, and `raw` gives the bytes."""

import sys

sys.modules["ml_dtypes"] = None
from pagestream import open_checkpoint
from pagestream.errors import FormatError
from pagestream.safetensors import SafetensorError, safe_open

for ask, error in (
    (lambda: safe_open(sys.argv[1], "np").get_tensor("t"), SafetensorError),
    (lambda: open_checkpoint(sys.argv[1])["t"], FormatError),
):
    try:
        ask()
    except error as caught:
        for words in ("BF16", "pip install ml_dtypes", "raw=True"):
            assert words in str(caught)
    else:
        raise AssertionError
raw = safe_open(sys.argv[1], "np", raw=True).get_tensor("t")
print(raw.dtype, raw.shape, raw.tobytes().hex())
