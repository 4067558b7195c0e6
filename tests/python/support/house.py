"""Architecture facts from the source: imports between files, names of types, and lengths of walks."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
PACKAGE = ROOT / "python" / "pagestream"

Edges = dict[str, set[str]]


def rust_code(text):
    """Returns Rust source without comments and without the unit tests at its end."""
    code = re.sub(r"//.*", "", text)
    return re.split(r"^#\[cfg\(test\)\]\s*\n(?:#\[.*\n)*mod \w+ \{", code, maxsplit=1, flags=re.MULTILINE)[0]


def paths_of_use(tree):
    """Expands ``a::{b, c::d as e}`` into its paths."""
    tree = tree.strip()
    match = re.match(r"^((?:\w+::)*)\{(.*)\}$", tree, re.DOTALL)
    if match is None:
        yield re.sub(r"\s+as\s+\w+$", "", tree).split("::")
        return
    prefix = [part for part in match[1].split("::") if part]
    depth, start, inner = 0, 0, match[2]
    for position, character in enumerate(f"{inner},"):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            if inner[start:position].strip():
                for path in paths_of_use(inner[start:position]):
                    yield prefix + path
            start = position + 1


def module_file(folder, name):
    """Returns the file of a module in a folder."""
    found = (folder / f"{name}.rs", folder / name / "mod.rs")
    return next((file for file in found if file.exists()), None)


def rust_files():
    """Returns the Rust sources except files of unit tests."""
    return sorted(file for file in SOURCE.rglob("*.rs") if file.name != "tests.rs")


def rust_edges():
    """Returns, for each Rust file, the files of the same room that it uses.

    If a `mod.rs` re-exports a name, its uses count for the file that defines the name. The re-export itself
    does not count.
    """
    edges = {}
    for file in rust_files():
        if file.name == "lib.rs" or file.parent == SOURCE:
            continue
        code = rust_code(file.read_text())
        used = edges.setdefault(str(file.relative_to(SOURCE)), set())
        uses = re.findall(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", code, re.MULTILINE)
        exports = re.findall(r"^\s*pub(?:\([^)]*\))?\s+use\s+([^;]+);", code, re.MULTILINE)
        exported = {"::".join(path) for tree in exports for path in paths_of_use(tree)}
        body = re.sub(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+[^;]+;", "", code, flags=re.MULTILINE)
        inline = [match.split("::") for match in re.findall(r"\b((?:\w+::)+\w+)", body)]
        listed = [path for tree in uses for path in paths_of_use(tree) if "::".join(path) not in exported]
        for path in listed + inline:
            target = _resolve(file, path)
            if target is not None and target != file and _room(target) == _room(file):
                used.add(str(target.relative_to(SOURCE)))
    return edges


def _room(file):
    return file.relative_to(SOURCE).parts[0]


def _resolve(file, path):
    """Returns the file to which a path leads, starting from another file."""
    own = file.parent if file.name == "mod.rs" else file.with_suffix("")
    parts = list(path)
    if parts[0] == "crate":
        folder, parts = SOURCE, parts[1:]
    elif parts[0] == "super":
        folder = own
        while parts and parts[0] == "super":
            folder, parts = folder.parent, parts[1:]
    elif parts[0] == "self":
        folder, parts = own, parts[1:]
    else:
        folder = own
        if module_file(folder, parts[0]) is None:
            return None
    return _descend(folder, parts)


def _descend(folder, parts):
    found = folder / "mod.rs"
    if not found.exists():
        found = folder.with_suffix(".rs")
    if not parts:
        return found if found.exists() else None
    inner = module_file(folder, parts[0])
    if inner is not None:
        return _descend(folder / parts[0], parts[1:])
    if not found.exists():
        return None
    # A name that this module re-exports is defined in another file.
    for tree in re.findall(
        r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", rust_code(found.read_text()), re.MULTILINE
    ):
        for path in paths_of_use(tree):
            if path[-1] == parts[0] and path[0] not in ("std", "core"):
                target = _resolve(found, path)
                if target is not None and target != found:
                    return target
    return found


def python_edges():
    """Returns the files that each Python file of the package imports, including imports for type checkers."""
    edges = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        used = edges.setdefault(str(file.relative_to(PACKAGE)), set())
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                target = _python_file(name)
                if target is not None and target != file:
                    used.add(str(target.relative_to(PACKAGE)))
    return edges


def _python_file(name):
    parts = name.split(".")
    if parts[0] != "pagestream" or parts[1:2] == ["_native"]:
        return None
    for length in (len(parts), len(parts) - 1):
        path = PACKAGE.joinpath(*parts[1:length])
        found = (path.with_suffix(".py") if length > 1 else path / "__init__.py", path / "__init__.py")
        for file in found:
            if file.exists():
                return file
    return None


def circles(edges):
    """Returns the groups of files that use each other in a cycle (Tarjan, 1972)."""
    index = {}
    low = {}
    stack = []
    found = []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def rust_types():
    """Returns the files that define each type name. Unit tests and associated types do not count."""
    found = {}
    pattern = r"^(?:    )?(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|type|union) ([A-Z]\w*)\b([^;]*;)?"
    for file in rust_files():
        for line in rust_code(file.read_text()).splitlines():
            match = re.match(pattern, line)
            # Within an `impl`, the trait defines the name of `type X = …;`.
            if match and not line.startswith("    type "):
                found.setdefault(match[1], []).append(str(file.relative_to(SOURCE)))
    return found


def code_lines(file):
    """Counts lines of code, without blank lines, comments, docstrings and unit tests."""
    text = file.read_text()
    if file.suffix == ".rs":
        return sum(1 for line in rust_code(text).splitlines() if line.strip())
    lines = set()
    previous = tokenize.NEWLINE
    layout = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT)
        if token.type not in layout and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.DEDENT):
            previous = token.type
    return len(lines)


def all_code():
    """Counts the lines of code of both languages."""
    return {
        "Rust": sum(code_lines(file) for file in rust_files()),
        "Python": sum(code_lines(file) for file in PACKAGE.rglob("*.py")),
    }


def walks():
    """Returns the walks of ARCHITECTURE.md: for each title, the files of its numbered list in order."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    found = {}
    for title, body in re.findall(r"^## (Walk \d[^\n]*)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE):
        names = re.findall(r"^\d+\. `([^`]+)`", body, re.MULTILINE)
        found[title] = [ROOT / name for name in names]
    return found
