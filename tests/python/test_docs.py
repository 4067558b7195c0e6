"""The examples in docstrings, README and documents run, and figures show the recorded numbers."""

import codeop
import contextlib
import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES

import pagestream
import pagestream.safetensors

from support.plugin_hosts import STAND_INS
from support.process import output_of
from support.ranks import run_ranks

ROOT = Path(__file__).parents[2]


@pytest.fixture
def _example_files(tmp_path, monkeypatch):
    """Makes a directory with the files that the examples name."""
    from pagestream.safetensors.numpy import save_file

    np.arange(4096, dtype="u2").tofile(tmp_path / "tokens.bin")
    # Upstream's writer sorts by type and then by name; the larger type comes first.
    tensors = {"weight": np.ones((2, 3)), "bias": np.zeros(3, "f4")}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "np"})
    monkeypatch.chdir(tmp_path)


def modules():
    """Yields all modules. Their namespaces contain the names of `__all__`, so that doctest finds them."""
    found = [each.name for each in pkgutil.walk_packages(pagestream.__path__, "pagestream.")]
    for name in ["pagestream", *found]:
        if name != "pagestream._native" and not name.startswith("pagestream.plugins."):
            module = importlib.import_module(name)
            vars(module).update({each: getattr(module, each) for each in getattr(module, "__all__", ())})
            yield module


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for module in modules() for test in finder.find(module) if test.examples]
    return sorted(found, key=lambda test: test.name)


# Their runtimes install signal handlers and start threads, so this process does not import them. The
# functions of flax, tensorflow and mlx are the same, and their examples import those of flax.
FRAMEWORKS = ("_foreign", "paddle")
IN_FRAMEWORK = """
import doctest, importlib, sys, warnings
warnings.simplefilter("ignore")
result = doctest.testmod(importlib.import_module(sys.argv[1]))
assert (result.attempted, result.failed) == (int(sys.argv[2]), 0), result
"""


def is_in_framework(example):
    return example.name.startswith(tuple(f"pagestream.safetensors.{name}." for name in FRAMEWORKS))


@pytest.mark.usefixtures("_example_files")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_examples_of_a_framework_run(framework):
    name = f"pagestream.safetensors.{framework}"
    count = sum(len(test.examples) for test in examples() if test.name.startswith(f"{name}."))
    assert count > 0
    output_of(IN_FRAMEWORK, name, count)


@pytest.mark.usefixtures("_example_files")
@pytest.mark.parametrize(
    "example", [test for test in examples() if not is_in_framework(test)], ids=lambda test: test.name
)
def test_the_example_in_the_docstring_runs(example):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report = []
    result = runner.run(example, out=report.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(report)


# Each plug-in imports its host.
PLUGINS = [
    each.name for each in pkgutil.iter_modules([f"{pagestream.__path__[0]}/plugins"], "pagestream.plugins.")
]
IN_PLUGIN = """
import doctest, importlib, sys
module = importlib.import_module(sys.argv[1])
counts = {test.name: len(test.examples) for test in doctest.DocTestFinder().find(module)}
assert all(counts[f"{module.__name__}.{name}"] > 0 for name in module.__all__), counts
result = doctest.testmod(module)
assert (result.attempted, result.failed) == (sum(counts.values()), 0), result
"""


@pytest.mark.usefixtures("_example_files")
@pytest.mark.parametrize("name", PLUGINS)
def test_the_examples_of_a_plug_in_run(name):
    output_of(IN_PLUGIN, name, with_torch=True, has_brief_end=True, PYTHONPATH=str(STAND_INS))


def public_callables():
    for module in modules():
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if not callable(thing) or not getattr(thing, "__module__", "").startswith("pagestream"):
                continue
            yield f"{module.__name__}.{name}", thing
            if isinstance(thing, type):
                for member, value in vars(thing).items():
                    if callable(value) and not member.startswith("_"):
                        yield f"{module.__name__}.{name}.{member}", value


def test_every_public_function_has_an_example():
    assert [name for name, thing in public_callables() if ">>>" not in (thing.__doc__ or "")] == []


def code_blocks(document):
    """Returns the Python blocks that the page itself contains. `test_recipes.py` runs the included files."""
    text = (ROOT / document).read_text()
    return re.findall(r"^```python\n(?!--8<--)(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def _uninstalled():
    """Undoes the `install` calls of a document afterwards."""
    yield
    uninstall_all()


def uninstall_all():
    with contextlib.suppress(RuntimeError):
        while True:
            pagestream.safetensors.uninstall()


PAGES = ["README.md", *(f"docs/{found.name}" for found in sorted((ROOT / "docs").glob("*.md")))]
DOCUMENTS = [page for page in PAGES if code_blocks(page)]


@pytest.mark.usefixtures("_uninstalled")
@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_page_can_be_pasted_block_by_block_into_an_empty_folder(document, tmp_path, monkeypatch):
    """Each block imports the modules it needs, and uses only files that it or an earlier block has made."""
    monkeypatch.chdir(tmp_path)
    for block in code_blocks(document):
        if "init_process_group" in block:
            (tmp_path / "load.py").write_text(block)
            run_ranks(2, tmp_path / "load.py")
        else:
            exec(compile(block, document, "exec"), {"__name__": "example"})
        uninstall_all()


def test_the_documents_with_code_are_found():
    assert {"README.md", "docs/start.md", "docs/tokens.md", "docs/weights.md"} < set(DOCUMENTS)
    assert sum("init_process_group" in block for block in code_blocks("docs/scale.md")) == 2


def refused(block):
    """Returns the lines at which the REPL raises a SyntaxError. It ends an indented block at a blank line."""
    entered, found = [], []
    for line in [*block.splitlines(), ""]:
        entered.append(line)
        try:
            is_complete = codeop.compile_command("\n".join(entered), symbol="single") is not None
        except SyntaxError:
            is_complete = True
            found.append(line)
        if is_complete:
            entered.clear()
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_page_can_be_pasted_into_the_repl(document):
    assert [line for block in code_blocks(document) for line in refused(block)] == []


def test_the_check_for_the_repl_finds_missing_and_superfluous_blank_lines():
    assert refused("for x in y:\n    f(\n        x\n    )\nz = 1\n") == ["z = 1"]
    assert refused("with a:\n    b\n\n    c\n") == ["    c"]
    assert refused("try:\n    a\nexcept E:\n    b\nelse:\n    c\n\nd = [\n    2,\n]\ne\n") == []


@pytest.mark.parametrize("document", PAGES)
def test_code_and_commands_fit_into_88_columns(document):
    text = (ROOT / document).read_text()
    blocks = re.findall(r"^```(?:python|console|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert [line for block in blocks for line in block.splitlines() if len(line) > 88] == []


def test_a_figure_for_light_pages_has_one_for_dark_pages():
    shown = [
        each
        for page in (ROOT / "docs").glob("*.md")
        for each in re.findall(r"^!\[.*\]\(figures/([\w-]+)\.svg(#\S+)?\)$", page.read_text(), re.MULTILINE)
    ]
    light = {name for name, palette in shown if palette == "#only-light"}
    dark = {name for name, palette in shown if palette == "#only-dark"}
    assert dark == {f"{name}-dark" for name in light}
    assert {"loads", "windows"} < light
    # Pictures of terminals are dark in both palettes.
    assert all(name.startswith("terminal-") for name, palette in shown if not palette)


@pytest.mark.parametrize("document", PAGES)
def test_the_copy_button_copies_commands_without_prompts(document):
    """`copy.css` hides prompts and output by their Pygments classes."""
    hidden = re.findall(
        r"^\[data-md-copying\] \.(\w+)", (ROOT / "docs/stylesheets/copy.css").read_text(), re.MULTILINE
    )
    kinds = {each for each, name in STANDARD_TYPES.items() if name in hidden}
    text = (ROOT / document).read_text()
    for language, block in re.findall(r"^```(console|pycon)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        tokens = get_lexer_by_name(language).get_tokens(block)
        copied = "".join(part for kind, part in tokens if kind not in kinds)
        assert copied.strip()
        assert not re.search(r"^(\$ |>>> )", copied, re.MULTILINE)


def test_each_page_is_in_the_navigation():
    listed = re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(
        str(found.relative_to(ROOT / "docs")) for found in (ROOT / "docs").rglob("*.md")
    )


def test_the_readme_links_to_each_page():
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text()))
    assert sorted(linked | {"docs/index.md"}) == sorted(set(PAGES) - {"README.md"})


def test_the_readme_names_targets_that_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= named <= targets


def test_each_target_of_the_makefile_has_a_line_of_help():
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    helped = set(re.findall(r"^([a-z]+):.*## \S", text, re.MULTILINE))
    assert phony == helped


def texts(picture):
    """Returns the texts of an SVG."""
    return [
        "".join(element.itertext()).strip()
        for element in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    ]


def test_the_figures_show_what_the_records_have(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs/figures"))
    import draw

    pale = draw.PALETTES["-dark"]["ink"]
    for palette in draw.PALETTES:
        pictures = [draw.draw(name, tmp_path, palette) for name in draw.FIGURES]
        for picture in [*pictures, draw.draw_requests(tmp_path, palette)]:
            drawn = texts(picture)
            assert len(drawn) > 8
            kept = ROOT / "docs/figures" / picture.name
            assert drawn == texts(kept), "python docs/figures/draw.py draws it anew"
            assert (pale in kept.read_text()) == (palette == "-dark")


def test_the_texts_for_agents_are_those_of_the_guides(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import llms

    made = llms.made()
    blocks = [block for name in llms.CODE for block in code_blocks(f"docs/{name}.md")]
    assert len(blocks) >= 20
    assert re.findall(r"^```python\n(.*?)^```", made["agents.md"], re.DOTALL | re.MULTILINE) == blocks
    assert sorted(f"docs/{page}" for page in llms.pages()) == sorted(set(PAGES) - {"README.md"})
    lines = set(made["llms-full.txt"].splitlines())
    for page in PAGES[1:]:
        assert {line for line in (ROOT / page).read_text().splitlines() if "--8<--" not in line} <= lines
    links = re.findall(r"\]\((.*?)\)", made["llms.txt"])
    assert len(links) == len(PAGES)  # README and the first page are missing, and two texts are added


def test_the_text_for_agents_has_the_files_that_pages_include(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import llms

    full = llms.made()["llms-full.txt"]
    assert "--8<--" not in full
    assert (ROOT / "examples/recipes/jax_loop.py").read_text() in full
    name, first = re.search(
        r'^    --8<-- "(.*\.md):(\d+):"$', llms.text("benchmarks.md"), re.MULTILINE
    ).groups()
    _, *rest = (ROOT / name).read_text().splitlines()[int(first) - 2 :]
    assert "\n" + "".join(f"    {line}".rstrip() + "\n" for line in rest) in full


def test_the_summary_shows_what_the_records_have(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs/figures"))
    import summary

    assert summary.summary() == (ROOT / "benches/record/summary.md").read_text(), (
        "python docs/figures/summary.py writes it anew"
    )
    assert len(summary.LINES) == 10


def test_titles_of_figures_begin_at_their_left_edge():
    """A title that begins beside the labels of the bars would run out of the figure."""
    pictures = set((ROOT / "docs/figures").glob("*.svg")) - set(
        (ROOT / "docs/figures").glob("terminal-*.svg")
    )
    assert len(pictures) == 12
    for picture in pictures:
        found = re.findall(r'<text style="font-weight: 700[^>]* x="([0-9.]+)"', picture.read_text())
        assert found, picture.name
        assert all(float(x) < 5 for x in found), picture.name


def test_the_pictures_of_terminals_show_what_commands_print():
    pictures = sorted((ROOT / "docs/figures").glob("terminal-*.svg"))
    assert len(pictures) == 4
    for picture in pictures:
        printed = [text for text in texts(picture) if text not in ("", "pagestream")]
        assert len(printed) > 5, f"{picture.name}: python docs/figures/terminal.py draws it anew"


def test_examples_of_docstrings_are_under_the_title_that_the_reference_shows_as_code():
    for path in (ROOT / "python/pagestream").rglob("*.py"):
        wrong = re.findall(r"^\s*Example:$", path.read_text(), re.MULTILINE)
        assert not wrong, f"{path}: griffe knows the section 'Examples:', not 'Example:'"


def test_the_tests_that_the_documents_name_exist():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs/tokens.md").read_text())
    assert len(named) >= 10
    folder = Path(__file__).parent
    missing = [name for file, name in named if f"def {name}(" not in (folder / file).read_text()]
    assert missing == []


def test_local_links_in_the_documents_lead_somewhere():
    rooms = ("docs", "benches", "examples")
    links = [
        (document, target)
        for document in [
            *ROOT.glob("*.md"),
            *(found for room in rooms for found in ROOT.glob(f"{room}/**/*.md")),
        ]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    ]
    assert links
    dead = [(document.name, target) for document, target in links if not (document.parent / target).exists()]
    assert dead == []
