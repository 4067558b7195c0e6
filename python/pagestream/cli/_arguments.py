"""Arguments that several commands have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

Paths: TypeAlias = Annotated[list[str], typer.Argument(help="Files, folders or indices.")]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="Show every row.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
