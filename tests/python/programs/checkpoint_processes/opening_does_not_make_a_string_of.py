"""Prints how much Python memory it takes to open a checkpoint with many names."""

import sys
import tracemalloc

import pagestream

pagestream.open_checkpoint(sys.argv[1]).close()
tracemalloc.start()
weights = pagestream.open_checkpoint(sys.argv[1])
weights["layer.17.3"]
print(tracemalloc.get_traced_memory()[1])
