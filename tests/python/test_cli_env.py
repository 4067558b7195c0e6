"""``pagestream env``: the facts of a bug report, without secrets."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata

import pytest
from typer.testing import CliRunner

import pagestream
from pagestream import MappedFile
from pagestream.cli import env
from pagestream.cli._app import app

from support.process import run_python


def test_a_report_has_versions_limits_and_our_variables_alone(tmp_path):
    variables = {"PAGESTREAM_AHEAD": "off", "HF_TOKEN": "hf_secret", "AWS_SECRET_ACCESS_KEY": "secret"}
    command = f"ulimit -Sn 123; ulimit -v 99999999; exec {sys.executable} -m pagestream env {tmp_path}"
    found = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    lines = found.stdout.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines if len(line.split()) > 1)
    assert facts["pagestream"] == pagestream.__version__
    assert facts["python"].startswith(sys.version.split()[0])
    assert facts["numpy"] == metadata.version("numpy")
    assert facts["kernel"].split()[1] == os.uname().release
    assert facts["RLIMIT_NOFILE"].startswith("123, at most ")
    assert facts["RLIMIT_AS"] == "95.4 GiB"
    # The longest name determines the width of the first column.
    assert re.search(r"^fault guard +on, SIGBUS handler installed$", found.stdout, re.MULTILINE)
    assert (facts["PAGESTREAM_AHEAD"], facts["read_ahead_kb"] != "") == ("off", True)
    assert str(tmp_path) in lines
    assert "secret" not in found.stdout
    assert [line for line in lines if line != line.rstrip()] == []


def test_no_large_package_is_imported():
    code = """
        import contextlib, sys
        from pagestream.cli import main
        sys.argv[1:] = ["env", "/"]
        with contextlib.suppress(SystemExit):
            main()
        print(sorted({"numpy", "torch", "rich"} & set(sys.modules)))
    """
    found = run_python(code, PAGESTREAM_FAULT_GUARD="off").stdout
    assert found.endswith("\n[]\n")
    assert re.search("^fault guard +off, SIGBUS handler not installed$", found, re.MULTILINE)


def test_the_mount_of_a_path(tmp_path):
    """A pipe without a writer has a mount too."""
    file, pipe = tmp_path / "tokens.bin", tmp_path / "pipe"
    file.write_bytes(bytes(8))
    os.mkfifo(pipe)
    with MappedFile(file) as mapped:
        expected = mapped.file_system
    found = CliRunner().invoke(app, ["env", str(tmp_path), str(file), str(pipe), "--json"])
    assert found.exit_code == 0, found.output
    mounts = json.loads(found.stdout)["mounts"]
    assert list(mounts) == list(map(str, (tmp_path, file, pipe)))
    for mount in mounts.values():
        assert (mount["mount"], mount["options"]) == (expected.mount_point, expected.options)
        assert mount["file system"] == f"{expected.type} ({expected.source})"
        if expected.read_ahead_bytes is not None:
            assert mount["read_ahead_kb"] == str(expected.read_ahead_bytes >> 10)


def test_a_missing_path(tmp_path):
    found = CliRunner().invoke(app, ["env", str(tmp_path / "missing")])
    assert (found.exit_code, found.stdout) == (2, "")
    assert f"{tmp_path}/missing: No such file or directory" in found.stderr


def test_passwords_of_a_mount_are_left_out(monkeypatch):
    texts = {
        "/proc/self/mountinfo": "7 1 0:52 / /mnt/a rw - fuse.rclone https://me:pw@host/x rw,url=http://pw@host\n"
    }
    monkeypatch.setattr(env, "_text", lambda path: texts.get(path, "mnt_id:\t7\n"))
    found = env._mount("/")
    assert found["file system"] == "fuse.rclone (https://host/x)"
    assert found["options"] == "rw,rw,url=http://host"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b", {"a/memory.max": "1073741824", "a/b/memory.max": "max"}, "1 GiB"),
        ("0::/a/b", {"a/memory.max": "1073741824", "a/b/memory.max": "4096"}, "4 KiB"),
        ("0::/", {"memory.max": "max"}, "unlimited"),
        ("0::/", {}, "unknown"),
        ("5:cpu:/c\n4:memory,x:/m", {"memory/m/memory.limit_in_bytes": "2097152"}, "2 MiB"),
        ("4:memory:/m\n0::/", {"memory/m/memory.limit_in_bytes": "9223372036854771712"}, "unlimited"),
    ],
)
def test_the_tightest_limit_of_control_groups(tmp_path, groups, files, expected):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert env._cgroup_memory(str(tmp_path)) == expected
