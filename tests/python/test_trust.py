"""The claims of docs/trust.md: pagestream's effects on a process, and the limits of a hostile file."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import pagestream
from pagestream.errors import SafetensorError

from support import real
from support.plugin_hosts import STAND_INS
from support.process import PROGRAMS, output_of, run_python, threads, until

ROOT = Path(__file__).parents[2]
PACKAGE = Path(pagestream.__file__).parent
PAGE = "trust.md"
TEXT = (ROOT / "docs" / PAGE).read_text()
SIGBUS, SIGSEGV = 7, 11


@pytest.fixture
def folder(tmp_path):
    """Makes a token file and a checkpoint."""
    np.arange(4096, dtype="u2").tofile(tmp_path / "tokens.bin")
    safetensors.numpy.save_file({"w": np.ones((300, 2000), "f4")}, tmp_path / "model.safetensors")
    return tmp_path


def modules():
    """Yields the path and the syntax tree of each module of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def importers(*names):
    """Returns the modules that import one of these packages, or a part of one."""
    found = set()
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported = {node.module.partition(".")[0]}
            else:
                continue
            if imported & set(names):
                found.add(path)
    return found


# --- the page -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "least"), [(PAGE, 55), ("versions.md", 10)])
def test_each_row_of_a_page_names_a_test_that_exists(page, least):
    rows = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("|")]
    rows = [row for row in rows if not set(row) <= set("|-: ") and not row.endswith("| test |")]
    assert len(rows) >= least
    for row in rows:
        named = re.findall(r"`([\w/]+\.(?:py|rs))::(\w+)`", row.split("|")[-2])
        assert named, f"no test: {row}"
        for file, name in named:
            path = ROOT / file if file.endswith(".rs") else Path(__file__).parent / file
            kind = "fn" if file.endswith(".rs") else "def"
            assert re.search(rf"\b{kind} {name}\(", path.read_text()), f"{file} has no {name}"


# --- effects on a process -------------------------------------------------------------------------


def test_importing_changes_nothing_in_the_process():
    assert output_of(PROGRAMS / "trust/imports.py") == "[]"


def test_the_handler_comes_with_the_first_mapping_and_shows_in_proc(folder):
    program = PROGRAMS / "trust/uses_the_guard.py"
    assert output_of(program, folder / "tokens.bin") == f"0 [{SIGBUS}]"
    assert output_of(program, folder / "tokens.bin", PAGESTREAM_FAULT_GUARD="off") == "0 []"


def test_threads_show_in_proc_and_end_with_their_loader(folder):
    """A thread gets its name a moment after its start, and stays visible for a moment after its end."""
    before = set(threads())

    def new():
        return {number: name for number, name in threads().items() if number not in before}

    with pagestream.TokenLoader(folder / "tokens.bin", sequence_length=16, batch_size=4, threads=2) as loader:
        next(iter(loader))
        assert until(lambda: new() and all(name.startswith("pagestream") for name in new().values())), new()
        started = set(new())
    assert until(lambda: not started & set(threads())), new()


def traced(tmp_path, program, *arguments, calls, **environment):
    """Runs a program under strace. Returns the lines of these calls, without process ids."""
    trace = tmp_path / "trace"
    options = ("-f", "-qq", "-y", "-e", f"trace={calls}", "-o", str(trace))
    wrapper = (real.need_tool("strace"), *options)
    done = run_python(program, *arguments, wrapper=wrapper, PYTHONDONTWRITEBYTECODE="1", **environment)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    return [line.partition(" ")[2].strip() for line in trace.read_text().splitlines()]


SPEAKING = "%network,add_key,keyctl,request_key"


def test_reading_opens_no_socket_and_uses_no_keyring(folder, tmp_path):
    assert traced(tmp_path, PROGRAMS / "trust/reads.py", folder, calls=SPEAKING) == []


def test_sharing_uses_local_sockets_alone(tmp_path):
    """Files on local disks are not shared, so these files are on a mount."""
    source = tmp_path / "source"
    source.mkdir()
    np.arange(4096, dtype="u2").tofile(source / "tokens.bin")
    safetensors.numpy.save_file({"w": np.ones((300, 2000), "f4")}, source / "model.safetensors")
    with real.bindfs(source, tmp_path / "mount") as mount:
        program = PROGRAMS / "trust/reads.py"
        lines = traced(tmp_path, program, mount, calls=SPEAKING, PAGESTREAM_SHARE="on")
    sockets = [line for line in lines if line.startswith("socket(")]
    assert sockets
    assert all(line.startswith("socket(AF_UNIX,") for line in sockets), sockets
    bound = [line for line in lines if line.startswith("bind(")]
    assert all('sun_path=@"pagestream/' in line for line in bound), bound
    assert not [line for line in lines if "key" in line.partition("(")[0]]


def test_reading_writes_no_file(folder, tmp_path):
    changes = "openat,open,creat,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,link,symlink"
    lines = traced(tmp_path, PROGRAMS / "trust/reads.py", folder, calls=changes)
    assert any("model.safetensors" in line for line in lines)
    writing = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|^(creat|unlink|rename|mkdir|link|symlink)")
    assert [line for line in lines if writing.search(line)] == []


def test_only_ranks_connect_to_each_other():
    network = (
        "socket",
        "ssl",
        "http",
        "urllib",
        "ftplib",
        "smtplib",
        "requests",
        "httpx",
        "aiohttp",
        "urllib3",
    )
    assert importers(*network, "huggingface_hub") == {"torch/_lifelines.py"}


def test_nothing_in_the_package_runs_when_python_starts():
    """At start, Python runs ``.pth`` files and a ``sitecustomize`` module from its search path."""
    assert list(PACKAGE.rglob("*.pth")) == []
    found = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*customize*.py")]
    assert found == [Path("cli/_children/sitecustomize.py")]
    assert not (PACKAGE / "cli/_children/__init__.py").exists()


def test_the_library_changes_no_variable_and_the_command_run_alone_the_search_path():
    changed = {}
    for path, tree in modules():
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
            found = [ast.unparse(target) for target in targets]
            if isinstance(node, ast.Call) and re.match(
                r"os\.(putenv|unsetenv|environ\.)", ast.unparse(node.func)
            ):
                found = [ast.unparse(node)]
            for text in found:
                if text.startswith("os.") and "environ.get(" not in text and "environ.copy" not in text:
                    changed.setdefault(path, []).append(text)
    assert changed["cli/run.py"] == ["os.environ['PYTHONPATH']"]
    assert all(path.startswith("cli/") for path in changed), changed
    others = [text for path, texts in changed.items() if path != "cli/run.py" for text in texts]
    assert not [text for text in others if "PYTHON" in text]


def test_processes_below_the_command_run_are_changed_unless_they_are_isolated(tmp_path):
    child = "import safetensors; print(safetensors.__name__, flush=True)"
    program = tmp_path / "starts.py"
    program.write_text(
        "import subprocess, sys\n"
        "for options in ([], ['-E'], ['-I']):\n"
        f"    subprocess.run([sys.executable, *options, '-c', {child!r}], check=True)\n"
    )

    def printed(*command):
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=True
        ).stdout.split()

    assert printed("-m", "pagestream", "run", program) == [
        "pagestream.safetensors",
        "safetensors",
        "safetensors",
    ]
    assert printed(program) == ["safetensors"] * 3


def test_the_entry_points_are_the_command_and_two_plug_ins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"pagestream": "pagestream.cli:main"}
    assert set(project["entry-points"]) == {"vllm.general_plugins", "sglang.srt.plugins"}
    for group in project["entry-points"]:
        assert f"`{group}`" in TEXT


def test_the_policy_of_the_page_allows_its_folder_alone(folder):
    """The program runs in its own process, because an audit hook cannot be removed."""
    (policy,) = re.findall(r"^```text\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    allowed, other = folder / "models/tokens.bin", folder / "models.bin"
    allowed.parent.mkdir()
    for path in (allowed, other):
        path.write_bytes(bytes(8))
    assert "/mnt/models" in policy
    code = f"""{policy.replace("/mnt/models", str(allowed.parent))}
import pagestream
pagestream.MappedFile(sys.argv[1])
try:
    pagestream.MappedFile(sys.argv[2])
except PermissionError as error:
    print(error)
"""
    assert output_of(code, allowed, other) == str(other)


# --- limits of a hostile file ---------------------------------------------------------------------


def test_no_code_is_loaded_from_data():
    unwanted = ("pickle", "marshal", "shelve", "dill", "cloudpickle", "code", "codeop", "runpy")
    assert importers(*unwanted) == set()
    loading = {"eval", "exec", "compile", "np.load", "numpy.load", "torch.load", "joblib.load"}
    called = [
        (path, ast.unparse(node.func))
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]
    assert len(called) > 1000
    assert [(path, name) for path, name in called if name in loading] == []


def test_a_folder_of_tokens_may_have_links_that_lead_elsewhere(tmp_path):
    """Token files are numbers: they contain no names to follow, and the caller chose the folder."""
    np.arange(100, dtype="u2").tofile(tmp_path / "elsewhere.bin")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pagestream.open_tokens(tmp_path / "folder") as tokens:
        assert len(tokens) == 100


def test_a_writer_of_a_file_can_write_its_checksums(folder):
    """Checksums detect damage. They are no signature."""
    path = folder / "model.safetensors"
    with pagestream.open_checkpoint(path) as weights:
        weights.verify()
    safetensors.numpy.save_file({"w": np.zeros((300, 2000), "f4")}, path)
    command = [sys.executable, "-m", "pagestream", "verify", "--write", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    with pagestream.open_checkpoint(path) as weights:
        report = weights.verify()
    assert (report.bad, report.unchecked) == ((), ())


def test_a_rewrite_that_restores_size_and_time_goes_unnoticed(folder):
    path = folder / "tokens.bin"
    with pagestream.MappedFile(path) as file:
        times = path.stat()
        with open(path, "r+b") as other:
            other.write(b"\xff\xff")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        file.check()
        assert file.read(0, 2) == b"\xff\xff"


@pytest.mark.frameworks
def test_a_plug_in_follows_links_out_of_the_folder(folder):
    (folder / "model").mkdir()
    (folder / "model/model.safetensors").symlink_to(folder / "model.safetensors")
    code = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from tensorrt_llm.mapping import Mapping
    from pagestream.plugins.tensorrt_llm import PagestreamWeightLoader
    weights = PagestreamWeightLoader().load_weights(sys.argv[2], mapping=Mapping())
    print(*(name for name, _ in weights.items()))
    """
    assert output_of(code, STAND_INS, folder / "model", with_torch=True, has_brief_end=True) == "w"
    with pytest.raises(SafetensorError, match="outside"):
        pagestream.open_checkpoint(folder / "model")
