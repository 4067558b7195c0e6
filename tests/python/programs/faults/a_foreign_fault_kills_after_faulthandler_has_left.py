"""A fault in a foreign mapping kills the process after faulthandler was disabled."""

from cut import cut_and_touch_a_foreign_mapping, opened
from handlers import enable_and_disable_faulthandler

f = opened()
enable_and_disable_faulthandler(f)
cut_and_touch_a_foreign_mapping()
