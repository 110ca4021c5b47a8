"""Checkpoints on a real S3 server: what is read of them, which bytes, and what is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart.checkpoint import read_checkpoint
from coldstart.shelves.location import ShelfSettings
from coldstart.shelves.open import find
from tests.stores.conftest import Store

Write = Callable[..., Path]


def test_a_directory_and_its_copy_have_the_same_tensors(store: Store, tmp_path: Path, write_checkpoint: Write) -> None:
    directory = write_checkpoint(tmp_path / "m", mib=1)
    (directory / "config.json").write_text('{"model_type": "tiny"}')
    store.upload(directory)
    here = read_checkpoint(directory)
    there = find(store.url, ShelfSettings(mirrors=tmp_path / "mirrors", allow_http=True)).checkpoint
    print(store.gateway.seen, there)
