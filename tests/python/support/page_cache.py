"""Pages of the page cache, which the kernel may reclaim at any time."""


def seen_once(are_cached):
    """Returns whether a check that loads pages and examines them succeeds within five attempts.

    Some machines reclaim idle pages, even right after these were loaded
    (https://docs.kernel.org/admin-guide/mm/damon/reclaim.html). A `warm` that skips pages fails every
    attempt.
    """
    return any(are_cached() for _ in range(5))
