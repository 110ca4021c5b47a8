"""What ``--model-loader-extra-config`` may say, and that everything else is an error."""

from __future__ import annotations

import pytest
from coldstart_vllm.options import Options, parse

from coldstart.config import Settings


def test_nothing_means_defaults() -> None:
    assert parse({}, environ={}) == Options(Settings())


def test_the_extra_config_beats_the_environment() -> None:
    environ = {"COLDSTART_REDIS": "redis://there:1", "COLDSTART_SLOTS": "7"}
    options = parse({"redis": "redis://here:1", "keep_raw": True, "revision": "b"}, environ=environ)
    assert (options.settings.redis, options.settings.slots) == ("redis://here:1", 7)
    assert (options.keep_raw, options.revision) == (True, "b")


@pytest.mark.parametrize("key", ["redits", "Redis", "enable_multithread_load", "is_draft"])
def test_an_unknown_key_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=f"coldstart: {key} "):
        parse({"redis": "none", key: True}, environ={})


@pytest.mark.parametrize("extra", [{"slots": 0}, {"slots": "many"}, {"keep_raw": "yes"}, {"revision": 3}])
def test_a_bad_value_is_an_error(extra: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="model_loader_extra_config"):
        parse(extra, environ={})


def test_it_must_be_a_mapping() -> None:
    with pytest.raises(ValueError, match="must be a dict, not str"):
        parse("redis://here", environ={})
