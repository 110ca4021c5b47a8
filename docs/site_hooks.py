"""What the site's generator is told besides ``mkdocs.yml``: pages that are on their way.

A page of ``PENDING`` that is not there yet has no place in the navigation; any other that is missing is an error.
"""

from __future__ import annotations

from pathlib import Path

PENDING = {"embed.md", "object-stores.md", "operate.md", "threat-model.md", "tracing.md"}

Entry = str | dict[str, "Entry | list[Entry]"]


def on_config(config: dict[str, object]) -> dict[str, object]:
    """Called by mkdocs with its configuration."""
    pages, nav = Path(str(config["docs_dir"])), config["nav"]
    if isinstance(nav, list):
        config["nav"] = _present(nav, pages)
    return config


def _present(entries: list[Entry], pages: Path) -> list[Entry]:
    kept: list[Entry] = []
    for entry in entries:
        if isinstance(entry, str):
            kept.append(entry)
            continue
        ((title, inner),) = entry.items()
        if isinstance(inner, list):
            kept.append({title: _present(inner, pages)})
        elif not (isinstance(inner, str) and inner in PENDING and not (pages / inner).exists()):
            kept.append(entry)
    return kept
