"""Pages of the page cache, which the kernel may take back at any time."""


def seen_once(are_cached):
    """Returns whether a check that loads pages and looks at them succeeds once in five times.

    Some machines give pages back that nobody has used for a while, also just after they were loaded
    (https://docs.kernel.org/admin-guide/mm/damon/reclaim.html). A `warm` that leaves pages out always fails.
    """
    return any(are_cached() for _ in range(5))
