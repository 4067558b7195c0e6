"""Exits with a stream to a device open. Prints leftovers after pagestream's exit handlers."""

import atexit
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

# Handlers run in reverse order. This one runs last, after the handlers of the modules imported below.
atexit.register(lambda: print(f"{len(late.registered)} registered, {len(late._reading)} under way"))

from pagestream import open_checkpoint
from pagestream.devices.planned import cast_to, planned
from pagestream.devices.transfer import transferred
from pagestream.weights.checkpoint import native_files

from support.late_device import LateDevice

late = LateDevice()
weights = open_checkpoint(sys.argv[1])
files, wanted = native_files(weights), planned(weights, None, "file")
pairs = transferred(files, wanted, late, cast_to(None), 4 << 20, None, "pread")
print(next(pairs)[0].info.name)
# This keeps the generator alive longer than this program's module.
sys.pairs = pairs
