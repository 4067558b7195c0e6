"""An audit hook sees existing checksums and can refuse them."""

import sys

from pagestream import open_checkpoint

weights = open_checkpoint(sys.argv[1])
seen = []
state = {"refuse": False}


def hook(event, arguments):
    if event == "pagestream.open":
        seen.append(str(arguments[0]))
        if state["refuse"]:
            raise PermissionError("refused")


sys.addaudithook(hook)
weights.verify()
print(seen)
weights.write_checksums()
weights.verify()
print(seen)
seen.clear()
list(weights.stream(verify=True))
print(seen)
state["refuse"] = True
for call in (weights.verify, lambda: weights.stream(verify=True)):
    try:
        call()
    except PermissionError as error:
        print(error)
