"""Architecture rules: a room uses only rooms below it, unsafe code stays on its islands, and so on."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from support.house import paths_of_use

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGE = ROOT / "python" / "pagestream"

# The rooms that each Rust room may use. ARCHITECTURE.md shows the picture.
GROUND = {"allocate", "error", "words", "dtype", "file_kinds", "mix", "natural"}
MAY_USE = {
    "allocate": set(),
    "error": {"allocate"},
    "words": {"error"},
    "dtype": set(),
    "file_kinds": {"mix"},
    "mix": set(),
    "natural": set(),
    "os": GROUND,
    "mapped_file": GROUND | {"os"},
    "fetch": GROUND | {"os", "mapped_file"},
    "sampling": GROUND,
    "widen": GROUND | {"os::fault", "os::memory"},
    "slicing": GROUND | {"os", "mapped_file", "fetch"},
    "tokens": GROUND | {"os", "mapped_file"},
    "weights": GROUND | {"os", "mapped_file", "fetch"},
    "batching": GROUND | {"os", "mapped_file", "fetch", "tokens", "sampling", "widen"},
    "hashing": GROUND | {"os", "mapped_file", "fetch"},
    "streaming": GROUND | {"os", "mapped_file", "fetch", "slicing"},
    "leading": GROUND | {"os", "mapped_file", "fetch", "slicing", "streaming"},
    "warming": GROUND | {"os", "mapped_file", "fetch", "slicing", "streaming"},
    "python": GROUND
    | {"os", "mapped_file", "fetch", "slicing", "tokens", "weights", "sampling", "widen", "batching"}
    | {"streaming", "hashing", "leading", "warming"},
}

# The packages that each Python package may import. `torch`, `devices` and
# `safetensors.torch` alone import torch.
PYTHON_MAY_USE = {
    "_native": set(),
    "errors": set(),
    "_common": {"_native", "errors"},
    "files": {"_native", "errors", "_common"},
    "tokens": {"_native", "errors", "_common", "files"},
    "weights": {"_native", "errors", "_common", "files"},
    "loading": {"_native", "errors", "_common", "files", "tokens"},
    "devices": {"_native", "errors", "_common", "files", "weights"},
    "safetensors": {"_native", "errors", "_common", "files", "weights", "devices"},
    "torch": {"_native", "errors", "_common", "files", "tokens", "weights", "loading", "devices"},
    "plugins": {"_common", "safetensors", "weights"},
    "cli": {"_native", "errors", "_common", "files", "tokens", "weights", "loading", "safetensors"},
    # `safetensors` and `torch` for type checkers alone: they are imported on first use.
    "__init__": {"_native", "_common", "errors", "files", "tokens", "weights", "loading"}
    | {"safetensors", "torch"},
    "__main__": {"cli"},
}
# `pagestream bench` measures torch's DataLoader.
MAY_IMPORT_TORCH = {"torch", "devices", "safetensors/torch.py", "cli/_contests.py"}

UNSAFE_ISLANDS = ("os/", "widen", "python/export.rs", "python/writable.rs")


def room_of(file):
    return file.relative_to(SOURCE).parts[0].removesuffix(".rs")


def rust_files():
    return sorted(path for path in SOURCE.rglob("*.rs") if path.name != "lib.rs")


def used_rooms(text, file=None):
    """Returns the rooms that the code names, two segments deep. A name follows `crate::`, or enough `super::`
    to leave the file's own room. Comments do not count."""
    code = re.sub(r"//.*", "", text)
    if file is not None:
        depth = len(file.relative_to(SOURCE).parts) - (file.name == "mod.rs")
        # Within an inline module, `super` is the file itself. Inline modules stand at the end of the file.
        head, *inline = re.split(r"^(?=(?:pub )?mod \w+ \{)", code, maxsplit=1, flags=re.MULTILINE)
        code = "".join([re.sub(rf"\b(?:super::){{{depth}}}", "crate::", head), *inline])
    code = re.sub(
        r"\buse (crate::\{.*?\});",
        lambda match: " ".join("::".join(path) for path in paths_of_use(match[1])),
        code,
        flags=re.DOTALL,
    )
    return set(re.findall(r"crate::(\w+(?:::\w+)?)", code))


def test_each_rust_room_uses_only_rooms_below_it():
    wrong = []
    for file in rust_files():
        room = room_of(file)
        for used in used_rooms(file.read_text(), file):
            top = used.split("::")[0]
            if top != room and top not in MAY_USE[room] and used not in MAY_USE[room]:
                wrong.append(f"{file.relative_to(ROOT)} uses crate::{used}")
    assert not wrong, wrong


def test_the_tables_of_rooms_have_no_cycles():
    for table in (MAY_USE, PYTHON_MAY_USE):
        placed = set()
        while len(placed) < len(table):
            ready = {
                room for room in set(table) - placed if {use.split("::")[0] for use in table[room]} <= placed
            }
            assert ready, sorted(set(table) - placed)
            placed |= ready


def test_every_rust_room_is_listed_and_its_uses_are_found():
    assert {room_of(file) for file in rust_files()} <= set(MAY_USE)
    assert used_rooms("use crate::{os, error::Error}; // crate::python") == {"os", "error::Error"}
    nested = "use crate::{os::{file, memory}, python::lead::FileLead};"
    assert used_rooms(nested) == {"os::file", "os::memory", "python::lead"}
    flat, nested = SOURCE / "widen.rs", SOURCE / "tokens/format/npy.rs"
    assert used_rooms("use super::batching::row::RowCopier;", flat) == {"batching::row"}
    assert used_rooms("use super::{Format}; use super::super::corpus::X;", nested) == set()
    assert used_rooms("use super::super::super::python::x;", nested) == {"python::x"}
    assert "os" in {use.split("::")[0] for use in used_rooms((SOURCE / "mapped_file/mod.rs").read_text())}


@pytest.mark.parametrize("call", ["rustix::", "libc::", "memmap2::"])
def test_only_one_room_makes_system_calls(call):
    allowed = {"libc::": ("os/", "python/error.rs")}.get(call, ("os/",))
    users = [
        str(file.relative_to(SOURCE))
        for file in rust_files()
        if call in re.sub(r"//.*", "", file.read_text())
    ]
    assert [user for user in users if not user.startswith(allowed)] == []
    assert users


def test_threads_start_in_one_place():
    """A thread started elsewhere would not block signals."""
    starts = {
        str(file.relative_to(SOURCE))
        for file in rust_files()
        if re.search(r"\bthread(::|\.)spawn|\bspawn_scoped\(", file.read_text().split("#[cfg(test)]")[0])
    }
    assert {start for start in starts if not start.endswith("/tests.rs")} == {"os/process/thread.rs"}


def test_unsafe_code_stays_on_its_islands_and_names_its_reason():
    for file in rust_files():
        name = str(file.relative_to(SOURCE))
        code = re.sub(r"//.*", "", file.read_text())
        if not name.startswith(UNSAFE_ISLANDS):
            assert not re.search(r"\bunsafe\b(?!_)", code), name
            assert "allow(unsafe_code)" not in code, name


# These files make slices from the program's own memory or the caller's. All slices are write-only.
SLICES_OF_MEMORY = {
    "os/memory/parts.rs",
    "os/memory/placed.rs",
    "os/memory/uninit.rs",
    "python/writable.rs",
}


def test_no_reference_is_made_to_mapped_memory():
    """No code holds a `&[u8]` over a mapping. Slices refer to other memory only."""
    code = {str(file.relative_to(SOURCE)): file.read_text() for file in rust_files()}
    # The calls cover a filled block that no other code has seen yet, and a filled range.
    read = {name for name, text in code.items() if re.search(r"\b(?<!Vec::)from_raw_parts\b", text)}
    assert read == {"os/memory/parts.rs"}
    mutable = {name for name, text in code.items() if re.search(r"\bfrom_raw_parts_mut\b", text)}
    assert mutable == SLICES_OF_MEMORY


def test_the_core_knows_no_python():
    for file in rust_files():
        if room_of(file) != "python":
            assert "pyo3" not in file.read_text(), file


class ForTypeCheckers(ast.NodeTransformer):
    """Removes imports for type checkers."""

    def visit_If(self, node):
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node.orelse if is_for_types else node


def imports_of(file, *, for_types=True):
    found = set()
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree if for_types else ForTypeCheckers().visit(tree)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def python_room(parts):
    return parts[0].removesuffix(".py").removesuffix(".pyi")


def test_each_python_module_imports_only_modules_below_it():
    wrong = []
    for file in PACKAGE.rglob("*.py"):
        room = python_room(file.relative_to(PACKAGE).parts)
        for name in imports_of(file):
            parts = name.split(".")
            if parts[0] != "pagestream":
                continue
            known = parts[1] if len(parts) > 1 and parts[1] in PYTHON_MAY_USE else "__init__"
            if known not in (room, *PYTHON_MAY_USE[room]):
                wrong.append(f"{file.relative_to(ROOT)} imports {name}")
    assert not wrong, wrong


def test_only_the_torch_modules_import_torch():
    importers = set()
    for file in PACKAGE.rglob("*.py"):
        if any(name.split(".")[0] == "torch" for name in imports_of(file, for_types=False)):
            relative = file.relative_to(PACKAGE)
            importers.add(relative.parts[0] if relative.parts[0] in MAY_IMPORT_TORCH else str(relative))
    assert importers == MAY_IMPORT_TORCH


def test_the_version_is_defined_once():
    import pagestream

    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert pagestream.__version__ == cargo["package"]["version"]
    assert "version" not in project
    assert "version" in project["dynamic"]
    assert cargo["package"]["license"] == project["license"] == "MIT OR Apache-2.0"


@pytest.mark.frameworks
def test_all_exported_names_exist_and_are_documented():
    import pagestream
    import pagestream.torch
    from pagestream import errors, safetensors
    from pagestream.files import mapped_file as mapping
    from pagestream.files import staging
    from pagestream.loading import mixture
    from pagestream.tokens import corpus as tokens
    from pagestream.weights import checkpoint as weights

    named = (errors, mapping, mixture, safetensors, staging, tokens, weights)
    for module in (pagestream, pagestream.torch, *named):
        for name in module.__all__:
            thing = getattr(module, name)
            assert name.startswith("__") or thing.__doc__, f"{module.__name__}.{name}"


# --- dependencies ---------------------------------------------------------------------------------


def test_dependencies_come_from_the_registry_and_are_pinned_by_checksum():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    for package in lock["package"]:
        if package["name"] != "pagestream":
            assert package["source"].startswith("registry+"), package["name"]
            assert re.fullmatch("[0-9a-f]{64}", package["checksum"]), package["name"]


def test_no_version_with_a_known_advisory_is_locked():
    """Checks the advisories that the design names. `make audit` checks all, if it reaches their database."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    versions = {
        package["name"]: tuple(map(int, package["version"].split(".")))
        for package in lock["package"]
        if re.fullmatch(r"[\d.]+", package["version"])
    }
    assert versions["memmap2"] >= (0, 9, 11)  # RUSTSEC-2026-0186
    assert versions["pyo3"] >= (0, 24, 1)  # RUSTSEC-2025-0020


def test_tests_have_no_annotations_that_nobody_checks():
    """mypy does not check the tests. Fields of classes still have types, because dataclasses need them."""
    found = []
    for file in (ROOT / "tests" / "python").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            annotated = (isinstance(node, ast.arg) and node.annotation) or getattr(node, "returns", None)
            if annotated:
                found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert found == []
