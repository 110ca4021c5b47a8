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
_EXPIRED: Final = ("ExpiredToken", "TokenRefreshRequired", "not valid in the specified time frame")
_SKEWED: Final = "RequestTimeTooSkewed"
_BROKEN: Final = "response body error"
_METADATA: Final = ("169.254.169.254", "metadata.google.internal")
"""Where machines of clouds ask for their credentials: the last resort of one that was given none."""


def refused(kind: Kind, words: str, url: StoreUrl, key: str = "") -> CheckpointError:
    """The one line for a request for ``key``, or for the listing of ``url``, that ended with ``words``."""
    where = f"{url.home}/{key}" if key else str(url)
    return _named(kind, words, url, where) or _credentials(kind, words, url, where) or _trouble(words, where)


def _named(kind: Kind, words: str, url: StoreUrl, where: str) -> CheckpointError | None:
    """It is not what was named."""
    if any(word in words for word in _NO_BUCKET):
        return CheckpointError(
            f"cannot read {where}: there is no bucket {url.bucket!r}", advice="check its name, region and endpoint"
        )
    if kind == "absent":
        return CheckpointError(f"{where} is not there", advice="check the path; the upload may be incomplete")
    if kind == "changed":
        return CheckpointError(f"{where} changed after its header was read", advice=BESIDE)
    if "redirect without LOCATION" in words:
        return CheckpointError(
            f"cannot read {where}: the store says that it is elsewhere", advice="set the bucket's own AWS_REGION"
        )
    return None


def _credentials(kind: Kind, words: str, url: StoreUrl, where: str) -> CheckpointError | None:
    """It is not for whoever asks."""
    named, code = _CREDENTIALS[url.scheme], _code(words)
    told = f" ({code})" if code else ""
    if any(host in words for host in _METADATA):
        return CheckpointError(
            f"there are no credentials for {where}",
            advice=f"set {named}; for a public bucket {_UNSIGNED[url.scheme]}=true",
        )
    if any(word in words for word in _EXPIRED):
        return CheckpointError(
            f"the credentials for {where} have expired{told}",
            advice="renew the token; a role or an identity of the machine renews its own",
        )
    if _SKEWED in words:
        return CheckpointError(f"{where} was refused{told}: this machine's clock is wrong", advice="set it by NTP")
    if kind == "denied" or "status code: 403" in words or "status code: 401" in words:
        return CheckpointError(
            f"access to {where} was refused{told}", advice=f"check {named}, and that they may list and read it"
        )
    if "status code: 400" in words and not code:  # the answer to a HEAD has no words
        return CheckpointError(
            f"{where} was refused (400, without a reason)", advice=f"check whether a token has expired, and {named}"
        )
    if "Account must be specified" in words:
        return CheckpointError(f"cannot read {where}: no account is named", advice=f"set {_CREDENTIALS['az']}")
    return None


def _trouble(words: str, where: str) -> CheckpointError:
    """It was tried as often as there was time for."""
    if "builder error" in words:
        return CheckpointError(
            f"cannot read {where}: the endpoint is not https",
            advice="set AWS_ALLOW_HTTP=true (AZURE_ALLOW_HTTP, GOOGLE_ALLOW_HTTP) if that is meant",
        )
    if busy := re.search(r"status code: (429|5\d\d)", words):
        code = _code(words)
        answer = f"{busy[1]} ({code})" if code else busy[1]
        return CheckpointError(
            f"cannot read {where}: the store answers {answer}, however often it is asked",
            advice="look at its health; if it is busy, lower COLDSTART_STORE_READS",
        )
    if _BROKEN in words:
        return CheckpointError(
            f"cannot read {where}: its connections break in the middle of an answer, however often it is asked",
            advice="check the network, and proxies on the way",
        )
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
