"""Nothing outside is opened nor read."""

import sys

import pagestream

print("begin", flush=True)
for folder in sys.argv[1:]:
    try:
        pagestream.open_checkpoint(folder)
    except pagestream.errors.SafetensorError as error:
        print(error)
