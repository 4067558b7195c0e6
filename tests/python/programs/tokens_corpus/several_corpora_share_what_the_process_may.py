"""Several corpora share the process's limit of open files."""

import resource
import sys

resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
from pagestream import open_tokens

paths = [f"{sys.argv[1]}/shard{n}" for n in range(200)]
corpora = [open_tokens(paths) for _ in range(6)]
print([corpus._files.open_count for corpus in corpora])
del corpora
print(open_tokens(paths)._files.open_count)
