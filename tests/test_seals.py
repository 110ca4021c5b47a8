"""Seals and the file of keys: what binds, what is refused and by what name, and that no secret is ever shown."""

from __future__ import annotations

import logging
import os
import stat
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart.cli.keys import stepped
from coldstart.errors import BadMessage, ConfigError, Unproven
from coldstart.keyring import LOOK_SECONDS, MAX_KEYS, Keyring, made, parse, read, text_of
from coldstart.refusals import Refusals
from coldstart.seals import MAX_REMEMBERED, WINDOW_SECONDS, Envelope, Key, Keys, Place, Window, is_sealed, opened, seal

KEY, OTHER = Key("k1", b"1" * 32), Key("k2", b"2" * 32)
KEYS = Keys((KEY, OTHER))
PLACE = Place("cs", "5ac1" * 8)
NOW = 1_800_000_000.0


def letter(body: bytes = b"body", key: Key = KEY, at: float = NOW, nonce: bytes = b"n" * 16) -> bytes:
    return seal(body, key, PLACE, "letter", to="in", sender="w.1", at=at, life=WINDOW_SECONDS, nonce=nonce)


def reason(data: bytes, keys: Keys = KEYS, place: Place = PLACE) -> str:
    with pytest.raises(Unproven) as caught:
        opened(data, keys, place)
    assert isinstance(caught.value, BadMessage)
    return caught.value.reason


def envelope(at: float = NOW, number: int = 0) -> Envelope:
    return opened(letter(at=at, nonce=number.to_bytes(16, "little")), KEYS, PLACE)


# ------------------------------------------------------------------------------------------- seals


@given(st.binary(max_size=2048), st.sampled_from([KEY, OTHER]))
def test_every_body_survives_its_envelope(body: bytes, key: Key) -> None:
    data = letter(body, key)
    assert is_sealed(data)
    found = opened(data, KEYS, PLACE)
    assert (found.body, found.to, found.sender, found.purpose, found.key) == (body, "in", "w.1", "letter", key.ident)


@given(st.binary(max_size=512))
def test_whatever_is_no_envelope_is_refused_by_name(data: bytes) -> None:
    assert reason(data) in ("unsealed", "malformed")
    assert reason(b"\x9a\xc4\x04CSS1" + data) in ("malformed", "unknown key", "forged")


@given(st.data())
def test_an_envelope_with_other_bytes_is_refused(data: st.DataObject) -> None:
    right = bytearray(letter())
    at = data.draw(st.integers(0, len(right) - 1))
    right[at] ^= data.draw(st.integers(1, 255))
    assert reason(bytes(right)) in ("unsealed", "malformed", "unknown key", "forged")


FIELDS = ("key", "purpose", "to", "sender", "at", "life", "nonce", "body")


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_bound(field: str) -> None:
    right = opened(letter(), KEYS, PLACE)
    value = {"key": "k2", "purpose": "hello", "to": "out", "sender": "", "at": 1, "life": 1, "nonce": b"m" * 16}
    changed = msgspec.structs.replace(right, **{field: value.get(field, b"other")})
    assert reason(msgspec.msgpack.encode(changed)) == "forged"
    assert set(FIELDS) | {"mark", "mac"} == set(Envelope.__struct_fields__)


@pytest.mark.parametrize("place", [Place("other", PLACE.shard), Place("cs", "b" * 32)])
def test_the_place_is_bound(place: Place) -> None:
    assert reason(letter(), place=place) == "forged"


def test_keys_that_are_not_known_are_named() -> None:
    assert reason(letter(), Keys((OTHER,))) == "unknown key"
    assert reason(letter(), Keys((Key("k1", OTHER.secret),))) == "forged"


def test_words_of_one_domain_mean_nothing_in_another_and_cannot_be_shifted() -> None:
    said = [("a", b"bc"), ("ab", b"c"), ("a", b"b", b"c"), ("a", "bc")]
    assert len({key.mac(*words) for words in said for key in (KEY, OTHER)}) == 2 * len(said)


# ------------------------------------------------------------------------------------------ the window


def test_a_letter_is_admitted_once_and_in_its_time() -> None:
    window = Window()
    window.admit(envelope(), NOW + 1)
    with pytest.raises(Unproven, match="before"):
        window.admit(envelope(), NOW + 2)
    for now in (NOW + WINDOW_SECONDS + 1, NOW - WINDOW_SECONDS - 1):
        with pytest.raises(Unproven, match=r"old|from now"):
            Window().admit(envelope(), now)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-80, 80)), max_size=60))
def test_nothing_is_ever_admitted_twice(letters: list[tuple[int, float]]) -> None:
    """Whenever letters are written and in whichever order they come, as long as the store's clock goes forward."""
    window, admitted, now = Window(), set(), NOW
    for number, offset in letters:
        now += 10
        try:
            window.admit(envelope(NOW + number, number), max(now, now + offset / 100))
        except Unproven:
            continue
        assert number not in admitted
        admitted.add(number)


def test_what_must_be_remembered_is_bounded_and_forgotten_in_time() -> None:
    assert MAX_REMEMBERED > 256 * WINDOW_SECONDS, "more than an inbox can hold a second"
    window = Window(most=3)
    for number in range(3):
        window.admit(envelope(number=number), NOW)
    with pytest.raises(Unproven, match="3 letters") as caught:
        window.admit(envelope(number=3), NOW)
    assert caught.value.reason == "too many"
    later = NOW + 2 * WINDOW_SECONDS + 1
    window.admit(envelope(later, 3), later)


def test_strangers_are_counted_and_told_of_less_and_less_often() -> None:
    told: list[int] = []
    refusals = Refusals()
    refusals.heard = lambda why, words, count: told.append(count)
    for _ in range(100):
        refusals.note("forged", "a letter")
    assert refusals.counts() == {"forged": 100}
    assert told == [1, 2, 4, 8, 16, 32, 64]


# -------------------------------------------------------------------------------------------- the file


def written(path: Path, keys: Keys, mode: int = 0o600) -> Path:
    path.write_text(text_of(keys))
    path.chmod(mode)
    return path


def test_a_file_holds_what_was_written(tmp_path: Path) -> None:
    keys = Keys((made(), made()), made())
    assert read(written(tmp_path / "keys", keys)) == keys
    assert parse(f"# comment\n\n  sign k1 {'0f' * 32}  # yes\n", tmp_path).first.secret == b"\x0f" * 32


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "0 signing keys"),
        ("sign k1 abc", "line 1"),
        (f"sign k1 {'AB' * 32}", "line 1"),
        (f"sign k/1 {'ab' * 32}", "line 1"),
        (f"\nsing k1 {'ab' * 32}", "line 2"),
        (f"sign k1 {'ab' * 32}\nsign k1 {'cd' * 32}", "line 2"),
        (f"sign k1 {'ab' * 32}\nsign k2 {'ab' * 32}", "line 2"),
        (f"sign k1 {'ab' * 32}\ndigest k2 {'ab' * 32}", "line 2"),
        (f"sign k1 {'ab' * 32}\ndigest d1 {'01' * 32}\ndigest d2 {'02' * 32}", "second digest"),
        ("\n".join(f"sign k{n} {n:064x}" for n in range(MAX_KEYS + 1)), "9 signing keys"),
    ],
)
def test_a_malformed_file_is_named_by_line_and_never_quoted(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=words) as caught:
        read(path)
    assert "ab" * 8 not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o620, 0o602, 0o666])
def test_a_file_that_others_can_read_or_write_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chmod"):
        read(written(tmp_path / "keys", KEYS, mode))
    assert read(written(tmp_path / "keys", KEYS, 0o440)) == KEYS


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "bytes").write_bytes(b"\xff" * 9)
    (tmp_path / "bytes").chmod(0o600)
    for name in ("none", "pipe", ".", "bytes"):
        with pytest.raises(ConfigError):
            read(tmp_path / name)


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    shown = f"{KEY!r} {KEYS!r} {KEY} {[KEY]}"
    assert "11111" not in shown
    assert KEY.secret.hex() not in shown


def test_a_changed_file_counts_a_moment_later_and_a_broken_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    path = written(tmp_path / "keys", Keys((KEY,)))
    ring = Keyring(path, now=lambda: clock[0])
    written(tmp_path / "next", KEYS).replace(path)
    assert ring() == Keys((KEY,))
    clock[0] += LOOK_SECONDS
    assert ring() == KEYS
    with caplog.at_level(logging.WARNING, "coldstart"):
        path.write_text("nonsense")
        for _ in range(3):
            clock[0] += LOOK_SECONDS
            assert ring() == KEYS
        assert caplog.text.count("keys kept as they were") == 1
        path.unlink()
        clock[0] += LOOK_SECONDS
        assert ring() == KEYS
    written(path, Keys((OTHER,)))
    clock[0] += LOOK_SECONDS
    assert ring() == Keys((OTHER,))


def test_a_change_of_keys_takes_three_steps_in_which_nobody_meets_an_unknown_key() -> None:
    first = Keys((made(),), made())
    steps = [first]
    for _ in range(6):
        steps.append(stepped(steps[-1]))
    for before, after in pairwise(steps):
        assert before.find(after.first.ident) is not None
        assert after.find(before.first.ident) is not None
        assert after.digest == first.digest
    assert [len(keys.signing) for keys in steps] == [1, 2, 2, 1, 2, 2, 1]
    assert len({steps[at].first.ident for at in (0, 3, 6)}) == 3


def test_new_keys_are_all_different() -> None:
    keys = [made() for _ in range(50)]
    assert len({key.secret for key in keys}) == len({key.ident for key in keys}) == 50


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    from coldstart.cli import keys

    path = tmp_path / "keys"
    keys.new(path, json=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o440)
    before = read(path)
    keys.rotate(path, json=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o440
    assert read(path).signing[:1] == before.signing
    assert [each.name for each in tmp_path.iterdir()] == ["keys"]
    with pytest.raises(ConfigError, match="there already"):
        keys.new(path, json=True)
