"""Checkpoints on a real S3 server: what is read of them, which bytes, and what is refused in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="obstore is not installed")
from msgspec.structs import replace

from coldstart.checkpoint import read_checkpoint
from coldstart.errors import CheckpointError
from coldstart.links.mounts import mount_of, storage_of
from coldstart.ports import Checkpoint
from coldstart.shelves import mirror, objects
from coldstart.shelves.location import ShelfSettings
from coldstart.shelves.open import find
from tests.stores.conftest import BUCKET, Store
from tests.stores.gateway import Fault

Write = Callable[..., Path]


@pytest.fixture
def settings(tmp_path: Path) -> ShelfSettings:
    return ShelfSettings(mirrors=tmp_path / "mirrors", allow_http=True, retry_seconds=2.0, io_seconds=1.0)


@pytest.fixture
def directory(store: Store, tmp_path: Path, write_checkpoint: Write) -> Path:
    """A checkpoint as it is here, and as it was uploaded to ``store``."""
    made = write_checkpoint(tmp_path / "m", mib=1)
    (made / "config.json").write_text('{"model_type": "tiny"}')
    (made / "tokenizer.json").write_text("[]")
    (made / "onnx").mkdir()
    (made / "onnx" / "model.onnx").write_bytes(b"x")
    store.upload(made)
    return made


def relative(checkpoint: Checkpoint) -> object:
    """What must be equal wherever the files are."""
    tensors = [
        replace(each, file=each.file.relative_to(checkpoint.path)) for _, each in sorted(checkpoint.tensors.items())
    ]
    return tensors, checkpoint.config, [file.name for file in checkpoint.files]


def refused(url: str, settings: ShelfSettings) -> str:
    with pytest.raises(CheckpointError) as caught:
        find(url, settings)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 500
    assert caught.value.advice
    return message


class TestHeaders:
    def test_a_copy_has_what_the_directory_has(
        self, store: Store, directory: Path, settings: ShelfSettings
    ) -> None:
        found = find(store.url, settings)
        assert relative(found.checkpoint) == relative(read_checkpoint(directory))
        assert (found.name, found.checkpoint.origin) == ("model", store.url)
        assert find(Path(store.url), settings).checkpoint == found.checkpoint  # a Path has one slash less

    def test_its_rate_is_remembered_by_the_bucket(self, store: Store, directory: Path, settings: ShelfSettings) -> None:
        assert storage_of(find(store.url, settings).checkpoint) == store.url.removesuffix(f"/{store.prefix}")
        assert storage_of(read_checkpoint(directory)) == mount_of(directory)

    def test_of_the_weights_no_byte_is_read_but_the_header(
        self, store: Store, directory: Path, settings: ShelfSettings
    ) -> None:
        checkpoint = find(store.url, settings).checkpoint
        end = min(tensor.offset for tensor in checkpoint.tensors.values())
        assert store.gateway.read(store.key("model.safetensors")) == [(0, 8), (8, end)]
        assert store.gateway.wait_for(lambda: store.gateway.open == 0), "connections are closed"

    def test_what_builders_need_is_brought_once(self, store: Store, directory: Path, settings: ShelfSettings) -> None:
        path = find(store.url, settings).checkpoint.path
        names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
        assert names == ["config.json", "tokenizer.json"]
        store.gateway.seen.clear()
        find(store.url, settings)
        assert not store.gateway.read(store.key("tokenizer.json"))
        store.put("tokenizer.json", b"[1]")
        assert (find(store.url, settings).checkpoint.path / "tokenizer.json").read_bytes() == b"[1]"
        assert (path / "tokenizer.json").read_bytes() == b"[]", "nobody's files change under him"

    def test_the_fingerprint_follows_the_stores_checksum(
        self, store: Store, directory: Path, settings: ShelfSettings
    ) -> None:
        file = directory / "model.safetensors"
        content = bytearray(file.read_bytes())
        first = find(store.url, settings).checkpoint.fingerprint
        store.put("model.safetensors", bytes(content))
        assert find(store.url, settings).checkpoint.fingerprint == first
        content[-5] ^= 1
        store.put("model.safetensors", bytes(content))
        assert find(store.url, settings).checkpoint.fingerprint != first

    def test_shards(self, store: Store, directory: Path, settings: ShelfSettings) -> None:
        content = (directory / "model.safetensors").read_bytes()
        names = list(read_checkpoint(directory).tensors)
        shards = {name: f"part-{at % 2}.safetensors" for at, name in enumerate(names)}
        for file in set(shards.values()):
            store.put(f"sharded/{file}", content)
        store.put("sharded/model.safetensors.index.json", json.dumps({"weight_map": shards}).encode())
        checkpoint = find(f"{store.url}/sharded", settings).checkpoint
        assert {name: tensor.file.name for name, tensor in checkpoint.tensors.items()} == shards
        store.put("sharded/model.safetensors.index.json", b'{"weight_map": {"a": "gone.safetensors"}}')
        assert f"{store.url}/sharded/model.safetensors.index.json refers to 'gone" in refused(
            f"{store.url}/sharded", settings
        )

    def test_a_single_file(self, store: Store, directory: Path, settings: ShelfSettings) -> None:
        checkpoint = find(f"{store.url}/model.safetensors", settings).checkpoint
        assert set(checkpoint.tensors) == set(read_checkpoint(directory).tensors)
        assert checkpoint.config is None

    def test_a_pipeline(self, store: Store, directory: Path, settings: ShelfSettings) -> None:
        index = {"_class_name": "P", "vae": ["diffusers", "V"], "scheduler": ["diffusers", "S"]}
        store.put("pipe/model_index.json", json.dumps(index).encode())
        store.put("pipe/scheduler/scheduler_config.json", b"{}")
        store.put("pipe/vae/diffusion_pytorch_model.safetensors", (directory / "model.safetensors").read_bytes())
        checkpoint = find(f"{store.url}/pipe", settings).checkpoint
        assert list(checkpoint.components) == ["vae"]
        assert (checkpoint.path / "scheduler" / "scheduler_config.json").is_file()

    def test_without_a_cache_directory(self, store: Store, directory: Path) -> None:
        path = find(store.url, ShelfSettings(allow_http=True)).checkpoint.path
        assert (path / "config.json").is_file()

    def test_mirrors_that_nobody_uses_go(
        self, store: Store, directory: Path, settings: ShelfSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mirror, "_KEPT", 2)
        paths = []
        for number in range(4):
            store.put("tokenizer.json", str(number).encode())
            paths.append(find(store.url, settings).checkpoint.path)
            os.utime(paths[-1].parent, ns=(number, number))
        assert [path.exists() for path in paths] == [False, False, True, True]


class TestRefusals:
    def test_nothing_there(self, store: Store, settings: ShelfSettings) -> None:
        assert f"no checkpoint at {store.url}: nothing is there" in refused(store.url, settings)

    def test_no_bucket(self, store: Store, settings: ShelfSettings) -> None:
        assert "there is no bucket 'other'" in refused("s3://other/model", settings)

    @pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
    def test_wrong_credentials(
        self, wrong: str, store: Store, settings: ShelfSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(wrong, "wrong")
        message = refused(store.url, settings)
        assert f"access to {store.url} was refused" in message
        assert "AWS_ACCESS_KEY_ID" in message
        assert "access to" in refused(f"{store.url}/model.safetensors", settings)

    def test_an_endpoint_without_tls_must_be_meant(self, store: Store, settings: ShelfSettings) -> None:
        assert "AWS_ALLOW_HTTP=true" in refused(store.url, replace(settings, allow_http=False))

    def test_nobody_answers(self, store: Store, settings: ShelfSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        assert f"cannot read {store.url}: " in refused(store.url, replace(settings, retry_seconds=0.3))

    def test_hostile_headers_are_refused_by_their_url(
        self, store: Store, directory: Path, settings: ShelfSettings
    ) -> None:
        content = (directory / "model.safetensors").read_bytes()
        for damaged, words in ((content[:-3], "truncated, 3 of"), (b"\xff" * 8, "claims a header"), (b"", "only 0")):
            store.put("model.safetensors", damaged)
            message = refused(store.url, settings)
            assert f"{store.url}/model.safetensors cannot be used: " in message
            assert words in message

    def test_names_that_lead_elsewhere_are_not_taken(
        self, store: Store, directory: Path, settings: ShelfSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listed = objects.Asking.list

        def more(self: objects.Asking, most: int) -> list[objects.Stored]:
            found = list(listed(self, most))
            start = found[0].key.rpartition("/")[0]
            names = ("../../out.json", "/etc/x", "a//b", "a\\b", "..", "a\n", "x" * 300)
            return [*found, *(replace(found[0], key=f"{start}/{name}") for name in names)]

        monkeypatch.setattr(objects.Asking, "list", more)
        path = find(store.url, settings).checkpoint.path
        assert path.parent.parent == settings.mirrors
        assert {file.name for file in path.parent.rglob("*")} == {"model", "config.json", "tokenizer.json"}

    def test_a_whole_collection_is_not_a_checkpoint(
        self, store: Store, directory: Path, settings: ShelfSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(objects, "MAX_OBJECTS", 3)
        assert "more than 3 objects below" in refused(f"s3://{BUCKET}", settings)


class TestTrouble:
    @pytest.mark.parametrize("fault", ["slow down", "too many", "broken", "reset", "silent"])
    def test_what_passes_is_tried_again(
        self, fault: str, store: Store, directory: Path, settings: ShelfSettings
    ) -> None:
        left = [fault, fault] if fault != "silent" else [fault]
        store.gateway.misbehave = lambda method, key: left.pop() if left and method == "GET" else ""  # type: ignore[return-value]
        assert find(store.url, settings).checkpoint.config == {"model_type": "tiny"}
        assert not left

    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            ("slow down", "the store answers 503 (SlowDown), however often it is asked; look at its health"),
            ("too many", "the store answers 429 (TooManyRequests), however often"),
            ("failing", "the store answers 500 (InternalError), however often"),
            ("broken", "connections break in the middle of an answer, however often"),
            ("reset", "connections break in the middle of an answer, however often"),
        ],
    )
    def test_what_does_not_pass_is_said(
        self, fault: Fault, words: str, store: Store, directory: Path, settings: ShelfSettings
    ) -> None:
        store.gateway.misbehave = lambda method, key: fault
        message = refused(store.url, replace(settings, retry_seconds=0.3))
        assert message.startswith(f"cannot read {store.url}: ")
        assert words in message
        assert store.gateway.wait_for(lambda: len(store.gateway.seen) > 1)

    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            ("expired", "the credentials for {} have expired (ExpiredToken); renew the token"),
            ("skewed", "{} was refused (RequestTimeTooSkewed): this machine's clock is wrong"),
            ("moved", "cannot read {}: the store says that it is elsewhere; set the bucket's own AWS_REGION"),
        ],
    )
    def test_what_would_not_pass_is_not_tried_again(
        self, fault: Fault, words: str, store: Store, directory: Path, settings: ShelfSettings
    ) -> None:
        store.gateway.misbehave = lambda method, key: fault
        assert words.format(store.url) in refused(store.url, settings)
        assert store.gateway.wait_for(lambda: store.gateway.open == 0)
        assert len(store.gateway.seen) == 1

    def test_a_token_that_expires_before_the_headers_are_read(
        self, store: Store, directory: Path, settings: ShelfSettings
    ) -> None:
        """What a HEAD is refused for it is not told."""
        store.gateway.misbehave = lambda method, key: "expired" if method == "HEAD" else ""
        message = refused(store.url, settings)
        assert f"{store.url}/model.safetensors was refused (400, without a reason); check whether a token" in message
