"""Prints the files that audit hooks see when corpora are opened: FOLDER REFUSED.

Refuses a file whose name ends in REFUSED, and then prints the files that are open nevertheless.
"""

import os
import sys

from pagestream import open_tokens

folder, refused = sys.argv[1:]
seen = set()


def hook(event, arguments):
    if event == "pagestream.open":
        name = os.path.basename(str(arguments[0]))
        if os.path.exists(str(arguments[0])):
            seen.add(name)
        if name.endswith(refused):
            message = f"refused {refused}"
            raise PermissionError(message)


sys.addaudithook(hook)
try:
    corpora = [open_tokens(f"{folder}/m.bin"), open_tokens(f"{folder}/t.ds")]
except PermissionError as error:
    print(error)
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    print([target for target in targets if target.startswith(folder) and target.endswith(refused)])
else:
    print("\n".join(sorted(seen)))
