"""Opens hostile checkpoints under strace."""

import sys

import pagestream

print("begin", flush=True)
for folder in sys.argv[1:]:
    try:
        pagestream.open_checkpoint(folder)
    except pagestream.errors.SafetensorError as error:
        print(error)
