"""Settings: arguments beat the environment, and a bad value is named by what the operator wrote."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from coldstart import config
from coldstart.bus.limits import MAX_CROWD
from coldstart.config import Declared, Settings
from coldstart.config.kinds import plain, text
from coldstart.errors import ConfigError
from coldstart.identity import Rank
from coldstart.plan import Limits


def text_of(each: Declared) -> str:
    """What an operator might write for a setting that is not its default."""
    if each.choices:
        return next(choice for choice in each.choices if choice != each.default)
    if each.type is str:
        return f"{each.name}-set"
    least, most = each.setting.least, each.setting.most
    assert least is not None
    assert most is not None
    return plain(least if each.default != least else most)


EVERYTHING: Mapping[str, str] = {name: text_of(each) for name, each in config.declared().items()}


def test_without_anything_the_defaults_hold() -> None:
    settings = config.load(environ={})
    assert settings == Settings()
    assert settings.limits == Limits()
    assert settings.transport_names == ()


def test_every_field_can_be_set_in_the_environment() -> None:
    assert list(EVERYTHING) == list(Settings.__struct_fields__)
    environment = {f"COLDSTART_{field.upper()}": given for field, given in EVERYTHING.items()}
    found = config.resolve(environ=environment)
    for field, given in EVERYTHING.items():
        value = getattr(found.settings, field)
        assert value == (given if isinstance(value, str) else float(given)), field
        assert value != getattr(Settings(), field)
        assert found.origins[field].name == f"COLDSTART_{field.upper()}"


def test_the_machines_limits_are_the_settings() -> None:
    names = set(Limits.__struct_fields__) & set(Settings.__struct_fields__)
    given = config.load({name: EVERYTHING[name] for name in names} | {"floor_gbps": 0.25}, {})
    assert {name: getattr(given.limits, name) for name in names} == {name: getattr(given, name) for name in names}
    assert given.limits.floor == 0.25e9


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDSTART_SLOTS", "7")
    assert config.load().slots == 7


def test_arguments_beat_the_environment_and_none_is_no_argument() -> None:
    environment = {"COLDSTART_SLOTS": "7", "COLDSTART_HOST": "10.0.0.1", "COLDSTART_DRAIN": "3"}
    settings = config.load({"slots": 1, "host": None, "drain": 4.5}, environment)
    assert (settings.slots, settings.host, settings.drain) == (1, "10.0.0.1", 4.5)


def test_names_of_others_are_left_alone() -> None:
    assert config.load(environ={"COLDSTART_SOMETHING_ELSE": "1", "SLOTS": "9", "PATH": "/bin"}) == Settings()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("COLDSTART_SLOTS", "many"),
        ("COLDSTART_SLOTS", "1.5"),
        ("COLDSTART_SLOTS", "0"),
        ("COLDSTART_SLOTS", "-1"),
        ("COLDSTART_CONNECTIONS", "0"),
        ("COLDSTART_LEASE", "0"),
        ("COLDSTART_LEASE", "nan"),
        ("COLDSTART_STALL", "inf"),
        ("COLDSTART_ANSWER", "1s"),
        ("COLDSTART_PATIENCE", "-0.1"),
        ("COLDSTART_LEND_GBPS", "-1"),
        ("COLDSTART_DRAIN", "nan"),
        ("COLDSTART_WARN_GBPS", "-1"),
        ("COLDSTART_WARN_SHARE", "1.1"),
        ("COLDSTART_WARN_SHARE", "nan"),
    ],
)
def test_a_bad_value_names_its_variable_in_one_line(variable: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(environ={variable: text})
    assert variable in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_variable_is_as_good_as_none(text: str) -> None:
    """Compose files and charts set variables that they have no value for."""
    assert config.load(environ={f"COLDSTART_{field.upper()}": text for field in EVERYTHING}) == Settings()


def test_blanks_around_a_value_do_not_count() -> None:
    settings = config.load(environ={"COLDSTART_SLOTS": " 5\n", "COLDSTART_HOST": " 10.0.0.1 "})
    assert (settings.slots, settings.host) == (5, "10.0.0.1")


def test_a_bad_argument_is_named_as_the_caller_wrote_it() -> None:
    with pytest.raises(ConfigError, match="slots"):
        config.load({"slots": 0}, {"COLDSTART_SLOTS": "3"})
    with pytest.raises(ConfigError, match="lease"):
        config.load({"lease": "soon"}, {})
    with pytest.raises(ConfigError, match="sluts"):
        config.load({"sluts": 3}, {})


def test_a_setting_of_few_texts_names_them() -> None:
    each = Declared("digest", Literal["a", "b", "c"], "a", text("About.", "Why."))
    assert (each.choices, each.wanted) == (("a", "b", "c"), "a, b or c")


def test_transports_are_a_list_in_order() -> None:
    assert config.load(environ={"COLDSTART_TRANSPORTS": " nccl , tcp,,"}).transport_names == ("nccl", "tcp")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().slots = 3  # type: ignore[misc]


def test_the_embedded_store_lives_with_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Settings(directory="/somewhere").embedded_directory == Path("/somewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert Settings().embedded_directory == tmp_path / "coldstart"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert Settings().embedded_directory == tmp_path / f"coldstart-{os.getuid()}"


def test_link_rates_are_kept_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Settings().links_directory == tmp_path / "coldstart" / "links"
    assert Settings(cache="/var/cs").links_directory == Path("/var/cs/links")
    assert Settings(cache="none").links_directory is None
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for useless in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", useless)
        assert Settings().links_directory == tmp_path / "home" / ".cache" / "coldstart" / "links"


def test_traces_go_by_opentelemetrys_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("ENDPOINT", "TRACES_ENDPOINT", "PROTOCOL", "TRACES_PROTOCOL")
    for name in names:
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    assert (config.otlp_endpoint(), config.otlp_protocol()) == ("", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert (config.otlp_endpoint(), config.otlp_protocol()) == ("http://all:4318", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    assert (config.otlp_endpoint(), config.otlp_protocol()) == ("http://traces:4318", "http/protobuf")
    assert (config.otlp_endpoint("metrics"), config.otlp_protocol("metrics")) == ("http://all:4318", "grpc")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert (config.otlp_endpoint(), config.otlp_endpoint("metrics")) == ("http://traces:4318", "")


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "job-7",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/none_y/attempt_0/3/error.json",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
}


def named(**changes: str) -> str:
    group = config.torchrun({**TORCHRUN, **changes})
    assert group is not None
    return group.name


def test_torchruns_variables_make_a_group_that_is_the_same_in_all_ranks_of_a_start() -> None:
    group = config.torchrun(TORCHRUN)
    assert group is not None
    assert (group.size, group.index) == (4, 3)
    assert group.tensor_parallel == Rank(tp=3, tp_size=4)
    other = "/tmp/torchelastic_x/none_y/attempt_0/1/error.json"
    assert named(RANK="1", TORCHELASTIC_ERROR_FILE=other) == group.name
    unnamed = named(TORCHELASTIC_RUN_ID="none")
    assert named(TORCHELASTIC_RUN_ID="none", RANK="1", TORCHELASTIC_ERROR_FILE=other) == unnamed


@pytest.mark.parametrize(
    "changes",
    [
        {"TORCHELASTIC_RUN_ID": "job-8"},
        {"TORCHELASTIC_RESTART_COUNT": "1"},
        {"MASTER_ADDR": "10.0.0.2"},
        {"WORLD_SIZE": "8"},
        {"TORCHELASTIC_RUN_ID": "none"},
    ],
)
def test_another_start_has_another_name(changes: dict[str, str]) -> None:
    assert named(**changes) != named()


def test_a_start_on_one_host_without_a_name_is_told_from_the_next() -> None:
    later = "/tmp/torchelastic_x/none_z/attempt_0/3/error.json"
    assert named(TORCHELASTIC_RUN_ID="none") != named(TORCHELASTIC_RUN_ID="none", TORCHELASTIC_ERROR_FILE=later)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"RANK": "x"}, "RANK is 'x'"),
        ({"RANK": "4"}, "rank 4 of 4"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is ''"),
        ({"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2"}, "no name"),
        ({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_ERROR_FILE": ""}, "no name"),
    ],
)
def test_what_torchrun_should_have_said_is_asked_for(changes: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config.torchrun({**TORCHRUN, **changes}, required=True)


def test_outside_of_torchrun_there_is_no_group_unless_one_is_asked_for() -> None:
    assert config.torchrun({"RANK": "1"}) is None
    assert config.torchrun({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2"}) is None
    with pytest.raises(ConfigError, match="did not start this process"):
        config.torchrun({"RANK": "1"}, required=True)


def test_no_crowd_is_asked_for_that_the_store_would_refuse() -> None:
    assert config.load(environ={"COLDSTART_CROWD": str(MAX_CROWD)}).crowd == MAX_CROWD
    with pytest.raises(ConfigError, match="COLDSTART_CROWD"):
        config.load(environ={"COLDSTART_CROWD": str(MAX_CROWD + 1)})
