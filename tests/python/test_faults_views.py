"""Arrays and views of a file that is truncated or fails while in use: an exception, and no dead process."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pagestream import MappedFile
from pagestream.errors import MappedReadError

from support import real
from support.process import PROGRAMS, output_of, run_python


def torch_if(is_needed):
    """Returns the options of a program that may need torch and does not test the end of the interpreter."""
    return {"with_torch": is_needed, "has_brief_end": is_needed}


@pytest.fixture(params=["shared", "private"])
def mode(request):
    return str(request.param)


def test_an_array_of_a_cut_file_raises_where_it_is_used_and_from_then_on(big_file, mode):
    code = PROGRAMS / "faults_views/an_array_raises_where_it_is_used.py"
    assert output_of(code, big_file, mode) == "once"


def test_an_array_freed_right_after_its_use_raises_too(big_file, mode):
    code = PROGRAMS / "faults_views/an_array_that_is_gone_raises.py"
    assert output_of(code, big_file, mode) == "raised"


@pytest.mark.parametrize(
    "use", ["numpy", "copyto", "checkpoint", pytest.param("clone", marks=pytest.mark.frameworks)]
)
def test_a_tensor_that_is_used_and_dropped_where_storage_fails_raises(tmp_path, use):
    """The mapping is gone by the time Python raises."""
    source = tmp_path / "source"
    source.mkdir()
    save_file({"x": np.ones(1 << 18, "f4")}, source / "f")
    code = PROGRAMS / "faults_views/a_tensor_used_in_one_expression_raises.py"
    with real.slow_fuse(source, tmp_path / "mount", fail_range=(400 << 10, 500 << 10)) as slow:
        assert output_of(code, slow.path / "f", use, **torch_if(use == "clone")) == "True True"


def test_on_tmpfs_and_fuse_as_well(big_file, cached_mount, mode):
    code = PROGRAMS / "faults_views/the_error_tells_where_the_file_ends.py"
    places = {"tmpfs": Path(f"/dev/shm/pagestream-{os.getpid()}-views-{mode}"), "fuse": cached_mount / "f"}
    for kind, path in places.items():
        assert real.file_system_type(path.parent).startswith(kind)
        path.write_bytes(big_file.read_bytes())
        try:
            assert output_of(code, path, mode) == f"{mode} 4096"
        finally:
            path.unlink()


def test_on_a_fuse_mount_without_a_page_cache_as_well(big_file, direct_mount):
    path = direct_mount / "f"
    path.write_bytes(big_file.read_bytes())
    code = PROGRAMS / "faults_views/the_error_tells_where_the_file_ends.py"
    assert output_of(code, path, "auto") == "private 4096"


@pytest.mark.parametrize("order", ["forwards", "backwards", "random"])
def test_a_cut_costs_one_mapping_in_whatever_order_pages_are_used(tmp_path, mode, order):
    """One mapping for each page would reach the limit vm.max_map_count, 65530."""
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    code = PROGRAMS / "faults_views/a_cut_costs_one_mapping.py"
    assert int(output_of(code, path, mode, order)) <= 3  # NumPy and malloc have some of their own


def test_a_cut_costs_few_mappings_without_residency_information(big_file):
    """To a user without write permission, the kernel reports that the whole file is in memory."""
    if os.geteuid() != 0:
        real.missing("root, to become another user")
    for parent in [big_file, *list(big_file.parents)[:-2]]:
        parent.chmod(0o755)
    with big_file.open("r+b") as file:
        file.truncate(1 << 30)
        code = PROGRAMS / "faults_views/a_cut_costs_few_mappings_for_another_user.py"
        command = [sys.executable, str(code), str(big_file), "shared", str(file.fileno())]
        done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=[file.fileno()])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 500


def test_what_replaces_a_page_has_its_protection(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"x": np.arange(1 << 20, dtype="f4")}, path)
    code = PROGRAMS / "faults_views/what_replaces_a_page_has_its_protection.py"
    assert output_of(code, path) == "read-only"


TORCH_WAYS = ("torch", "load_file", "torch slice")
WAYS = [
    "numpy",
    "checkpoint",
    "slice",
    *(pytest.param(way, marks=pytest.mark.frameworks) for way in TORCH_WAYS),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ["open", "closed"])
def test_a_tensor_of_a_cut_file_raises_whether_the_file_is_open_or_not(tmp_path, way, end):
    path = tmp_path / "w.safetensors"
    save_file({"x": np.ones(1 << 20, "f4")}, path)
    code = PROGRAMS / "faults_views/a_tensor_of_a_cut_file_raises.py"
    assert output_of(code, path, way, end, **torch_if(way in TORCH_WAYS)) == "True 4096"


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_file_hands_out_no_more_arrays(tmp_path, way):
    """Requests for other tensors of the file raise. `load_file` finds the file too short."""
    path = tmp_path / "w.safetensors"
    save_file({"x": np.ones(1 << 20, "f4")}, path)
    code = PROGRAMS / "faults_views/no_more_is_handed_out_of_a_cut_file.py"
    assert output_of(code, path, way, **torch_if(way in TORCH_WAYS)) == "2"


@pytest.mark.parametrize("way", WAYS)
def test_zeros_of_the_last_page_are_not_handed_out(tmp_path, way):
    """The file is truncated within a page that is in memory, so there is no signal."""
    path = tmp_path / "w.safetensors"
    save_file({"x": np.ones(64, "f4")}, path)
    code = PROGRAMS / "faults_views/zeros_of_the_last_page_are_not_handed_out.py"
    assert str(path) in output_of(code, path, way, **torch_if(way in TORCH_WAYS))


def test_no_second_array_is_made_of_memory_handed_out_before(tmp_path):
    """The file is closed. The object that holds the first array's memory refuses."""
    path = tmp_path / "w.safetensors"
    save_file({"x": np.ones(1 << 20, "f4")}, path)
    code = PROGRAMS / "faults_views/no_other_array_is_made_of_memory.py"
    assert output_of(code, path) == "2"


def test_threads_that_use_a_cut_file_continue_and_the_main_thread_gets_the_error(big_file, mode):
    code = PROGRAMS / "faults_views/threads_that_use_a_cut_file_go_on.py"
    assert output_of(code, big_file, mode) == "4"


TORCHS_HANDLER = "torch's worker handler"
HANDLERS = [
    "faulthandler",
    "a Python handler",
    "the default",
    pytest.param(TORCHS_HANDLER, marks=pytest.mark.frameworks),
]


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_that_comes_later_is_passed_when_the_next_view_is_taken(big_file, handler):
    code = PROGRAMS / "faults_views/the_next_view_passes_a_handler.py"
    assert output_of(code, big_file, "shared", handler, **torch_if(handler == TORCHS_HANDLER)) == "raised"


@pytest.mark.parametrize("handler", HANDLERS)
def test_such_a_handler_is_passed_when_a_writable_tensor_is_taken_from_a_new_file(tmp_path, handler):
    for name in ("first", "second"):
        save_file({"x": np.ones(1 << 20, "f4")}, tmp_path / name)
    code = PROGRAMS / "faults_views/a_writable_tensor_passes_a_handler.py"
    assert output_of(code, tmp_path, handler, **torch_if(handler == TORCHS_HANDLER)) == "True"


@pytest.mark.frameworks
def test_torch_workers_survive_a_cut_file(tmp_path):
    """A worker installs its own handler when it starts."""
    path = tmp_path / "w.safetensors"
    save_file({f"x{number}": np.ones(1 << 18, "f4") for number in range(8)}, path)
    code = PROGRAMS / "faults_views/torch_workers_survive_a_cut_file.py"
    assert output_of(code, path, **torch_if(True)) == "MappedReadError True"


def test_a_forked_child_survives_and_its_parent_is_not_touched(big_file, mode):
    code = PROGRAMS / "faults_views/a_forked_child_survives.py"
    assert output_of(code, big_file, mode) == "both"


@pytest.mark.parametrize("guard", ["copies", "off"])
def test_without_a_guard_of_views_a_cut_file_ends_the_process(big_file, guard):
    code = PROGRAMS / "faults_views/a_cut_file_ends_the_process.py"
    done = run_python(code, big_file, "shared", PAGESTREAM_FAULT_GUARD=guard)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_a_foreign_mapping_is_not_guarded(big_file):
    """This holds even at an address where one of our mappings was before."""
    code = PROGRAMS / "faults_views/a_mapping_of_somebody_else_is_not_guarded.py"
    done = run_python(code, big_file, "shared")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


def test_the_damaged_mapping_is_found_among_many(tmp_path):
    """There are more mappings than one chunk of slots can hold."""
    code = PROGRAMS / "faults_views/of_many_mappings_the_right_one_is.py"
    assert output_of(code, tmp_path) == "right"


def test_pages_that_a_disk_cannot_read_are_replaced_and_no_others(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    pages = np.repeat(np.arange(1, 257, dtype="u8"), 512)
    pages.tofile(source / "f")
    code = PROGRAMS / "faults_views/pages_that_a_disk_cannot_read_are.py"
    with real.slow_fuse(source, tmp_path / "mount", fail_range=(100 * 4096, 101 * 4096)) as slow:
        assert output_of(code, slow.path / "f") == "raised"


def test_pages_written_beside_an_unreadable_page_stay(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    save_file({"x": np.ones(1 << 18, "f4")}, source / "f")
    code = PROGRAMS / "faults_views/what_was_written_beside_a_page_that.py"
    with real.slow_fuse(source, tmp_path / "mount", fail_range=(100 * 4096, 102 * 4096)) as slow:
        assert output_of(code, slow.path / "f") == "True"


def test_cached_pages_stay_if_all_of_the_storage_is_gone(tmp_path):
    """The server died. As with a truncated file, the last page cannot be read either."""
    if os.geteuid() != 0:
        real.missing("root, to unmount")
    code = PROGRAMS / "faults_views/what_is_in_memory_stays_where_all.py"
    with real.stoppable_bindfs(tmp_path) as (mount, daemon):
        save_file({"x": np.ones(1 << 20, "f4")}, tmp_path / "behind" / "f")
        command = [sys.executable, str(code), str(mount / "f")]
        pipe = subprocess.PIPE
        try:
            with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                daemon.kill()
                daemon.wait()
                output, _ = process.communicate("\n")
        finally:
            subprocess.run(["umount", "-l", mount], check=True)
    assert (process.returncode, output.split()) == (0, ["1", "True"])


def test_a_restored_file_can_be_mapped_again(tmp_path):
    """`refresh` makes a mapping without the zeros. Arrays on the old mapping keep them."""
    path = tmp_path / "f"
    np.ones(1 << 16, "u8").tofile(path)
    before = os.stat(path)
    f = MappedFile(path)
    old = np.frombuffer(f, "u8")
    os.truncate(path, 4096)
    with pytest.raises(MappedReadError):
        sum(int(old[place]) for place in range(0, old.size, 512))
    np.ones(1 << 16, "u8").tofile(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(MappedReadError):
        np.frombuffer(f, "u8")
    with pytest.raises(MappedReadError):
        f.check()
    assert f.read(1 << 16, 8) == (1).to_bytes(8, "little")  # copies no longer use the mapping
    assert f.refresh() == 1 << 19
    assert (np.frombuffer(f, "u8") == 1).all()
    f.check()
    assert old[-1] == 0


def test_opening_and_closing_leaves_no_slot_taken(tmp_path):
    """If slots stayed taken, these would occupy 40 chunks of 20 KiB each, and one path each."""
    code = PROGRAMS / "faults_views/opening_and_closing_leaves_no_slot_taken.py"
    assert int(output_of(code, tmp_path / "f")) < 512


def test_a_page_that_turns_out_to_be_readable_stays(big_file, mode):
    """Another thread may have replaced the page, or the storage may have recovered."""
    code = PROGRAMS / "faults_views/a_page_that_can_be_read_is_left.py"
    assert output_of(code, big_file, mode) == str(2 << 20)


def test_a_page_that_keeps_faulting_is_replaced_in_the_end(big_file):
    """Each mapping counts its own attempts, even in a table slot that another mapping used before."""
    code = PROGRAMS / "faults_views/a_page_that_faults_for_ever_is_replaced.py"
    assert output_of(code, big_file, "shared") == "1024"


@pytest.mark.parametrize("cause", [1, 3, -1], ids=["alignment", "hardware", "by hand"])
def test_a_bus_error_of_another_kind_goes_to_the_earlier_handler(big_file, cause):
    """This holds even if the address is in one of our mappings and cannot be read."""
    code = PROGRAMS / "faults_views/a_bus_error_of_another_kind_goes_on.py"
    assert output_of(code, big_file, "shared", cause) == "heard"


def test_code_that_meets_such_a_page_keeps_its_errno(big_file, mode):
    code = PROGRAMS / "faults_views/code_that_meets_a_bad_page_keeps_its_errno.py"
    assert output_of(code, big_file, mode) == str(errno.EDOM)


def test_the_rest_of_the_last_page_counts_as_well(tmp_path, mode):
    """Code that loads many bytes at a time reads past the end of the file, within the page."""
    path = tmp_path / "f"
    np.arange(1030, dtype="u8").tofile(path)
    code = PROGRAMS / "faults_views/the_rest_of_the_last_page_counts.py"
    assert output_of(code, path, mode) == "4096 4144"


def test_two_files_cut_at_the_same_time_raise_one_exception(tmp_path):
    code = PROGRAMS / "faults_views/two_files_that_are_cut_at_a.py"
    assert output_of(code, tmp_path) == "True True"


def test_the_exception_names_a_few_of_many_cut_files(tmp_path):
    code = PROGRAMS / "faults_views/of_many_files_that_are_cut_at.py"
    assert output_of(code, tmp_path) == "6 and 34 more files"


def test_a_file_in_the_slot_of_a_cut_file_is_reported_too(tmp_path):
    """The new file takes the same slot in the table of mappings."""
    code = PROGRAMS / "faults_views/a_file_in_the_place_of_one.py"
    assert output_of(code, tmp_path).split() == ["True"] * 3


@pytest.mark.parametrize("place", ["min", "max"], ids=["below ours", "above ours"])
def test_a_foreign_mapping_beside_ours_is_not_guarded(big_file, place):
    code = PROGRAMS / "faults_views/a_mapping_beside_ours_is_not_guarded.py"
    other = big_file.with_name("other")
    other.write_bytes(big_file.read_bytes())
    done = run_python(code, big_file, "shared", other, place)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")


@pytest.mark.parametrize("delay_ms", [1, 25], ids=["fast", "slow"])
@pytest.mark.parametrize("writable", [True, False], ids=["copy-on-write", "read-only"])
def test_storage_that_fails_from_now_on_costs_few_requests(tmp_path, writable, delay_ms):
    """A request to a failing mount may take a whole time-out. One request per page would take hours."""
    source = tmp_path / "source"
    source.mkdir()
    save_file({"x": np.ones((32, 1 << 20), "u1")}, source / "f")
    code = PROGRAMS / "faults_views/an_array_on_storage_that_fails_for_good.py"
    with real.slow_fuse(source, tmp_path / "mount", delay_ms=delay_ms, fail_after=6) as slow:
        assert output_of(code, slow.path / "f", "writable" if writable else "read-only") == "kept raised"
    # There are 8,192 pages, and each time only a few are probed.
    assert slow.counts["read_requests"] <= 150


# --- writes to read-only pages -----------------------------------------------------------------------


@pytest.mark.parametrize("handler", [[], ["faulthandler"]], ids=["alone", "with faulthandler"])
@pytest.mark.parametrize("way", ["array", "tensor", "corpus", "file", "elsewhere", "by hand"])
def test_a_write_to_a_read_only_page_names_the_file_before_the_process_ends(tmp_path, way, handler):
    path = tmp_path / "weights.safetensors"
    save_file({"x": np.arange(5000)}, path)
    done = run_python(PROGRAMS / "faults_views/a_write_to_read_only_memory.py", path, way, *handler)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "")
    told = (
        f"pagestream: a write to read-only memory of {path} ends the process. Its pages are read-only because"
    )
    assert done.stderr.count(told) == (way not in ("elsewhere", "by hand"))
    assert done.stderr.count("Fatal Python error: Segmentation fault") == len(handler)


@pytest.mark.parametrize("way", ["array", "elsewhere", "by hand"])
def test_a_handler_that_came_later_hides_the_name_and_the_process_ends(tmp_path, way):
    path = tmp_path / "weights.safetensors"
    save_file({"x": np.arange(5000)}, path)
    done = run_python(PROGRAMS / "faults_views/a_write_to_read_only_memory.py", path, way, "later")
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "")
    assert done.stderr.count("Fatal Python error: Segmentation fault") == 1


def test_in_read_mode_no_handler_is_installed(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"x": np.arange(5000), "empty": np.zeros(0)}, path)
    found = output_of(PROGRAMS / "faults_views/handler_of_sigsegv.py", path)
    assert found == "read: none, auto: none, shared: ours"


def test_without_a_guard_writes_are_not_reported(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"x": np.arange(5000)}, path)
    program = PROGRAMS / "faults_views/a_write_to_read_only_memory.py"
    done = run_python(program, path, "array", PAGESTREAM_FAULT_GUARD="off")
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")
