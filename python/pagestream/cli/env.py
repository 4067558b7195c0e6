"""``pagestream env``: versions, limits and mounts, for a bug report."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from importlib import metadata
from typing import Annotated

import typer

from pagestream import _native
from pagestream._common.amounts import size
from pagestream._common.paths import expanded
from pagestream.cli import _output
from pagestream.cli._arguments import AsJson
from pagestream.cli._controls import harmless

# Packages that pagestream works with. The first ones are listed even if they are not installed.
_ALWAYS = ("numpy", "torch", "safetensors")
_IF_INSTALLED = (
    "transformers",
    "accelerate",
    "diffusers",
    "tokenizers",
    "jax",
    "tensorflow",
    "vllm",
    "sglang",
    "tensorrt-llm",
    "typer",
    "rich",
)
_PREFIX = "PAGESTREAM_"
_LIMITS = {"RLIMIT_AS": "bytes", "RLIMIT_MEMLOCK": "bytes", "RLIMIT_NOFILE": "files"}
# For example https://user:password@host as the source of a mount.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


def env(
    paths: Annotated[list[str] | None, typer.Argument(help="Files or folders whose mounts to show.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print versions, limits and the mounts of paths, for a bug report.

    It prints no environment variables, except variables that begin with PAGESTREAM_.

    Example: pagestream env /mnt/models/llama
    """
    mounts = {path: _mount(expanded(path)) for path in paths or ()}
    facts = _facts()
    if as_json:
        _output.print_json({**facts, "mounts": mounts})
        return
    _print(facts)
    for path, mount in mounts.items():
        print(harmless(path))
        _print({f"  {name}": fact for name, fact in mount.items()})


def _print(facts: dict[str, str]) -> None:
    width = max(map(len, facts))
    for name, fact in facts.items():
        print(harmless(f"{name:{width}}  {fact}").rstrip())


def _facts() -> dict[str, str]:
    versions = {name: _version(name) for name in (*_ALWAYS, *_IF_INSTALLED)}
    system = os.uname()
    return {
        "pagestream": _native.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})",
        **{name: found or "not installed" for name, found in versions.items() if found or name in _ALWAYS},
        "kernel": f"{system.sysname} {system.release} {system.machine}",
        "C library": _c_library(),
        "processors": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "page size": size(resource.getpagesize()),
        "memory available": size(_native.available_memory_bytes()),
        "cgroup memory": _cgroup_memory(),
        **{name: _limit(name, unit) for name, unit in _LIMITS.items()},
        "fault guard": _fault_guard(),
        **{name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIX)},
    }


def _fault_guard() -> str:
    word = os.environ.get("PAGESTREAM_FAULT_GUARD", "on")
    return f"{word}, SIGBUS handler {'installed' if _native.guard() else 'not installed'}"


def _version(package: str) -> str | None:
    """Returns the version of an installed package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _c_library() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (ValueError, OSError):  # musl
        return "unknown"


def _limit(name: str, unit: str) -> str:
    soft, hard = (_amount(limit, unit) for limit in resource.getrlimit(getattr(resource, name)))
    return soft if soft == hard else f"{soft}, at most {hard}"


def _amount(limit: int, unit: str) -> str:
    if limit == resource.RLIM_INFINITY:
        return "unlimited"
    return size(limit) if unit == "bytes" else str(limit)


def _cgroup_memory(root: str = "/") -> str:
    """Returns the tightest memory limit of the control groups of this process, of version 2 or 1."""
    limits: list[str] = []
    for line in _text(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        is_first_version = "memory" in controllers.split(",")
        if controllers and not is_first_version:
            continue
        mount, file = ("memory", "memory.limit_in_bytes") if is_first_version else ("", "memory.max")
        parts = group.strip("/").split("/")
        folders = [os.path.join(root, "sys/fs/cgroup", mount, *parts[:n]) for n in range(len(parts) + 1)]
        limits += [_text(os.path.join(folder, file)).strip() for folder in folders]
    numbers = [int(limit) for limit in limits if limit.isdigit()]
    # Version 1 reports the largest number of pages if there is no limit.
    numbers = [number for number in numbers if number < sys.maxsize - resource.getpagesize()]
    if numbers:
        return size(min(numbers))
    return "unlimited" if any(limits) else "unknown"


def _mount(path: str) -> dict[str, str]:
    """Returns facts about the mount of a path.

    Raises:
        OSError: There is no such path.
    """
    # This neither reads the path nor waits for the writer of a pipe.
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        device = os.fstat(descriptor).st_dev
        [number] = re.findall(r"^mnt_id:\s*(\d+)$", _text(f"/proc/self/fdinfo/{descriptor}"), re.MULTILINE)
    finally:
        os.close(descriptor)
    # Fields: https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
    for line in _text("/proc/self/mountinfo").splitlines():
        of_mount, _, of_system = line.partition(" - ")
        mount_number, _, numbers, _, mount_point, options, *_ = of_mount.split(" ")
        if mount_number == number:
            kind, source, *more = of_system.split(" ")
            break
    else:
        return {"mount": "unknown"}
    window = _text(f"/sys/class/bdi/{numbers}/read_ahead_kb").strip()
    return {
        "mount": mount_point,
        "file system": f"{kind} ({_CREDENTIALS.sub('', source)})",
        "options": _CREDENTIALS.sub("", ",".join([options, *more])),
        "device": f"{os.major(device)}:{os.minor(device)}",
        "read_ahead_kb": window or "unknown",
    }


def _text(path: str) -> str:
    """Returns the text of a file, or an empty string if it cannot be read."""
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
