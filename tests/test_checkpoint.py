"""Checkpoints: what the real library writes is read alike, and hostile files are refused in one line."""

from __future__ import annotations

import errno
import json
import os
import random
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from coldstart import headers
from coldstart.checkpoint import SAMPLE_BYTES, read_checkpoint
from coldstart.errors import CheckpointError

SAVEABLE = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
]


def raw(header: bytes | Mapping[str, object], data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(*shape: object, begin: object = 0, end: object = 0, dtype: object = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


GOOD = raw({"a": entry(4, end=4), "b": entry(2, 3, begin=4, end=10)}, bytes(10))


def written(directory: Path, content: bytes, name: str = "model.safetensors") -> Path:
    (directory / name).write_bytes(content)
    return directory


def refused(path: Path) -> str:
    """The one line with which ``path`` is refused."""
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 800
    assert caught.value.advice
    return message


class TestGoodFiles:
    @pytest.mark.parametrize("dtype", SAVEABLE)
    def test_every_dtype_that_torch_can_save(self, dtype: str, tmp_path: Path) -> None:
        torch_dtype: torch.dtype = getattr(torch, dtype)
        tensors = {
            "one": torch.arange(48, dtype=torch.uint8).view(torch_dtype if dtype != "bool" else torch.uint8),
            "scalar": torch.zeros((), dtype=torch_dtype),
            "empty": torch.empty((0, 4), dtype=torch_dtype),
            "three": torch.zeros((2, 3, 4), dtype=torch_dtype),
        }
        if dtype == "bool":
            tensors["one"] = torch.tensor([True, False, True])
        if dtype == "float4_e2m1fn_x2":  # a scalar of packed pairs has no spelling in the format
            del tensors["scalar"]
        path = tmp_path / "model.safetensors"
        save_file(tensors, path, metadata={"format": "pt"})
        checkpoint = read_checkpoint(tmp_path)
        assert set(checkpoint.tensors) == set(tensors)
        content = path.read_bytes()
        for name, tensor in tensors.items():
            stored = checkpoint.tensors[name]
            assert (stored.dtype, stored.shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            assert content[stored.offset : stored.offset + stored.nbytes] == _bytes(tensor)

    def test_sub_byte_types_without_a_torch_dtype(self, tmp_path: Path) -> None:
        header = {"a": entry(4, 2, dtype="F6_E2M3", end=6), "b": entry(8, begin=6, end=12, dtype="F6_E3M2")}
        stored = read_checkpoint(written(tmp_path, raw(header, bytes(12)))).tensors
        assert (stored["a"].dtype, stored["a"].nbytes) == ("float6_e2m3fn", 6)
        assert _accepted_by_safetensors(tmp_path / "model.safetensors")

    def test_order_in_the_header_does_not_matter(self, tmp_path: Path) -> None:
        content = raw({"b": entry(6, begin=4, end=10), "a": entry(4, end=4), "z": entry(0, begin=4, end=4)}, bytes(10))
        checkpoint = read_checkpoint(written(tmp_path, content))
        assert list(checkpoint.tensors) == ["a", "z", "b"]
        assert checkpoint.tensors["b"].offset == len(content) - 6

    def test_no_tensors(self, tmp_path: Path) -> None:
        assert read_checkpoint(written(tmp_path, raw({}))).tensors == {}

    def test_padding_of_the_header_and_names_of_any_kind(self, tmp_path: Path) -> None:
        header = json.dumps({"../../x": entry(4, end=4), "\n\x00é": entry(0, begin=4, end=4)}).encode() + b" " * 13
        stored = read_checkpoint(written(tmp_path, raw(header, bytes(4)))).tensors
        assert set(stored) == {"../../x", "\n\x00é"}  # data, never a path
        assert {tensor.file for tensor in stored.values()} == {tmp_path / "model.safetensors"}


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _accepted_by_safetensors(path: Path) -> bool:
    try:
        with safe_open(path, "np") as file:
            file.keys()
    except (SafetensorError, OverflowError):
        return False
    return True


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "only 0 bytes"),
    "seven bytes": (b"\0" * 7, "only 7 bytes"),
    "a length of zero": (raw(b""), "does not start with '{'"),
    "a header of 91 MB": (raw(b"{}", length=91_000_000), "claims a header of 91000000 bytes"),
    "an absurd header": (raw(b"{}", length=2**64 - 1), "more than the 16777216 allowed"),
    "a header longer than the file": (raw(b"{}", length=100), "98 bytes of its header are missing"),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "leading spaces": (raw(b"  {}"), "does not start with '{'"),
    "not JSON": (raw(b"{nonsense}"), "malformed"),
    "JSON and more": (raw(b"{}{}"), "malformed"),
    "not UTF-8": (raw(b'{"\xff": 1}'), "malformed"),
    "UTF-16": (raw("{}".encode("utf-16-le")), "malformed"),
    "lone surrogate": (raw(b'{"\\ud800": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "not Unicode"),
    "a very long number": (raw(b'{"a": ' + b"9" * 5000 + b"}"), "malformed"),
    "deep arrays": (raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested too deeply"),
    "deep objects": (raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "nested too deeply"),
    "duplicate tensors": (raw(b'{"a":%b,"a":%b}' % ((json.dumps(entry(4, end=4)).encode(),) * 2), bytes(4)), "twice"),
    "duplicate fields": (raw(b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"x"), "twice"),
    "an entry that is no object": (raw({"a": [1, 2]}), "lacks dtype"),
    "an entry without a shape": (raw({"a": {"dtype": "U8", "data_offsets": [0, 0]}}), "lacks dtype"),
    "metadata that is no map": (raw({"__metadata__": [1]}), "__metadata__"),
    "metadata with a number": (raw({"__metadata__": {"a": 1}}), "__metadata__"),
    "an unknown dtype": (raw({"a": entry(1, end=1, dtype="Q8")}, b"x"), "unknown dtype"),
    "a dtype that is no text": (raw({"a": entry(1, end=1, dtype=[])}, b"x"), "unknown dtype"),
    "a negative shape": (raw({"a": entry(-1, -1, end=1)}, b"x"), "not a size"),
    "a fraction in a shape": (raw({"a": entry(1.0, end=1)}, b"x"), "not a size"),
    "true in a shape": (raw({"a": entry(True, end=1)}, b"x"), "not a size"),
    "null in a shape": (raw({"a": entry(None, end=1)}, b"x"), "not a size"),
    "a shape of text": (raw({"a": {"dtype": "U8", "shape": "11", "data_offsets": [0, 1]}}, b"x"), "not a list"),
    "a huge dimension": (raw({"a": entry(2**70, 0)}), "not a size"),
    "a shape that overflows": (raw({"a": entry(2**40, 2**40)}), "overflows"),
    "a shape that overflows to nothing": (raw({"a": entry(2**62, 4, 0)}), "overflows"),
    "a shape that takes for ever": (raw({"a": entry(*[2**62] * 100_000)}), "overflows"),
    "negative offsets": (raw({"a": entry(1, begin=-1, end=0)}, b"x"), "not a size"),
    "offsets backwards": (raw({"a": entry(1, begin=1, end=0)}, b"x"), "not a range"),
    "three offsets": (raw({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, b"x"), "not a range"),
    "offsets of another size": (raw({"a": entry(2, end=1)}, b"x"), "needs 2 bytes and its offsets give 1"),
    "half a byte": (raw({"a": entry(3, end=1, dtype="F4")}, b"x"), "whole byte"),
    "half a pair": (raw({"a": entry(2, 3, end=3, dtype="F4")}, b"xxx"), "odd last dimension"),
    "a hole": (raw({"a": entry(1, end=1), "b": entry(1, begin=2, end=3)}, b"xxx"), "leaves a hole"),
    "a hole at the start": (raw({"a": entry(1, begin=1, end=2)}, b"xx"), "leaves a hole"),
    "an overlap": (raw({"a": entry(2, end=2), "b": entry(2, begin=1, end=3)}, b"xxx"), "overlaps"),
    "two in one place": (raw({"a": entry(2, end=2), "b": entry(2, end=2)}, b"xx"), "overlaps"),
    "truncated": (GOOD[:-3], "truncated, 3 of"),
    "trailing bytes": (GOOD + b"xyz", "3 bytes follow the last tensor"),
    "offsets beyond any file": (raw({"a": entry(2**59, end=2**59)}), "bytes are missing"),
}


class TestHostileFiles:
    @pytest.mark.parametrize(("content", "words"), HOSTILE.values(), ids=HOSTILE.keys())
    def test_refused(self, content: bytes, words: str, tmp_path: Path) -> None:
        began = time.perf_counter()
        assert words in refused(written(tmp_path, content))
        assert time.perf_counter() - began < 5

    def test_names_cannot_break_the_line(self, tmp_path: Path) -> None:
        name = "a\nERROR everything is lost\x1b[31m" + "x" * 1000
        assert "\\n" in refused(written(tmp_path, raw({name: entry(2, end=1)}, b"x")))

    def test_90_mb_of_spaces_are_refused_before_reading(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        with path.open("wb") as file:
            file.write(raw(b"{}", length=90_000_000))
            file.truncate(90_000_008)
        assert self._peak(tmp_path) < 1_000_000

    def test_too_many_tensors_are_refused_before_parsing(self, tmp_path: Path) -> None:
        one = b'"%06d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
        header = b"{" + b",".join(one % index for index in range(headers.MAX_TENSORS + 1)) + b"}"
        written(tmp_path, raw(header))
        assert self._peak(tmp_path) < 2.5 * len(header)

    def test_a_header_full_of_nothing_is_refused_before_parsing(self, tmp_path: Path) -> None:
        header = b'{"a":[' + b",".join([b"[]"] * 5_000_000) + b"]}"
        written(tmp_path, raw(header))
        assert self._peak(tmp_path) < 2.5 * len(header)

    def _peak(self, directory: Path) -> int:
        """Bytes allocated while refusing."""
        tracemalloc.start()
        try:
            refused(directory)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def test_what_is_accepted_is_accepted_by_the_real_library_too(self, tmp_path: Path) -> None:
        """Random damage to headers: never another error, never a file that safetensors refuses."""
        chance = random.Random(20)
        path = tmp_path / "model.safetensors"
        letters = b'0123456789-[]{},:" abU8F\x00\xff'
        accepted = 0
        for _ in range(1500):
            content = bytearray(GOOD)
            for _ in range(chance.choice((1, 1, 2, 3))):
                at = chance.randrange(len(content))
                content[at] = chance.choice(letters)
            path.write_bytes(content)
            try:
                read_checkpoint(tmp_path)
            except CheckpointError:
                continue
            accepted += 1
            assert _accepted_by_safetensors(path), bytes(content)
        assert accepted > 20


class TestDirectories:
    def test_missing(self, tmp_path: Path) -> None:
        assert "no such file or directory" in refused(tmp_path / "nowhere")

    def test_neither_file_nor_directory(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert "neither a file nor a directory" in refused(tmp_path / "pipe")

    def test_empty(self, tmp_path: Path) -> None:
        assert "it is empty" in refused(tmp_path)

    def test_other_files_are_listed(self, tmp_path: Path) -> None:
        (tmp_path / "README.md").touch()
        assert "'README.md' found" in refused(tmp_path)
        (tmp_path / "pytorch_model.bin").touch()
        message = refused(tmp_path)
        assert "'pytorch_model.bin' found; convert it to safetensors" in message

    def test_one_file_of_another_kind(self, tmp_path: Path) -> None:
        (tmp_path / "model.bin").touch()
        assert "not a .safetensors file" in refused(tmp_path / "model.bin")

    def test_several_files_without_an_index(self, tmp_path: Path) -> None:
        written(tmp_path, GOOD, "a.safetensors")
        written(tmp_path, GOOD, "b.safetensors")
        assert "2 safetensors files ('a.safetensors', 'b.safetensors')" in refused(tmp_path)

    def test_the_only_file_whatever_its_name(self, tmp_path: Path) -> None:
        checkpoint = read_checkpoint(written(tmp_path, GOOD, "weights.safetensors"))
        assert checkpoint.files == (tmp_path / "weights.safetensors",)

    def test_one_file_by_its_path(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        written(tmp_path, GOOD, "a.safetensors")
        written(tmp_path, GOOD, "b.safetensors")
        checkpoint = read_checkpoint(tmp_path / "b.safetensors")
        assert checkpoint.files == (tmp_path / "b.safetensors",)
        assert checkpoint.config is None

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "weights.safetensors")
        assert "not a regular file" in refused(tmp_path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_no_permission(self, tmp_path: Path) -> None:
        (written(tmp_path, GOOD) / "model.safetensors").chmod(0)
        assert "Permission denied" in refused(tmp_path)

    def test_the_component_that_may_not_be_read_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listed = Path.iterdir

        def shut(self: Path) -> Iterator[Path]:
            if self.name == "unet":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
            return listed(self)

        (tmp_path / "unet").mkdir()
        (tmp_path / "model_index.json").write_text('{"_class_name": "Own", "unet": ["diffusers", "UNet2DModel"]}')
        monkeypatch.setattr(Path, "iterdir", shut)
        assert f"cannot read {tmp_path / 'unet'}: Permission denied" in refused(tmp_path)

    def test_a_dangling_link_of_the_hub_cache(self, tmp_path: Path) -> None:
        (tmp_path / "weights.safetensors").symlink_to(tmp_path / "blobs" / ("0" * 64))
        assert "No such file" in refused(tmp_path)

    def test_config(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "tiny", "limit": Infinity}')
        config = read_checkpoint(written(tmp_path, GOOD)).config
        assert config is not None
        assert config["model_type"] == "tiny"

    @pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', "[" * 100_000])
    def test_a_broken_config(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(text)
        assert "config.json" in refused(written(tmp_path, GOOD))


class TestIndex:
    def index(self, directory: Path, weight_map: object) -> Path:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return directory

    def test_shards(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            tensors = {f"{name}{index}": torch.full((3,), float(index)) for index in range(3)}
            save_file(tensors, tmp_path / f"{name}.safetensors")
        written(tmp_path, GOOD, "not-listed.safetensors")
        weight_map = {f"{name}{index}": f"{name}.safetensors" for name in ("b", "a") for index in range(2)}
        checkpoint = read_checkpoint(self.index(tmp_path, weight_map))
        assert checkpoint.files == (tmp_path / "a.safetensors", tmp_path / "b.safetensors")
        assert {name: tensor.file.name for name, tensor in checkpoint.tensors.items()} == weight_map

    def test_a_name_in_two_files_is_taken_from_the_one_in_the_index(self, tmp_path: Path) -> None:
        written(tmp_path, GOOD, "one.safetensors")
        written(tmp_path, GOOD, "two.safetensors")
        checkpoint = read_checkpoint(self.index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}))
        assert checkpoint.tensors["b"].file.name == "two.safetensors"

    @pytest.mark.parametrize(
        "name",
        [
            "../one.safetensors",
            "/etc/x.safetensors",
            "sub/one.safetensors",
            "..",
            "",
            "a\\b.safetensors",
            "x\0.safetensors",
            7,
            None,
            [],
        ],
    )
    def test_names_are_never_paths(self, name: object, tmp_path: Path) -> None:
        directory = tmp_path / "inner"
        (directory / "sub").mkdir(parents=True)
        for place in (tmp_path, directory, directory / "sub"):
            written(place, GOOD, "one.safetensors")
        assert "not the plain name" in refused(self.index(directory, {"a": name}))

    def test_a_missing_shard(self, tmp_path: Path) -> None:
        message = refused(self.index(tmp_path, {"a": "gone.safetensors"}))
        assert "'gone.safetensors', which is not in the directory; the download is incomplete" in message

    def test_a_missing_tensor(self, tmp_path: Path) -> None:
        written(tmp_path, GOOD, "one.safetensors")
        assert "lacks tensor 'c'" in refused(self.index(tmp_path, {"a": "one.safetensors", "c": "one.safetensors"}))

    @pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
    def test_no_map(self, weight_map: object, tmp_path: Path) -> None:
        assert "no weight_map" in refused(self.index(tmp_path, weight_map))


class TestFingerprint:
    def test_depends_on_content_only(self, tmp_path: Path) -> None:
        first, second = tmp_path / "a", tmp_path / "b"
        for directory in (first, second):
            directory.mkdir()
            (directory / "config.json").write_text("{}")
        written(first, GOOD)
        written(second, GOOD, "blob")
        (second / "other-name.safetensors").symlink_to(second / "blob")
        assert read_checkpoint(first).fingerprint == read_checkpoint(second).fingerprint

    def test_every_sampled_change_counts(self, tmp_path: Path) -> None:
        seen = {read_checkpoint(written(tmp_path, GOOD)).fingerprint}
        for at in range(1, 11):  # tensors smaller than a sample are read whole
            damaged = bytearray(GOOD)
            damaged[-at] ^= 1
            seen.add(read_checkpoint(written(tmp_path, bytes(damaged))).fingerprint)
        renamed = GOOD.replace(b'"b"', b'"c"')
        seen.add(read_checkpoint(written(tmp_path, renamed)).fingerprint)
        for config in ("{}", "{ }"):
            (tmp_path / "config.json").write_text(config)
            seen.add(read_checkpoint(written(tmp_path, GOOD)).fingerprint)
        assert len(seen) == 14

    def test_each_tensor_is_sampled_at_a_place_of_its_own(self, tmp_path: Path) -> None:
        """Damage moves over two large tensors with equal bytes; each sees 4 KiB of it, not the same 4 KiB."""
        size = 16 * SAMPLE_BYTES
        header = {"a": entry(size, end=size), "b": entry(size, begin=size, end=2 * size)}
        clean = read_checkpoint(written(tmp_path, raw(header, bytes(2 * size)))).fingerprint
        noticed: dict[str, list[int]] = {"a": [], "b": []}
        for name, start in (("a", 0), ("b", size)):
            for at in range(0, size, SAMPLE_BYTES // 2):
                data = bytearray(2 * size)
                data[start + at] = 1
                if read_checkpoint(written(tmp_path, raw(header, bytes(data)))).fingerprint != clean:
                    noticed[name].append(at)
        assert len(noticed["a"]) == len(noticed["b"]) == 2
        assert noticed["a"] != noticed["b"]

    def test_many_tensors(self, tmp_path: Path) -> None:
        header = {f"t{index}": entry(1, begin=index, end=index + 1) for index in range(5000)}
        first = read_checkpoint(written(tmp_path, raw(header, bytes(5000)))).fingerprint
        assert read_checkpoint(tmp_path).fingerprint == first
        assert len(first) == 32


class TestPipelines:
    """A directory with a ``model_index.json``: the checkpoints of its components, together."""

    INDEX: Mapping[str, object] = {
        "_class_name": "SomePipeline",
        "_diffusers_version": "0.42.1",
        "_ignored_files": ["a", "b"],
        "scheduler": ["diffusers", "SomeScheduler"],
        "safety_checker": [None, None],
        "steps": [1, 2],
        "vae": ["diffusers", "SomeVae"],
        "text_encoder": ["transformers", "SomeEncoder"],
    }

    def pipeline(self, path: Path, **changes: object) -> Path:
        for name, file in (("vae", "diffusion_pytorch_model.safetensors"), ("text_encoder", "model.safetensors")):
            (path / name).mkdir(exist_ok=True)
            written(path / name, GOOD, file)
            (path / name / "config.json").write_text(json.dumps({"of": name}))
        (path / "scheduler").mkdir(exist_ok=True)
        written(path / "scheduler", b"{}", "scheduler_config.json")
        written(path, GOOD, "everything-in-one.safetensors")
        (path / "model_index.json").write_text(json.dumps({**self.INDEX, **changes}))
        return path

    def test_tensors_are_named_by_component(self, tmp_path: Path) -> None:
        checkpoint = read_checkpoint(self.pipeline(tmp_path))
        assert list(checkpoint.tensors) == ["text_encoder.a", "text_encoder.b", "vae.a", "vae.b"]
        assert [checkpoint.tensors[name].name for name in checkpoint.tensors] == ["a", "b", "a", "b"]
        assert checkpoint.tensors["vae.a"].file == tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
        assert checkpoint.config == self.INDEX
        assert list(checkpoint.components) == ["text_encoder", "vae"]
        assert checkpoint.components["vae"].config == {"of": "vae"}
        assert set(checkpoint.modified) == set(checkpoint.files)

    def test_the_index_of_a_pipeline_and_what_is_in_it_have_a_part_in_the_fingerprint(self, tmp_path: Path) -> None:
        def fingerprint() -> str:
            return read_checkpoint(tmp_path).fingerprint

        self.pipeline(tmp_path)
        found = [fingerprint(), fingerprint()]
        self.pipeline(tmp_path, steps=[2, 3])
        found.append(fingerprint())
        (tmp_path / "vae" / "config.json").write_text("{}")
        found.append(fingerprint())
        written(tmp_path / "text_encoder", GOOD[:-1] + b"x", "model.safetensors")
        found.append(fingerprint())
        assert found[0] == found[1]
        assert len(set(found)) == 4

    @pytest.mark.parametrize("name", ["..", "../vae", "/etc", "vae/..", "a.b", "a b", "", "\u0430"])
    def test_components_that_lead_elsewhere_are_refused(self, name: str, tmp_path: Path) -> None:
        message = refused(self.pipeline(tmp_path, **{name: ["diffusers", "SomeVae"]}))
        assert "which is not the plain name of a directory" in message

    def test_what_else_is_refused(self, tmp_path: Path) -> None:
        many = {f"part{number}": ["diffusers", "SomeVae"] for number in range(65)}
        assert "names 68 components, more than the 64 allowed" in refused(self.pipeline(tmp_path, **many))
        (tmp_path / "model_index.json").write_text('{"scheduler": ["diffusers", "SomeScheduler"]}')
        assert "no component that" in refused(tmp_path)
        (tmp_path / "model_index.json").write_text("[]")
        assert "is not an object" in refused(tmp_path)

    def test_weights_in_another_form_are_refused(self, tmp_path: Path) -> None:
        self.pipeline(tmp_path)
        (tmp_path / "vae" / "diffusion_pytorch_model.safetensors").rename(tmp_path / "vae" / "diffusion.bin")
        assert f"no safetensors in {tmp_path / 'vae'}: 'diffusion.bin' found" in refused(tmp_path)

    def test_what_diffusers_calls_its_shards(self, tmp_path: Path) -> None:
        written(tmp_path, GOOD, "one.safetensors")
        written(tmp_path, GOOD, "diffusion_pytorch_model.safetensors")
        index = {"weight_map": {"a": "one.safetensors"}}
        (tmp_path / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
        assert list(read_checkpoint(tmp_path).tensors) == ["a"]
