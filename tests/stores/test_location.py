"""What is a path and what a URL, without any store, and without the library for stores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coldstart.errors import ConfigError
from coldstart.shelves.location import StoreUrl, is_plain, located
from coldstart.shelves.refusals import refused

PROGRAM = """
import sys
import coldstart.config
from coldstart.errors import PluginUnavailable
from coldstart.shelves.open import find
assert "obstore" not in sys.modules
sys.modules["obstore"] = None
try:
    find("s3://bucket/model", coldstart.config.Settings().shelves)
except PluginUnavailable as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://models/llama", StoreUrl("s3", "models", "llama")),
        ("S3://models//a/b/", StoreUrl("s3", "models", "a/b")),
        ("gs://models", StoreUrl("gs", "models", "")),
        ("az://container/x.safetensors", StoreUrl("az", "container", "x.safetensors")),
        ("/models/llama", Path("/models/llama")),
        ("models", Path("models")),
        ("./s3/x", Path("s3/x")),
        ("a:b", Path("a:b")),
        ("run:/x", Path("run:/x")),
    ],
)
def test_what_was_meant(text: str, expected: object) -> None:
    assert located(text) == expected
    assert located(Path(text)) == expected


@pytest.mark.parametrize(
    "text", ["s3://", "s3:///x", "s3://a b/x", "s3://b/../x", "s3://b/a//b", "s3://b/x\ny", "https://host/x", "hf://a/b"]
)
def test_what_cannot_be_meant(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        located(text)
    assert str(caught.value).isprintable()
    assert caught.value.advice


def test_names_of_strangers() -> None:
    assert all(is_plain(name) for name in ("a", "a/b.json", "\u00e9", "..a", ".hidden"))
    wrong = ("", "/a", "a/", "a//b", ".", "..", "a/../b", "a\\b", "a\0", "a\n", "x" * 256, "a/\u202ex")
    assert not any(is_plain(name) for name in wrong)


def test_without_the_library_a_store_is_refused_and_nothing_else_misses_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == [
        "s3://bucket/model is in an object store, and obstore is not installed; "
        "pip install 'coldstart-weights[object-stores]'"
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("PUT http://169.254.169.254/latest/api/token failed", "there are no credentials for s3://b/m"),
        ("status code: 403 <Error><Code>ExpiredToken</Code>", "the credentials for s3://b/m have expired (Expired"),
        ("status code: 403 <Error><Code>SignatureDoesNotMatch</Code>", "access to s3://b/m was refused (SignatureDoes"),
        ("<Error><Code>NoSuchBucket</Code></Error>", "cannot read s3://b/m: there is no bucket 'b'"),
        ("GET https://h/x?sig=secret - boom\n\nDebug source:\nsecret", "cannot read s3://b/m: GET https://h/x - boom"),
        ("Generic S3 error: " + "x" * 5000, "cannot read s3://b/m: xxx"),
    ],
)
def test_a_refusal_is_one_line_without_secrets(words: str, told: str) -> None:
    message = str(refused("other", words, StoreUrl("s3", "b", "m")))
    assert message.startswith(told)
    assert message.isprintable()
    assert len(message) < 500
    assert "secret" not in message
