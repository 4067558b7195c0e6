"""System calls that fail: by strace, for one file."""

from support import real


def injecting(path, call, error, when):
    """Returns the words before a command of which calls for `path` fail: `when` counts those of a thread."""
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
