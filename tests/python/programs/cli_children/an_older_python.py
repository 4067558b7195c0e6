"""Pretends to be Python 3.6, and imports `sitecustomize` from two folders, as Python does at startup."""

import site
import sys

ours, users = sys.argv[1:]
sys.path[:0] = [ours, users]
sys.modules.pop("sitecustomize", None)
sys.version_info = (3, 6, 15)
before = list(sys.meta_path)
site.execsitecustomize()
print(sys.meta_path == before, sys.modules["sitecustomize"].OWNER, ours in sys.path)
