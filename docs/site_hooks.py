"""What the site's generator is told besides ``mkdocs.yml``.

Decides which pages from outside of ``docs/`` are on the site too, and what becomes of links between them: they are
written for readers of the repository, and lead to the same page here. A link to a file that is no page stays as its
text. The picture of the states, which pages have as Mermaid, is the site's own file: it needs no script and no network.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from coldstart.diagram import BEGIN, END

ROOT = Path(__file__).parent.parent
OUTSIDE = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("plugins/*/README.md", "examples/README.md", "examples/*/README.md")
    for path in ROOT.glob(pattern)
)
"""Pages beside the code that they are about; on the site they have the same path."""

_FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
_STATES = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
_PICTURE = "![The states of a joiner, and which of them can follow which](states.svg)"
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside."""
    for path in OUTSIDE:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead every link to where its target is on the site, and show the states as a picture."""
    here = page.file.src_uri
    parts = _FENCE.split(_STATES.sub(_PICTURE, markdown))
    return "".join(part if part.startswith("```") else _LINK.sub(lambda link: _led(link, here), part) for part in parts)


def _led(link: re.Match[str], here: str) -> str:
    place = here if here in OUTSIDE else f"docs/{here}"
    target = os.path.normpath(os.path.join(os.path.dirname(place), link["path"]))
    if not (ROOT / target).exists():
        return link[0]  # for the generator to complain of
    there = {"README.md": "index.md"}.get(target, target.removeprefix("docs/"))
    if target not in OUTSIDE and target != "README.md" and not target.startswith("docs/"):
        return link["text"]
    return f"[{link['text']}]({os.path.relpath(there, os.path.dirname(here) or '.')}{link['anchor'] or ''})"

