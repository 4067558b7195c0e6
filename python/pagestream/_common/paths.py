"""Paths as users write them: only `expanded` understands ``~`` and rejects URLs."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagestream._common.types import StrPath

_S3 = "mount the bucket with mountpoint-s3 or rclone, or download the files"
_GOOGLE = "mount the bucket with gcsfuse or rclone, or download the files"
_AZURE = "mount the container with blobfuse2 or rclone, or download the files"
_WEB = "download the file, and pass its path"
# How to get a local path, by the scheme of a URL.
_REMEDIES = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GOOGLE,
    "gcs": _GOOGLE,
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "hf": "mount the repository with hf-mount, or download it with `hf download`",
    "hdfs": "mount HDFS over NFS or FUSE, or download the files",
    "http": _WEB,
    "https": _WEB,
    "file": "pass the path without the scheme",
}


def expanded(path: StrPath) -> str:
    """Returns a path as a str, with a home directory in place of ``~`` or ``~user``.

    If the current directory has an entry ``~``, that entry wins, so that every valid path means the same file
    as in other programs. The same holds for an entry ``s3:``.

    Raises:
        FileNotFoundError: The path is a URL, for example ``s3://bucket/train.bin``.
    """
    plain = os.fsdecode(path)
    if ":/" in plain:
        _refuse_url(plain)
    if not plain.startswith("~") or os.path.lexists(plain.partition(os.sep)[0]):
        return plain
    return os.path.expanduser(plain)


def _refuse_url(path: str) -> None:
    # One slash, because `pathlib.Path` drops the other.
    scheme, _, _ = path.partition(":/")
    remedy = _REMEDIES.get(scheme.lower())
    if remedy is None or os.path.lexists(f"{scheme}:"):
        return
    message = f"this is a URL, but pagestream opens files on mounted file systems; {remedy}"
    raise FileNotFoundError(errno.ENOENT, message, path)
