"""Prints the strategy of a stream twice, with the reasons."""

import json
import sys

from pagestream import open_checkpoint
from pagestream.weights import streaming
from pagestream.weights.checkpoint import native_files

with open_checkpoint(sys.argv[1]) as weights:
    infos = [weights.info(name) for name in weights]
    wanted = [streaming.Wanted(info, ..., info.dtype, info.shape, None) for info in infos]
    files = native_files(weights)
    limited = streaming.chosen(files, wanted, "auto", is_limited=True)
    found = {time: streaming.chosen(files, wanted, "auto") for time in ("first", "second")}
    found["limited"] = limited
print(json.dumps(found))
