"""`open_checkpoint` reads no byte outside a checkpoint's folder, whatever its index and links say."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from pagestream import open_checkpoint
from pagestream.errors import SafetensorError

from support import real
from support.checkpoints import INDEX, contents, hub_cache, sharded, values, write_index, write_shards
from support.process import PROGRAMS, output_of, run_python

SECRET = {"t": np.full(3, 7, "f4")}


@pytest.fixture
def outside(tmp_path):
    """A folder with a good file and an index, beside the folder that the test opens."""
    write_shards(tmp_path / "outside", {"secret.safetensors": SECRET})
    write_index(tmp_path / "outside", {"t": "secret.safetensors"})
    return tmp_path / "outside"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def link_chain(folder, outside):
    os.symlink("second", folder / "evil.safetensors")
    os.symlink("third", folder / "second")
    os.symlink(outside / "secret.safetensors", folder / "third")


def folder_link(folder, outside):
    os.symlink(outside, folder / "sub")
    os.symlink("sub/secret.safetensors", folder / "evil.safetensors")


def magic_link(folder, outside):
    # The link leads to the executable of the process that opens it.
    os.symlink("/proc/self/exe", folder / "evil.safetensors")


def node_link(folder, outside):
    os.symlink("/dev/zero", folder / "evil.safetensors")


def fifo(folder, outside):
    os.mkfifo(folder / "evil.safetensors")


def a_socket(folder, outside):
    # A relative name keeps the socket's path below the limit of 108 bytes.
    here = os.getcwd()
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("evil.safetensors")
    os.chdir(here)


def device(folder, outside):
    try:
        os.mknod(folder / "evil.safetensors", 0o20666, os.makedev(1, 5))
    except PermissionError:
        real.missing("CAP_MKNOD, to make a device,")


def linked(target):
    def make(folder, outside):
        os.symlink(target.format(outside=outside, folder=folder.name), folder / "evil.safetensors")

    return make


def directory(folder, outside):
    (folder / "evil.safetensors").mkdir()


EVIL = {
    "absolute link": (linked("{outside}/secret.safetensors"), "which is outside"),
    "relative link": (linked("../outside/secret.safetensors"), "which is outside"),
    "link through itself": (linked("../{folder}/../outside/secret.safetensors"), "which is outside"),
    "link to the root": (linked("/"), "which is outside"),
    "link chain": (link_chain, "which is outside"),
    "link to a folder": (folder_link, "which is outside"),
    "magic link": (magic_link, "which is outside"),
    "magic link of a descriptor": (linked("/proc/self/fd/0"), "which is outside"),
    "link to a device": (node_link, "which is outside"),
    "link to itself": (linked("evil.safetensors"), "[Tt]oo many"),
    "FIFO": (fifo, "it is a FIFO"),
    "socket": (a_socket, "it is a socket"),
    "device": (device, "it is a character device"),
    "directory": (directory, "it is a directory"),
}


@pytest.mark.parametrize("by", ["index", "list of the folder", "among others", "cache_root"])
@pytest.mark.parametrize("case", EVIL)
def test_files_outside_the_folder_are_refused(folder, outside, case, by):
    make, words = EVIL[case]
    make(folder, outside)
    source, options = folder, {}
    if by == "index":
        write_index(folder, {"t": "evil.safetensors"})
    elif by == "among others":
        write_shards(folder, {"good.safetensors": {"good": SECRET["t"]}})
        write_index(folder, {"t": "evil.safetensors", "good": "good.safetensors"})
    elif by == "cache_root":
        source, options = [folder / "evil.safetensors"], {"cache_root": folder}
    with pytest.raises(SafetensorError, match=words) as caught:
        open_checkpoint(source, **options)
    assert f"{folder}/evil.safetensors" in str(caught.value)


def test_links_within_the_folder_work(folder):
    write_shards(folder, {"real/data": SECRET})
    os.symlink("real/data", folder / "a.safetensors")
    os.symlink("a.safetensors", folder / "b")
    os.symlink("real/../b", folder / "c")
    os.symlink(folder / "real", folder / "d")
    for name in ("a.safetensors", "b", "c", "d/data"):
        write_index(folder, {"t": name})
        assert values(open_checkpoint(folder)) == {"t": [7, 7, 7]}


def test_the_callers_own_path_is_followed_wherever_it_leads(folder, outside):
    os.symlink(outside, folder / "to folder")
    os.symlink(outside / "secret.safetensors", folder / "to file")
    for source in ("to folder", "to file"):
        assert values(open_checkpoint(folder / source)) == {"t": [7, 7, 7]}
    assert values(open_checkpoint([folder / "to file"])) == {"t": [7, 7, 7]}
    with pytest.raises(SafetensorError, match="which is outside"):
        open_checkpoint(folder / "to file", cache_root=folder)
    assert values(open_checkpoint(folder / "to file", cache_root=outside)) == {"t": [7, 7, 7]}


@pytest.mark.parametrize("by", ["folder", "index"])
def test_an_index_that_is_a_link_out_is_refused(folder, outside, by):
    os.symlink(outside / INDEX, folder / INDEX)
    with pytest.raises(SafetensorError, match="which is outside"):
        open_checkpoint(folder if by == "folder" else folder / INDEX)


@pytest.mark.parametrize("make", [fifo, directory, node_link])
def test_an_index_that_is_not_a_file_is_refused_without_blocking(folder, outside, make):
    make(folder, outside)
    os.rename(folder / "evil.safetensors", folder / INDEX)
    with pytest.raises(SafetensorError):
        open_checkpoint(folder)


def test_links_may_lead_into_cache_root_and_nowhere_else(folder, outside, tmp_path):
    os.symlink(outside / "secret.safetensors", folder / "absolute.safetensors")
    write_index(folder, {"t": "absolute.safetensors"})
    assert values(open_checkpoint(folder, cache_root=outside)) == {"t": [7, 7, 7]}
    assert values(open_checkpoint(folder, cache_root=tmp_path)) == {"t": [7, 7, 7]}
    os.symlink("../outside/secret.safetensors", folder / "relative.safetensors")
    write_index(folder, {"t": "relative.safetensors"})
    assert values(open_checkpoint(folder, cache_root=str(outside))) == {"t": [7, 7, 7]}
    (tmp_path / "third").mkdir()
    with pytest.raises(SafetensorError, match=f"is outside {folder} and {tmp_path}/third; if that is meant"):
        open_checkpoint(folder, cache_root=tmp_path / "third")
    with pytest.raises(FileNotFoundError) as caught:
        open_checkpoint(folder, cache_root=tmp_path / "fourth")
    assert caught.value.filename == f"{tmp_path}/fourth"
    # The rule applies to links in the allowed folder too.
    os.symlink("/etc/passwd", outside / "on")
    os.symlink("../outside/on", folder / "on.safetensors")
    write_index(folder, {"t": "on.safetensors"})
    with pytest.raises(SafetensorError, match="leads to /etc/passwd"):
        open_checkpoint(folder, cache_root=outside)


@pytest.mark.parametrize("shared", [False, True], ids=["own blobs", "shared blobs"])
@pytest.mark.parametrize("kind", ["sharded", "single", "below"])
def test_the_cache_of_huggingface_hub_works_as_it_is(tmp_path, kind, shared):
    if kind == "sharded":
        files = contents(sharded(tmp_path / "made"))
    else:
        name = "model.safetensors" if kind == "single" else "unet/diffusion.safetensors"
        files = {name: safetensors.numpy.save(SECRET)}
    snapshot = hub_cache(tmp_path / "hub", files, shared=shared)
    source = os.path.join(snapshot, "unet") if kind == "below" else snapshot
    weights = open_checkpoint(source)
    assert len(weights) == (48 if kind == "sharded" else 1)
    assert all(path.startswith(source) for path in weights.files)
    weights.check()
    if kind == "sharded":
        assert (weights["layer.7.3"] == 7003).all()
        assert len(open_checkpoint(os.path.join(snapshot, INDEX))) == 48
    with pytest.raises(FileNotFoundError, match="folders in its folder"):
        open_checkpoint(tmp_path / "hub" / "models--org--name")


def test_the_cache_as_the_hubs_own_helpers_make_it(tmp_path):
    from huggingface_hub import file_download, try_to_load_from_cache

    repository = tmp_path / "hub" / file_download.repo_folder_name(repo_id="org/name", repo_type="model")
    for name, content in contents(sharded(tmp_path / "made")).items():
        blob, pointer = repository / "blobs" / f"blob of {name}", repository / "snapshots" / "abc" / name
        for path in (blob, pointer):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        file_download._create_symlink(str(blob), str(pointer), new_blob=True)
        assert pointer.is_symlink()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    found = try_to_load_from_cache("org/name", INDEX, cache_dir=tmp_path / "hub")
    assert isinstance(found, str)
    assert len(open_checkpoint(found)) == len(open_checkpoint(os.path.dirname(found))) == 48


@pytest.mark.stress
@pytest.mark.parametrize("wide", [False, True], ids=["its own", "cache_root"])
def test_renames_elsewhere_do_not_disturb_an_open(tmp_path, wide):
    """This includes paths with ``..``, where openat2(2) fails with EAGAIN during any rename on the
    machine."""
    files = {
        f"{number}.safetensors": safetensors.numpy.save({str(number): SECRET["t"]}) for number in range(50)
    }
    snapshot = hub_cache(tmp_path / "hub", files)
    renaming = PROGRAMS / "checkpoint_confinement/renaming.py"
    (tmp_path / "elsewhere").mkdir()
    command = [sys.executable, str(renaming), str(tmp_path / "elsewhere"), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as others:
        try:
            assert others.stdout is not None
            others.stdout.readline()
            for _ in range(100):
                with open_checkpoint(snapshot, cache_root=tmp_path / "hub" if wide else None) as weights:
                    assert len(weights) == 50
        finally:
            others.kill()


def test_a_snapshot_cannot_lead_out_of_its_repository(tmp_path, outside):
    snapshot = hub_cache(tmp_path / "hub", {"a.safetensors": safetensors.numpy.save({"a": SECRET["t"]})})
    os.symlink(outside / "secret.safetensors", os.path.join(snapshot, "b.safetensors"))
    with pytest.raises(
        SafetensorError, match=r"leads to .*outside/secret.*outside .*5f3c and .*models--org--name/blobs;"
    ):
        open_checkpoint(snapshot)
    os.unlink(os.path.join(snapshot, "b.safetensors"))
    # Both are outside: another repository of the same cache, and a folder called blobs without the marker.
    hub_cache(tmp_path / "hub", {"b": safetensors.numpy.save(SECRET)}, repository="models--other")
    os.symlink("../../../models--other/blobs/" + "0" * 64, os.path.join(snapshot, "b.safetensors"))
    with pytest.raises(SafetensorError, match="which is outside"):
        open_checkpoint(snapshot)
    assert len(open_checkpoint(snapshot, cache_root=tmp_path / "hub")) == 2
    os.unlink(os.path.join(snapshot, "b.safetensors"))
    write_shards(tmp_path / "hub" / "blobs", {"x": SECRET})
    os.symlink("../../../blobs/x", os.path.join(snapshot, "b.safetensors"))
    with pytest.raises(SafetensorError, match="which is outside"):
        open_checkpoint(snapshot)


@pytest.mark.parametrize(
    ("snapshot", "target", "blobs"),
    [
        ("home/snapshots/dl/evil", "../../../.private/k", "home/blobs"),
        ("home/snapshots/dl/evil", "../../../blobs/k", "home/blobs"),
        ("models--a--b/snapshots/q", "../../secret", "models--a--b/blobs"),
        ("models--a--b/snapshots/q", "../../refs/secret", "models--a--b/blobs"),
        ("models--a--b/snapshots/q", "../other/secret", "models--a--b/blobs"),
        ("models--a--b/snapshots", "../blobs/k", "models--a--b/blobs"),
        ("models--a--b/other/snapshots/q", "../../../blobs/k", "models--a--b/blobs"),
        ("models--a--b/folders/q", "../../blobs/k", "models--a--b/blobs"),
        ("models--/snapshots/q", "../../blobs/k", "models--/blobs"),
        ("my-models--a--b/snapshots/q", "../../blobs/k", "my-models--a--b/blobs"),
    ],
)
def test_links_lead_out_only_in_the_layout_of_the_cache(tmp_path, snapshot, target, blobs):
    for folder in (snapshot, blobs):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    name = f"{snapshot}/model.safetensors"
    real_file = tmp_path / os.path.normpath(f"{snapshot}/{target}.safetensors")
    write_shards(real_file.parent, {real_file.name: SECRET})
    os.symlink(f"{target}.safetensors", tmp_path / name)
    assert values(open_checkpoint(tmp_path / name)) == {"t": [7, 7, 7]}  # the caller's own path
    with pytest.raises(SafetensorError, match=rf"leads to {re.escape(str(real_file))}, which is outside"):
        open_checkpoint(tmp_path / snapshot)


def test_blobs_that_are_a_link_lead_nowhere(tmp_path, outside):
    snapshot = hub_cache(tmp_path / "hub", {"a.safetensors": safetensors.numpy.save(SECRET)})
    blobs = tmp_path / "hub" / "models--org--name" / "blobs"
    os.rename(blobs, outside / "blobs")
    os.symlink(outside / "blobs", blobs)
    with pytest.raises(SafetensorError, match="which is outside"):
        open_checkpoint(snapshot)


@pytest.mark.parametrize("kind", ["models", "datasets", "spaces"])
def test_each_kind_of_repository_has_its_cache(tmp_path, kind):
    files = {"snapshots/a.safetensors": safetensors.numpy.save(SECRET)}
    snapshot = hub_cache(tmp_path / "hub", files, repository=f"{kind}--org--name")
    assert values(open_checkpoint(os.path.join(snapshot, "snapshots"))) == {"t": [7, 7, 7]}


def test_nothing_outside_is_opened_nor_read(tmp_path, outside):
    """Checks the system calls themselves: strace -y shows each descriptor with its path."""
    strace = real.need_tool("strace")
    folders = []
    for number, (make, _) in enumerate(EVIL.values()):
        folder = tmp_path / f"model-{number}"
        write_shards(folder, {"good.safetensors": {"good": SECRET["t"]}})
        make(folder, outside)
        write_index(folder, {"t": "evil.safetensors", "good": "good.safetensors"})
        folders.append(folder)
    code = PROGRAMS / "checkpoint_confinement/nothing_outside_is_opened_nor_read.py"
    log = tmp_path / "log"
    trace = "-e", "trace=open,openat,openat2,read,pread64,preadv,preadv2,readv,mmap,write"
    text = output_of(code, *folders, wrapper=(strace, "-f", "-y", "-qq", "-o", str(log), *trace))
    assert text.count("1 file is refused") == len(EVIL)
    lines = log.read_text().split('"begin', 1)[1].splitlines()
    opened = re.findall(r"open\w*\(.*\) = \d+<([^>]*)>", "\n".join(lines))
    assert sum(path.endswith("/good.safetensors") for path in opened) >= len(EVIL)
    touched = {path for line in lines for path in re.findall(r"\d+<(/[^>]*)>", line)}
    assert {
        path for path in touched if path.startswith((str(outside), "/dev/zero", "/proc/self/exe"))
    } == set()
    # O_PATH alone opens these files: nothing reads their content, and no FIFO or device is woken.
    evil = [line for line in lines if re.search(r'open\w*\(.*"evil\.safetensors".*\) = \d', line)]
    assert evil
    assert all("O_PATH" in line for line in evil)
    assert not [line for line in lines if re.search(r"(read|mmap)\w*\(.*evil[^>]*>, ", line)]


def test_a_fifo_is_refused_without_waiting_for_a_writer(folder, outside):
    fifo(folder, outside)
    done = run_python("import sys, pagestream; pagestream.open_checkpoint(sys.argv[1])", folder)
    assert "it is a FIFO" in done.stderr


def test_a_folder_replaced_during_an_open_does_not_take_its_place(folder, outside, tmp_path):
    """The audit hook replaces the folder after its index was opened and before the shards are opened."""
    sharded(folder)
    code = PROGRAMS / "checkpoint_confinement/a_folder_that_is_replaced_while_it.py"
    text = output_of(code, folder, outside)
    assert text.startswith(f"{folder}/{INDEX} ")
    assert "rewritten or replaced" in text


@pytest.mark.parametrize("by", ["folder", "index"])
def test_hooks_see_the_listing_the_index_and_every_file_and_can_refuse(tmp_path, by):
    folder = sharded(tmp_path / "model", shards=3)
    code = PROGRAMS / "checkpoint_confinement/hooks_see_the_listing_the_index_and.py"
    path = folder if by == "folder" else f"{folder}/{INDEX}"
    events = [f"os.listdir {folder}", f"pagestream.open {folder}/{INDEX} read"]
    events += [
        f"pagestream.open {folder}/model-0000{number}-of-00003.safetensors auto" for number in (1, 2, 3)
    ]
    for refused, count in (("/model", 1), (INDEX, 2), ("00003-of-00003.safetensors", 5)):
        lines = output_of(code, folder, path, refused).splitlines()
        assert lines == [*events[:count], "refused"]


def test_blobs_that_become_a_link_while_the_snapshot_is_opened_lead_nowhere(tmp_path, outside):
    """`O_NOFOLLOW` makes the kernel refuse a link in place of the folder."""
    snapshot = hub_cache(tmp_path / "hub", {"a.safetensors": safetensors.numpy.save(SECRET)})
    code = "import sys, pagestream; pagestream.open_checkpoint(sys.argv[1])"
    log = tmp_path / "log"
    wrapper = (real.need_tool("strace"), "-f", "-o", str(log), "-e", "trace=openat,openat2,open")
    output_of(code, snapshot, wrapper=wrapper)
    blobs = [line for line in log.read_text().splitlines() if '"blobs"' in line or '/blobs", ' in line]
    assert blobs
    assert all("O_NOFOLLOW" in line and "AT_FDCWD" not in line for line in blobs), blobs
