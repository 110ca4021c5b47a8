"""The pages as their readers get them: every Markdown file, its blocks of code, its commands and its links.

Decides what a block is and what a comment before it asks for. A block of Python is run. Before one that cannot be there
is ``<!-- not run: REASON -->``, before one that is no program by itself ``<!-- fragment: REASON -->``, and before one
that is shown from a file ``<!-- from FILE -->``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent.parent
PLAIN = {"", "sh", "bash", "console", "shell", "text"}
"""Languages of blocks in which there may be commands."""


class Block(NamedTuple):
    """One fenced block: where it is (``page:line``), its language, its text, and what the comment before it says."""

    where: str
    language: str
    text: str
    said: str = ""

    @property
    def id(self) -> str:
        return self.where

    @property
    def source(self) -> str:
        """The file that it is shown from; empty: it is the page's own."""
        return self.said.removeprefix("from ") if self.said.startswith("from ") else ""

    @property
    def fragment(self) -> str:
        """Why it is compiled only."""
        return self.said.removeprefix("fragment: ") if self.said.startswith("fragment: ") else ""

    @property
    def not_run(self) -> str:
        """Why it cannot be run; it is checked by mypy all the same."""
        return self.said.removeprefix("not run: ") if self.said.startswith("not run: ") else ""


def pages() -> list[Path]:
    """Every page that people read."""
    found = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("plugins/*/*.md")]
    return sorted(path for path in found if "node_modules" not in path.parts)


@cache
def tokens(page: Path) -> tuple[Token, ...]:
    """The page, parsed as CommonMark with tables."""
    return tuple(MarkdownIt("commonmark").enable("table").parse(page.read_text()))


def blocks(*languages: str) -> list[Block]:
    """All blocks in these languages, of all pages."""
    return [block for page in pages() for block in _blocks(page) if block.language in languages]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command line in a block, in words, with where it is; of a pipe, each part."""
    for block in blocks(*PLAIN):
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines():
            if block.language != "text":
                yield from ((block.where, words) for words in _parts(line))


def mentions() -> Iterator[tuple[str, list[str]]]:
    """Every command of ours that a sentence names in code, with where it is."""
    for page in pages():
        for token in tokens(page):
            for child in token.children or ():
                if child.type == "code_inline" and child.content.startswith(("coldstart ", "make ")):
                    line = (token.map or [0])[0] + 1
                    yield from ((f"{page.relative_to(ROOT)}:{line}", words) for words in _parts(child.content))


def links(page: Path) -> Iterator[str]:
    """Where links and images of a page lead to."""
    for token in tokens(page):
        for child in token.children or ():
            target = child.attrGet("href") if child.type == "link_open" else child.attrGet("src")
            if target:
                yield str(target)


def anchors(page: Path) -> set[str]:
    """What a link into a page may name, as GitHub and the site's generator make it of headings."""
    headings = [token.content for before, token in pairwise(tokens(page)) if before.type == "heading_open"]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", each)).strip().lower()) for each in headings}


def _blocks(page: Path) -> Iterator[Block]:
    said = ""
    for token in tokens(page):
        if token.type == "html_block":
            comment = re.fullmatch(r"<!--\s*(.*?)\s*-->", token.content.strip(), re.DOTALL)
            said = " ".join(comment[1].split()) if comment else ""
        elif token.type == "fence":
            line = (token.map or [0])[0] + 1
            language = token.info.split()[0] if token.info.strip() else ""
            yield Block(f"{page.relative_to(ROOT)}:{line}", language, token.content, said)
            said = ""
        else:
            said = ""


def _parts(line: str) -> Iterator[list[str]]:
    """The commands of a shell line: without prompt, comment, variables before them, and redirections."""
    lexer = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "#", True
    try:
        words = list(lexer)
    except ValueError:  # no command: output, or prose with an apostrophe
        return
    part: list[str] = []
    for word in [*words, ";"]:
        if not set(word) <= set("();<>|&"):
            part.append(word)
            continue
        while part and re.fullmatch(r"[A-Za-z_]\w*=.*", part[0]):
            part.pop(0)
        if part:
            yield part
        part = ["(redirection)"] if set(word) <= set("<>") else []
