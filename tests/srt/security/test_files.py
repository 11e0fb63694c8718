"""Keys in files: readable by their owner only, whole or absent, and with errors that reveal no secret."""

from __future__ import annotations

import base64
import os
import stat
import traceback
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elf.errors import ConfigError
from elf.srt.messages.addresses import parse_address
from elf.srt.security.certificates import Authority, Keys
from elf.srt.security.files import (
    FILE_BYTES_MAX,
    REVOCATIONS_BYTES_MAX,
    decode_keys,
    decode_revocations,
    encode_authority,
    encode_keys,
    encode_revocations,
    keys_lines,
    load_agent_keys,
    load_authority,
    load_keys,
    load_revocations,
    save_keys,
    write_private,
)
from elf.srt.security.items import revocation

NOW = 1_800_000_000
AUTHORITY = Authority(b"a" * 32)
KEYS = AUTHORITY.issue("web1", "agent", NOW, address="10.0.0.1:7400")
READER = AUTHORITY.issue("screen", "reader", NOW)
TEXT = encode_keys(KEYS)
SECRETS = [base64.b64encode(secret).decode() for secret in (KEYS.curve_secret, KEYS.signing_seed)]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_keys(path)
    shown = "".join(traceback.format_exception(caught.value))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(secret in shown for secret in SECRETS)
    return str(caught.value)


@pytest.mark.parametrize("keys", [KEYS, READER], ids=["agent", "reader"])
def test_keys_are_read_as_they_were_written(keys: Keys, tmp_path: Path) -> None:
    path = tmp_path / "some.keys"
    save_keys(keys, path)
    read = load_keys(path)
    assert (read.proof, read.authority, read.address) == (keys.proof, keys.authority, keys.address)
    assert (read.curve_secret, read.signing_seed) == (keys.curve_secret, keys.signing_seed)
    assert read.certificate == keys.certificate


def test_secrets_stand_at_the_end_in_a_table_of_their_own() -> None:
    public, secret = TEXT.split("[secret]")
    assert all(each not in public and each in secret for each in SECRETS)
    assert not any(each in line for line in keys_lines(KEYS) for each in SECRETS)


def test_the_seed_line_is_an_address_that_names_the_node() -> None:
    seed = parse_address(dict(line.split(": ", 1) for line in keys_lines(KEYS))["seed"])
    assert (seed.endpoint, seed.id) == ("10.0.0.1:7400", KEYS.id)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_file_is_its_owners_from_its_first_moment(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def seeing(descriptor: int) -> None:
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))

    monkeypatch.setattr(os, "fsync", seeing)
    before = os.umask(umask)
    try:
        write_private(tmp_path / "a", TEXT)
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == 0o600 == seen[0]
    assert os.listdir(tmp_path) == ["a"]


def test_an_existing_file_stays_unless_it_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        write_private(path, TEXT)
    assert path.read_text() == "mine"
    write_private(path, TEXT, replace=True)
    assert path.read_text() == TEXT
    assert mode(path) == 0o600
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_that_lies_in_wait_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("")
    (tmp_path / f".a.{os.getpid()}.new").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="File exists"):
        write_private(tmp_path / "a", TEXT)
    assert (tmp_path / "theirs").read_text() == ""


@pytest.mark.parametrize("open_to", [0o644, 0o604, 0o620, 0o666, 0o601])
def test_keys_that_others_can_read_or_change_are_refused(open_to: int, tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_keys(KEYS, path)
    path.chmod(open_to)
    assert "chmod 600" in refusal(path)
    for allowed in (0o600, 0o400, 0o440):
        path.chmod(allowed)
        load_keys(path)


def test_errors_do_not_show_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert "No such file" in refusal(path)
    lines = TEXT.splitlines()
    for number, line in enumerate(lines):
        if line.startswith(("#", "address")) or not line:
            continue
        for changed in (line[:-2], line.replace('= "', '= "!'), line.replace("= ", "= ["), ""):
            if changed == line:
                continue
            path.unlink(missing_ok=True)
            write_private(path, "\n".join([*lines[:number], changed, *lines[number + 1 :]]))
            refusal(path)
    for text in ("", TEXT[: len(TEXT) // 2], TEXT + "x" * FILE_BYTES_MAX, TEXT.replace("keys 1", "keys 2")):
        write_private(path, text, replace=True)
        refusal(path)


def test_secrets_of_another_bundle_are_refused(tmp_path: Path) -> None:
    other = encode_keys(AUTHORITY.issue("web2", "agent", NOW))
    write_private(tmp_path / "a", TEXT.split("[secret]")[0] + "[secret]" + other.split("[secret]")[1])
    assert "not those of web1's certificate" in refusal(tmp_path / "a")


def test_an_agent_starts_with_keys_of_an_agent_that_hold(tmp_path: Path) -> None:
    save_keys(KEYS, tmp_path / "a")
    save_keys(READER, tmp_path / "b")
    assert load_agent_keys(tmp_path / "a", NOW).id == KEYS.id
    for name, now_s, why in (("b", NOW, "role agent"), ("a", 2 * NOW, "elf keys renew"), ("a", 1, "clocks")):
        with pytest.raises(ConfigError, match=why):
            load_agent_keys(tmp_path / name, now_s)


def test_an_authority_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_private(tmp_path / "a", encode_authority(AUTHORITY))
    assert load_authority(tmp_path / "a").public == AUTHORITY.public
    (tmp_path / "a").chmod(0o640)
    load_authority(tmp_path / "a")
    (tmp_path / "a").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_authority(tmp_path / "a")
    save_keys(KEYS, tmp_path / "b")
    with pytest.raises(ConfigError, match="not an authority's secret"):
        load_authority(tmp_path / "b")


def test_revocations_are_read_as_they_were_written(tmp_path: Path) -> None:
    items = [revocation(AUTHORITY, keys.certificate, NOW) for keys in (KEYS, READER)]
    (tmp_path / "a").write_text(encode_revocations(items))
    assert load_revocations(tmp_path / "a") == items
    many = items[:1] * 10_000
    assert len(encode_revocations(many)) < REVOCATIONS_BYTES_MAX
    (tmp_path / "a").write_text(encode_revocations([]))
    assert load_revocations(tmp_path / "a") == []


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_any_bytes_are_refused_in_one_way(data: bytes) -> None:
    for decode in (decode_keys, decode_revocations):
        with pytest.raises(ConfigError):
            decode(data, "file")


@given(st.integers(0, len(TEXT) - 1), st.integers(0, 255))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_a_changed_byte_is_refused_or_means_nothing(at: int, to: int) -> None:
    data = bytearray(TEXT.encode())
    data[at] = to
    try:
        keys = decode_keys(bytes(data), "file")
    except ConfigError:
        return
    assert (keys.proof, keys.curve_secret, keys.signing_seed) == (
        KEYS.proof,
        KEYS.curve_secret,
        KEYS.signing_seed,
    )


REVOKED = encode_revocations([revocation(AUTHORITY, KEYS.certificate, NOW)])
DEPTH = 'format = "elf revocations 1"\nx = ' + "[" * 5_000 + "]" * 5_000


@given(st.integers(0, len(REVOKED) - 1), st.integers(0, 255))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_a_changed_list_of_revocations_is_refused_or_read(at: int, to: int) -> None:
    data = bytearray(REVOKED.encode())
    data[at] = to
    try:
        items = decode_revocations(bytes(data), "file")
    except ConfigError:
        return
    assert all(item.kind == "revoked" for item in items)


def test_a_file_as_deep_as_it_is_long_is_refused() -> None:
    with pytest.raises(ConfigError):
        decode_revocations(DEPTH.encode(), "file")
