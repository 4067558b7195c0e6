"""Pages that were written stay when they are in swap and another page fails."""

from damaged import used
from swapped import right, x

used(x[100].sum)
print(right())
