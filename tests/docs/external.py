"""Asks every address on the pages that leads elsewhere, once: ``make links``, which is no part of ``make test``.

Decides which answer is a dead link: the server says that there is nothing (404, 410), or there is no such server while
others are there. Whatever else goes wrong (a refusal of robots, too many questions, a timeout) says nothing about the
link, and is told without failing. Where no link at all is fine and some servers are silent, this machine is offline, or
behind something that answers for others, and nothing is known.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urldefrag, urlsplit

from tests.docs.pages import ROOT, links, pages

SECONDS = 20.0
AT_ONCE = 8
GONE = (404, 410)
HEADERS = {"User-Agent": "coldstart-docs-links", "Accept": "*/*"}


class Kind(Enum):
    """What an answer says of a link."""

    FINE = "fine"
    DEAD = "dead"
    UNKNOWN = "not known"
    SILENT = "no answer"


class Answer(NamedTuple):
    """What came of asking one address."""

    kind: Kind
    words: str


def external(texts: Mapping[Path, tuple[str, ...]]) -> dict[str, list[Path]]:
    """Addresses elsewhere, without what they name within a page, with the pages that they are on."""
    found: dict[str, list[Path]] = {}
    for page, targets in texts.items():
        for target in targets:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https") and parts.hostname not in ("localhost", "127.0.0.1"):
                found.setdefault(urldefrag(target).url, []).append(page)
    return found


def ask(url: str) -> Answer:
    """One question, or a second one where a server does not take the first kind."""
    try:
        return _asked(url, "HEAD")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in GONE or error.code in (400, 403, 405, 501):  # some answer GET alone
            return _got(url)
        return Answer(Kind.UNKNOWN, f"HTTP {error.code}")
    except (OSError, ValueError) as error:
        return _failed(error)


def _got(url: str) -> Answer:
    try:
        return _asked(url, "GET")
    except urllib.error.HTTPError as error:
        error.close()
        return Answer(Kind.DEAD if error.code in GONE else Kind.UNKNOWN, f"HTTP {error.code}")
    except (OSError, ValueError) as error:
        return _failed(error)


def _asked(url: str, method: str) -> Answer:
    with urllib.request.urlopen(urllib.request.Request(url, headers=HEADERS, method=method), timeout=SECONDS) as answer:
        return Answer(Kind.FINE, f"HTTP {answer.status}")


def _failed(error: Exception) -> Answer:
    return Answer(Kind.SILENT, str(getattr(error, "reason", error)))


def verdict(answers: Mapping[str, Answer]) -> tuple[list[str], str]:
    """Which links are dead; or why nothing can be said of any."""
    kinds = {answer.kind for answer in answers.values()}
    if Kind.SILENT in kinds and Kind.FINE not in kinds:
        return [], "skipped: hardly anybody answers, so this machine seems to be offline, and no link was checked"
    return [url for url, answer in answers.items() if answer.kind is Kind.DEAD or _nowhere(answer)], ""


def _nowhere(answer: Answer) -> bool:
    """Whether there is no such server: a timeout may pass, an unknown name will not."""
    return answer.kind is Kind.SILENT and ("not known" in answer.words or "No address" in answer.words)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> int:
    """Ask, and say what is wrong; the exit code is 1 if a link is dead."""
    found = external({page: tuple(links(page)) for page in pages()})
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = dict(zip(found, pool.map(ask, found), strict=True))
    dead, skipped = verdict(answers)
    for url, answer in answers.items():
        if skipped or answer.kind is Kind.FINE:
            continue
        where = ", ".join(str(page.relative_to(ROOT)) for page in found[url])
        say(f"{'dead' if url in dead else answer.kind.value:9}  {url}  ({answer.words}; {where})")
    say(skipped or f"{len(answers)} links, {len(dead)} of them dead")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
