"""Releases: pinned actions and tools, bill of materials, licences; and the files for contributors."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text())
LOCK = tomllib.loads((ROOT / "Cargo.lock").read_text())
BILL = json.loads((ROOT / "pagestream.cdx.json").read_text())
LICENSES = (ROOT / "LICENSE-THIRD-PARTY").read_text()


def script(name):
    """Imports a script from `.ci`."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f".ci/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def third_party():
    """Imports the script that generates the files about Rust packages."""
    return script("third_party")


@pytest.fixture(scope="module")
def made(third_party):
    return third_party.made()


# --- the PyPI page --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def addresses():
    """Imports the script that writes the repository's address into the files that need it."""
    return script("addresses")


def test_the_files_with_the_address_are_those_of_the_script(addresses):
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"].get("Repository")
    for name, text in addresses.made(address).items():
        assert (ROOT / name).read_text() == text, f"python .ci/addresses.py writes {name}"


@pytest.mark.parametrize("address", [None, "https://example.org/pagestream"])
def test_the_page_of_pypi_has_no_relative_link(addresses, address):
    readme = addresses.page((ROOT / "README.md").read_text(), address)
    links = re.findall(r"\]\(([^)]*)\)", readme)
    assert all(link.startswith("https://") for link in links)
    assert ("https://example.org/pagestream/blob/main/docs/start.md" in links) == (address is not None)
    assert ("![" in readme) == (address is not None)
    # The caption belongs to the picture.
    assert ("\nMedians on a machine with " in readme) == (address is not None)
    assert "no worker processes. A saved loader" in readme
    assert "\n\n## One way to open a file\n" in readme


def test_an_address_is_added_replaced_and_removed_in_one_line(addresses):
    texts = addresses.made("https://example.org/old")
    assert "\nrepo_url: https://example.org/old\n" in texts["mkdocs.yml"]
    assert "\nrepository-code: https://example.org/old\n" in texts["CITATION.cff"]
    for name, (line, before) in addresses.LINES.items():
        new = addresses.with_line(texts[name], line, before, "https://example.org/new")
        assert "old" not in new.replace("older", "")
        assert line.format("https://example.org/new") in new
        assert addresses.with_line(new, line, before, None) == addresses.made(None)[name]


def test_the_classifiers_name_each_supported_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    minors = [int(each.removeprefix(prefix)) for each in project["classifiers"] if each.startswith(prefix)]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert project["requires-python"] == f">=3.{minors[0]}"
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    tried = re.search(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)[1].split(", ")
    assert tried == [*(f'"3.{minor}"' for minor in minors), "lowest"]


# --- actions and tools ----------------------------------------------------------------------------


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(workflow):
    used = re.findall(r"^\s*(?:- )?uses: (.*)$", workflow.read_text(), re.MULTILINE)
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_an_action_has_one_version_in_all_workflows():
    used = [use for path in WORKFLOWS for use in re.findall(r"uses: (\S+)@(\S+)", path.read_text())]
    assert len(dict(used)) == len(set(used))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_scripts_that_exist_and_keep_no_token(workflow):
    text = workflow.read_text()
    scripts = set(re.findall(r"\.ci/\w+", text))
    assert scripts
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts), scripts
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
    assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE)


def test_two_builds_are_compared_for_each_change():
    assert ".ci/rebuild" in (ROOT / ".github/workflows/ci.yml").read_text()
    # Both builds use the script of a release.
    assert ".ci/wheel" in (ROOT / ".ci/rebuild").read_text()
    assert ".ci/wheel" in (ROOT / ".github/workflows/release.yml").read_text()


def test_the_compiler_and_the_tools_of_a_release_have_one_version():
    toolchain = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", toolchain["channel"])
    oldest = CARGO["package"]["rust-version"]
    assert [*map(int, toolchain["channel"].split("."))] >= [*map(int, oldest.split("."))]
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert groups["release"]
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", each) for each in groups["release"]), groups["release"]


def test_the_versions_of_build_tools_are_those_of_the_tests():
    """The tests and the release must build with the same tools, or the tests would prove little."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    pinned = dict(each.split("==") for each in groups["release"])
    (range_,) = [each for each in groups["build"] if each.startswith("maturin")]
    least, most = re.fullmatch(r"maturin>=([\d.]+),<([\d.]+)", range_).groups()
    as_numbers = [[*map(int, text.split("."))] for text in (least, pinned["maturin"], most)]
    assert as_numbers == sorted(as_numbers)


# --- the parts that wheels declare ----------------------------------------------------------------


def test_the_bill_of_materials_and_the_licences_are_up_to_date(made):
    for name, text in made.items():
        assert (ROOT / name).read_text() == text, f"python .ci/third_party.py writes {name}"


def test_a_changed_file_is_noticed(third_party, made, tmp_path, monkeypatch, capsys):
    for name, text in made.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(third_party, "ROOT", tmp_path)
    monkeypatch.setattr(third_party, "made", lambda: made)
    monkeypatch.setattr(sys, "argv", ["third_party.py", "--check"])
    assert third_party.main() == 0
    (tmp_path / "LICENSE-THIRD-PARTY").write_text("changed")
    assert third_party.main() == 1
    assert "LICENSE-THIRD-PARTY is out of date" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["third_party.py"])
    assert third_party.main() == 0
    assert (tmp_path / "LICENSE-THIRD-PARTY").read_text() == made["LICENSE-THIRD-PARTY"]


def test_the_bill_has_neither_time_nor_path_nor_random_number():
    assert set(BILL) == {"bomFormat", "specVersion", "version", "metadata", "components", "dependencies"}
    assert set(BILL["metadata"]) == {"component"}
    text = json.dumps(BILL)
    assert not re.search(r"file:|/home|/root|/tmp|urn:uuid|timestamp", text)
    assert "/" not in re.sub(r"https://[\w./~-]+|pkg:cargo/", "", text)


def test_the_bill_has_the_packages_of_the_lock_file():
    locked = {(each["name"], each["version"]): each.get("checksum") for each in LOCK["package"]}
    listed = {(each["name"], each["version"]): each for each in BILL["components"]}
    assert set(listed) < set(locked)
    for key, component in listed.items():
        assert component["hashes"] == [{"alg": "SHA-256", "content": locked[key]}]
        assert component["scope"] in ("required", "excluded")
    scopes = {name: component["scope"] for (name, _), component in listed.items()}
    assert set(CARGO["dependencies"]) <= set(scopes)
    assert (scopes["memmap2"], scopes["syn"], scopes["pyo3-macros"]) == ("required", "excluded", "excluded")
    refs = {each["bom-ref"] for each in BILL["components"]} | {BILL["metadata"]["component"]["bom-ref"]}
    assert {each["ref"] for each in BILL["dependencies"]} == refs
    assert {on for each in BILL["dependencies"] for on in each["dependsOn"]} <= refs


def test_each_package_in_the_extension_has_its_licence():
    for component in BILL["components"]:
        title = f"\n{component['name']} {component['version']}, used under MIT\n"
        assert (title in LICENSES) == (component["scope"] == "required"), component["name"]
    for part in ("Rust standard library", "hashbrown", "gimli", "miniz_oxide", "Unicode"):
        assert part in LICENSES
    assert LICENSES.count("Permission is hereby granted") >= LICENSES.count("used under")


def test_wheels_carry_both_files():
    """`test_packaging.py` builds a wheel and checks its files. This test needs no build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "LICENSE-THIRD-PARTY" in project["project"]["license-files"]
    assert project["tool"]["maturin"]["sbom"] == {"rust": False, "include": ["pagestream.cdx.json"]}


# --- files for contributors -----------------------------------------------------------------------


def test_hooks_of_pre_commit_are_a_part_of_the_lints():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    entries = re.findall(r"entry: (.*)$", text, re.MULTILINE)
    assert len(entries) == 4
    makefile = (ROOT / "Makefile").read_text()
    for command in ("ruff format", "ruff check", "cargo fmt"):
        assert any(command in entry for entry in entries)
        assert command in makefile
    assert re.findall(r"repo: (.*)$", text, re.MULTILINE) == ["local"]


def test_files_of_the_repository_are_yaml_where_they_say_so():
    import yaml

    paths = [*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]
    assert len(paths) >= 8
    for path in paths:
        assert yaml.safe_load(path.read_text())
    forms = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")]
    for form in forms:
        ids = [part["id"] for part in form.get("body", []) if part["type"] != "markdown"]
        assert len(ids) == len(set(ids))
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    assert {each["package-ecosystem"] for each in updates} == {
        "github-actions",
        "cargo",
        "pip",
        "rust-toolchain",
    }
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert " OR ".join(citation["license"]) == CARGO["package"]["license"]
    assert "version" not in citation, "the version stands in Cargo.toml alone"


def test_the_address_for_reports_is_in_one_place():
    """The project has no mail address yet. If it gets one, the address belongs in SECURITY.md."""
    documents = [
        *ROOT.glob("*.md"),
        *ROOT.glob(".github/**/*.md"),
        *ROOT.glob(".github/**/*.yml"),
        ROOT / "CITATION.cff",
    ]
    assert len(documents) >= 8
    for path in documents:
        found = re.findall(r"[\w.+-]+@[\w-]+\.\w+", path.read_text())
        assert path.name == "SECURITY.md" or found == [], path.name
    assert "SECURITY.md#how-to-report" in (ROOT / "CODE_OF_CONDUCT.md").read_text()


def test_release_scripts_are_valid_shell():
    for script in ("run", "wheel", "rebuild"):
        subprocess.run(["bash", "-n", ROOT / ".ci" / script], check=True)
