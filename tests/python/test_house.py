"""Architecture as drawn: no import cycles, one meaning per name, and walks short enough for one sitting."""

import re

import pytest

from support import house

# Names with the same meaning on both sides: a class of the core, and its class in the binding module.
TYPE_NAMES_TWICE = set()

MAX_WALK_LINES = 3_500
MAX_WALK_FILES = 25


def test_rust_files_of_a_room_form_no_cycle():
    assert house.circles(house.rust_edges()) == []


def test_python_files_form_no_cycle():
    assert house.circles(house.python_edges()) == []


def test_a_cycle_is_found_and_named():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert house.circles(edges) == [["b", "c"]]
    assert house.circles({"a": {"b"}, "b": {"a", "c"}, "c": {"a"}}) == [["a", "b", "c"]]
    assert house.circles({"a": {"b"}, "b": set()}) == []


def test_uses_are_seen_behind_trees_reexports_and_folders():
    assert list(house.paths_of_use("super::{a::B, c::{self, D as E}}")) == [
        ["super", "a", "B"],
        ["super", "c", "self"],
        ["super", "c", "D"],
    ]
    edges = house.rust_edges()
    # A path through a folder, a name of the parent, and a name that the parent re-exports.
    assert "sampling/key.rs" in edges["sampling/permutation.rs"]
    assert "tokens/format/layout.rs" in edges["tokens/format/npy.rs"]
    assert all(target in edges for targets in edges.values() for target in targets)
    assert sum(map(len, edges.values())) > len(edges)
    imports = house.python_edges()
    assert "_common/checks.py" in imports["_common/ranks.py"]
    assert "tokens/corpus.py" in imports["__init__.py"]


def test_no_type_name_stands_for_two_things():
    types = house.rust_types()
    assert len(types) > 100
    twice = {name: files for name, files in types.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in TYPE_NAMES_TWICE} == {}
    assert set(twice) == TYPE_NAMES_TWICE


def test_lines_of_code_are_neither_comments_nor_docstrings_nor_tests(tmp_path):
    rust = tmp_path / "x.rs"
    rust.write_text(
        "//! Doc.\n\nfn a() {\n    // why\n    b()\n}\n\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n"
    )
    assert house.code_lines(rust) == 3
    python = tmp_path / "x.py"
    python.write_text(
        '"""Doc.\n\nMore.\n"""\n\nimport os  # why\n\n'
        'def a():\n    """Doc."""\n    return (\n        os\n    )\n'
    )
    assert house.code_lines(python) == 5


@pytest.mark.parametrize("title", sorted(house.walks()))
def test_a_walk_can_be_read_in_one_go(title, capsys):
    files = house.walks()[title]
    assert files
    assert len(set(files)) == len(files) <= MAX_WALK_FILES
    lines = {str(file.relative_to(house.ROOT)): house.code_lines(file) for file in files}
    with capsys.disabled():
        print(f"\n{title}: {len(files)} files, {sum(lines.values())} lines of code")
    assert sum(lines.values()) <= MAX_WALK_LINES, lines


def test_there_are_walks_of_a_batch_of_a_tensor_and_of_a_stream():
    assert [re.sub(r":.*", "", title) for title in house.walks()] == ["Walk 1", "Walk 2", "Walk 3"]
