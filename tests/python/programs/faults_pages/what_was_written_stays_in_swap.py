"""Written pages in swap stay when another page fails."""

from damaged import used
from swapped import right, x

used(x[100].sum)
print(right())
