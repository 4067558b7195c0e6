"""Several checkpoints share the limit of descriptors and release them again."""

import resource
import sys

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
import pagestream

for turn in range(3):
    several = [pagestream.open_checkpoint(sys.argv[1]) for _ in range(8)]
    print([weights._files.open_files for weights in several])
    del several
