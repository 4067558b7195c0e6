"""Writes texts for coding agents into the site: `llms.txt`, `llms-full.txt` and `agents.md`.

    make docs    # calls it

`llms.txt` lists the pages (https://llmstxt.org), and `llms-full.txt` has their text. `agents.md` has rules
and the code of the guides.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
CODE = ("start", "tokens", "weights", "slow-mounts")
# A line that includes a file, as a whole or from one of its lines on.
INCLUDE = re.compile(r'^( *)--8<-- "([^":]+)(?::(\d+):)?"$', re.MULTILINE)
RULES = """\
# For coding agents

Rules, and then the code of the guides. Tests run each block.

- Import public names from `pagestream`, `pagestream.torch`, `pagestream.safetensors` and `pagestream.errors`.
- A program that loads with `safetensors` needs one line: `pagestream.safetensors.install()`. Change no other
  call.
- Use `pagestream.torch.TokenLoader` for tensors, and `pagestream.TokenLoader` for NumPy arrays. Do not wrap a
  loader in a `DataLoader`: it has native threads, and no workers.
- The arguments are `sequence_length`, `batch_size`, `seed`, `order`, `epochs` and `target`. `block_size`,
  `shuffle` and `num_workers` raise a `TypeError` that names the right one.
- One `for` loop is one epoch. A loop that counts steps passes `epochs=None`.
- Save `loader.state_dict()` with the model, and load it before the first batch.
- Arrays of `open_checkpoint` are read-only views. Copy before you write: `weights.read(name)`.
- After a `MappedReadError`, do not use the array again: its file was truncated or its storage failed.
"""


def text(page: str) -> str:
    """Returns the text of a page."""
    return (DOCS / page).read_text()


def pages() -> list[str]:
    """Returns the pages in the order of the navigation, without the reference."""
    listed = re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE)
    return [page for page in listed if not page.startswith("reference/")]


def title(page: str) -> str:
    """Returns the title of a page."""
    return text(page).partition("\n")[0].removeprefix("# ")


def sections(page: str) -> list[tuple[str, str]]:
    """Returns the sections of a page by their headings."""
    return re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text(page), re.DOTALL | re.MULTILINE)


def agents() -> str:
    """Returns the rules, and the Python of the guides."""
    parts = [RULES]
    for name in CODE:
        parts.append(f"## {title(f'{name}.md')}\n")
        for heading, content in sections(f"{name}.md"):
            blocks = re.findall(r"^```python\n.*?^```\n", content, re.DOTALL | re.MULTILINE)
            parts += [f"{heading}:\n\n{block}" for block in blocks]
    return "\n".join(parts)


def index() -> str:
    """Returns the list of pages."""
    about = text("index.md").split("\n\n")[1].replace("\n", " ")
    links = [f"- [{title(page)}]({page.removesuffix('.md').removesuffix('index')}/)" for page in pages()]
    more = "- [All pages as one text](llms-full.txt)\n- [Rules and code](agents.md)"
    return (
        f"# pagestream\n\n> {about}\n\n## Pages\n\n" + "\n".join(links[1:]) + f"\n\n## For agents\n\n{more}\n"
    )


def included(include: re.Match[str]) -> str:
    """Returns the lines that an include stands for, indented as it is."""
    indent, name, first = include.groups()
    lines = (DOCS.parent / name).read_text().splitlines()[int(first or 1) - 1 :]
    return "\n".join(f"{indent}{line}" if line else "" for line in lines)


def full() -> str:
    """Returns the text of all pages, with the files that they include."""
    return "\n".join(INCLUDE.sub(included, text(page)) for page in pages())


def made() -> dict[str, str]:
    """Returns the text of each file by its name."""
    return {"agents.md": agents(), "llms.txt": index(), "llms-full.txt": full()}


if __name__ == "__main__":
    site = Path(sys.argv[1])
    for name, content in made().items():
        (site / name).write_text(content)
