"""Failing system calls: strace injects errors for one file."""

from support import real


def injecting(path, call, error, when):
    """Returns a command prefix that makes calls for `path` fail. `when` counts the calls of each thread."""
    return (
        real.need_tool("strace"),
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-P",
        str(path),
        "-e",
        f"inject={call}:error={error}:when={when}",
    )
