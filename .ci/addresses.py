"""Writes the address of the repository wherever it is needed, and the page of PyPI, `README.pypi.md`.

The one place of the address is `Repository` in `[project.urls]` of pyproject.toml. Run this after a change of
it or of README.md: python .ci/addresses.py.

PyPI resolves no relative links. With an address they become absolute. Without one, links become their text,
and pictures are left out with their captions.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)\n*")
# The paragraph after a picture is its caption.
CAPTION = r"(?:(?!#).+\n)+\n"
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)]+)\)")
# Other files with the address: the text of its line, and the line before it.
LINES = {
    "mkdocs.yml": ("repo_url: {}", "site_name: pagestream"),
    "CITATION.cff": ("repository-code: {}", "type: software"),
}


def page(readme, address):
    """Returns README.md as PyPI shows it."""
    if address is None:
        return LINK.sub(r"\1", re.sub(PICTURE.pattern + CAPTION, "", readme))
    readme = PICTURE.sub(rf"![\1]({address}/raw/main/\2)\n\n", readme)
    return LINK.sub(rf"[\1]({address}/blob/main/\2)", readme)


def with_line(text, line, before, address):
    """Returns a text with the line of the address, which follows another line, or without it."""
    text = re.sub(rf"^{re.escape(line.format(''))}.*\n", "", text, flags=re.MULTILINE)
    if address is None:
        return text
    assert f"{before}\n" in text
    return text.replace(f"{before}\n", f"{before}\n{line.format(address)}\n", 1)


def made(address):
    """Returns the text of each file."""
    texts = {"README.pypi.md": page((ROOT / "README.md").read_text(), address)}
    for name, (line, before) in LINES.items():
        texts[name] = with_line((ROOT / name).read_text(), line, before, address)
    return texts


def main():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    address = project.get("urls", {}).get("Repository")
    for name, text in made(address).items():
        (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
