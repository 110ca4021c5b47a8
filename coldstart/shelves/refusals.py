"""Why an object store did not give what it was asked for, for people: what, where, what to do.

Decides by the kind of refusal and, where a library has only words for it, by these: the codes are those of the
stores' own protocols. Pure; whose errors they are is for ``bucket.py`` to know.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from coldstart.errors import CheckpointError
from coldstart.shelves.location import StoreUrl

Kind = Literal["absent", "changed", "denied", "other"]

BESIDE: Final = "write a new checkpoint beside the old one instead"
_MOST: Final = 300
"""Characters of somebody else's words that are shown."""

_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or the machine's role",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or the machine's service account",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or the machine's identity",
}
_UNSIGNED: Final = {"s3": "AWS_SKIP_SIGNATURE", "gs": "GOOGLE_SKIP_SIGNATURE", "az": "AZURE_SKIP_SIGNATURE"}
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_METADATA: Final = ("169.254.169.254", "metadata.google.internal")
"""Where machines of clouds ask for their credentials: the last resort of one that was given none."""


def refused(kind: Kind, words: str, url: StoreUrl, key: str = "") -> CheckpointError:
    """The one line for a request for ``key``, or for the listing of ``url``, that ended with ``words``."""
    where = f"{url.home}/{key}" if key else str(url)
    code = _code(words)
    if any(word in words for word in _NO_BUCKET):
        return CheckpointError(
            f"cannot read {where}: there is no bucket {url.bucket!r}", advice="check its name, region and endpoint"
        )
    if kind == "absent":
        return CheckpointError(f"{where} is not there", advice="check the path; the upload may be incomplete")
    if kind == "changed":
        return CheckpointError(f"{where} changed after its header was read", advice=BESIDE)
    if any(host in words for host in _METADATA):
        return CheckpointError(
            f"there are no credentials for {where}",
            advice=f"set {_CREDENTIALS[url.scheme]}; for a public bucket {_UNSIGNED[url.scheme]}=true",
        )
    if kind == "denied" or "status code: 403" in words or "status code: 401" in words:
        told = f" ({code})" if code else ""
        return CheckpointError(
            f"access to {where} was refused{told}",
            advice=f"check {_CREDENTIALS[url.scheme]}, and that they may list and read it",
        )
    if "builder error" in words:
        return CheckpointError(
            f"cannot read {where}: the endpoint is not https",
            advice="set AWS_ALLOW_HTTP=true (AZURE_ALLOW_HTTP, GOOGLE_ALLOW_HTTP) if that is meant",
        )
    if "Account must be specified" in words:
        return CheckpointError(f"cannot read {where}: no account is named", advice=f"set {_CREDENTIALS['az']}")
    return CheckpointError(
        f"cannot read {where}: {_line(words)}", advice="check the endpoint, the network and the store's own health"
    )


def _code(words: str) -> str:
    found = re.search(r"<Code>([A-Za-z]{1,64})</Code>", words)
    return found[1] if found else ""


def _line(words: str) -> str:
    """The library's first line, without its settings; what follows a question mark in a URL may be a signature."""
    line = " ".join(words.partition("Debug source:")[0].split())
    line = re.sub(r"^Generic \w+ error: |, max_retries: \d+, retry_timeout: \w+ ", "", line)
    line = re.sub(r"\?\S*", "", re.sub(r"<[^>]*>", " ", line))
    line = "".join(letter for letter in line if letter.isprintable())
    return line if len(line) <= _MOST else line[: _MOST - 3] + "..."
