"""Plugins by name: found in the metadata of distributions, loaded when chosen, blamed by name when broken."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldstart import registry
from coldstart.errors import PluginUnavailable, UnknownPlugin
from coldstart.ports import API, Availability

Install = Callable[..., None]

GOOD = """
from coldstart.ports import API, Availability

class Factory:
    api = API
    def probe(self):
        return Availability(True, "found libwarp")
    def open(self, settings):
        raise NotImplementedError

FACTORY = Factory()
"""
USABLE = 'Availability(True, "found libwarp")'
BREAKS = GOOD.replace(f"return {USABLE}", "raise ValueError('dust')")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes a distribution that brings one plugin; its metadata and its module are on ``sys.path``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._found.cache_clear()
    modules: list[str] = []

    def make(distribution: str, name: str, code: str, *, version: str = "1.0", kind: str = "transports") -> None:
        module = distribution.replace("-", "_")
        info = tmp_path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[coldstart.{kind}]\n{name} = {module}:FACTORY\n")
        (tmp_path / f"{module}.py").write_text(code)
        modules.append(module)
        registry._found.cache_clear()

    yield make
    for module in modules:
        sys.modules.pop(module, None)
    registry._found.cache_clear()


def availability(name: str) -> Availability:
    """What ``plugins()`` says of one name, which one distribution has."""
    (plugin,) = [plugin for plugin in registry.plugins() if plugin.name == name]
    return plugin.availability


def test_what_comes_with_the_core_is_found() -> None:
    assert "tcp" in registry.names("transports")
    assert "tensors" in registry.names("skeletons")
    assert registry.transport("tcp").api == registry.skeleton("tensors").api == API


def test_names_loads_nothing(install: Install) -> None:
    install("warp-drive", "warp", "raise SystemExit('loaded')")
    assert "warp" in registry.names("transports")
    assert "warp" not in registry.names("skeletons")
    assert list(registry.names("transports")) == sorted(registry.names("transports"))
    assert "warp_drive" not in sys.modules


def test_a_good_plugin_is_chosen_by_name(install: Install) -> None:
    install("warp-drive", "warp", GOOD)
    assert registry.transport("warp").probe() == availability("warp") == Availability(True, "found libwarp")
    (plugin,) = [plugin for plugin in registry.plugins() if plugin.name == "warp"]
    assert (plugin.kind, plugin.distribution, plugin.version, plugin.target) == (
        "transports",
        "warp-drive",
        "1.0",
        "warp_drive:FACTORY",
    )


def test_an_unknown_name_lists_what_is_installed(install: Install) -> None:
    install("warp-drive", "warp", GOOD)
    with pytest.raises(UnknownPlugin) as caught:
        registry.transport("wrap")
    assert str(caught.value).startswith("no transport is called 'wrap'; installed are: ")
    assert "tcp, warp" in str(caught.value)
    with pytest.raises(UnknownPlugin, match=r"no skeleton is called 'warp'; installed are: .*tensors"):
        registry.skeleton("warp")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import libwarp_which_is_not_here", "ModuleNotFoundError: No module named 'libwarp_which_is_not_here'"),
        ("raise OSError('libwarp.so.3: cannot open')", "OSError: libwarp.so.3: cannot open"),
        ("OTHER = 1", "AttributeError: module 'warp_drive' has no attribute 'FACTORY'"),
        ("def broken(:", "SyntaxError: "),
    ],
)
def test_a_plugin_that_does_not_import_is_a_value_until_it_is_chosen(install: Install, code: str, cause: str) -> None:
    install("warp-drive", "warp", code, version="2.5")
    assert registry.transport("tcp").api == API
    found = availability("warp")
    assert not found.usable
    with pytest.raises(PluginUnavailable) as caught:
        registry.transport("warp")
    for text in (found.reason, str(caught.value)):
        assert f"'warp' of warp-drive 2.5 does not load: {cause}" in text
    assert caught.value.__cause__ is not None
    assert caught.value.exit_code == 4


def test_another_api_number_is_refused_by_name(install: Install) -> None:
    install("warp-drive", "warp", GOOD.replace("api = API", "api = API + 1"), version="9.0")
    said = f"'warp' of warp-drive 9.0 is made for plugin API {API + 1}, this is {API}"
    assert said in availability("warp").reason
    with pytest.raises(PluginUnavailable, match=said) as caught:
        registry.transport("warp")
    assert "install matching versions" in caught.value.advice


def test_what_is_no_factory_is_told_what_it_lacks(install: Install) -> None:
    install("warp-drive", "warp", "FACTORY = object()")
    with pytest.raises(PluginUnavailable, match=r"'warp' of warp-drive 1\.0 has no api, probe, open"):
        registry.transport("warp")


def test_two_distributions_that_claim_a_name_are_both_named(install: Install) -> None:
    install("warp-drive", "warp", GOOD)
    install("other-warp", "warp", GOOD)
    with pytest.raises(PluginUnavailable, match="'warp' is claimed by other-warp and warp-drive") as caught:
        registry.transport("warp")
    assert caught.value.advice == "uninstall one of them"
    rivals = [plugin for plugin in registry.plugins() if plugin.name == "warp"]
    assert {plugin.distribution for plugin in rivals} == {"warp-drive", "other-warp"}
    assert not any(plugin.availability.usable for plugin in rivals)
    assert registry.names("transports").count("warp") == 1
    assert not {"warp_drive", "other_warp"} & set(sys.modules)
    assert registry.transport("tcp").api == API


def test_one_distribution_found_twice_is_one(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that stands twice in ``sys.path`` is no conflict."""
    install("warp-drive", "warp", GOOD)
    twin = tmp_path / "twin"
    twin.mkdir()
    for entry in tmp_path.glob("warp_drive*"):
        (twin / entry.name).symlink_to(entry)
    monkeypatch.syspath_prepend(str(twin))
    registry._found.cache_clear()
    assert registry.transport("warp").api == API


def test_a_plugin_that_cannot_run_here_says_why(install: Install) -> None:
    install("warp-drive", "warp", GOOD.replace(USABLE, 'Availability(False, "no warp core in this machine")'))
    assert availability("warp") == Availability(False, "no warp core in this machine")
    with pytest.raises(PluginUnavailable) as caught:
        registry.transport("warp")
    assert str(caught.value) == "transport 'warp' (warp-drive 1.0) cannot run here: no warp core in this machine"


def test_a_probe_that_breaks_is_a_value(install: Install) -> None:
    install("warp-drive", "warp", BREAKS)
    assert availability("warp") == Availability(False, "probe failed: ValueError: dust")


def test_a_probe_that_breaks_is_an_error_when_chosen(install: Install) -> None:
    install("warp-drive", "warp", BREAKS)
    with pytest.raises(PluginUnavailable, match=r"warp-drive 1\.0"):
        registry.transport("warp")
