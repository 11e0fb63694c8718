"""`elf keys` as an operator types it, with files and without ever showing a secret."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from elf.agent.config.authority_folder import AuthorityFolder
from elf.agent.host.identity import SECRET, claim, own_key
from elf.errors import StateError
from elf.jobmaster.directory.job_spec import jobs_of
from elf.srt.messages.ids import node_id
from elf.srt.security.certificates import Trust
from elf.srt.security.files import load_keys, load_revocations
from elf.srt.security.items import signer_of
from elf.typer_cli import main
from tests.rigs.signed_mesh import SignedMesh

NOW = 1_800_000_000


class Shell:
    """Types commands, and watches that no secret of any key in the folder is shown."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, *argv: str) -> tuple[int, str, str]:
        code = main(["keys", *argv])
        out, err = self._capsys.readouterr()
        for secret in self.secrets():
            assert secret not in out + err
        return code, out, err

    def secrets(self) -> Iterator[str]:
        for path in self.folder.rglob("*"):
            if path.is_file() and "SECRET" in path.read_text(errors="replace"):
                for line in path.read_text().split("# SECRET")[1].splitlines():
                    if '= "' in line:
                        yield line.split('"')[1]


@pytest.fixture
def elf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ELF_AUTHORITY", raising=False)
    monkeypatch.setenv("ELF_CONFIG", str(tmp_path / "elf.toml"))
    monkeypatch.setattr("elf.agent.control.client.RUN_DIR", tmp_path)
    return Shell(tmp_path, capsys)


def facts(out: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in out.splitlines() if ": " in line)


def test_from_nothing_to_keys(elf: Shell) -> None:
    code, out, _ = elf("init")
    assert code == 0
    authority = facts(out)["authority"]
    assert stat.S_IMODE(Path("elf-authority").stat().st_mode) == 0o700
    assert stat.S_IMODE(Path("elf-authority/authority.secret").stat().st_mode) == 0o600
    assert Path("elf-authority/authority.public").read_text() == authority + "\n"
    code, out, _ = elf("issue", "web1", "--role", "agent", "--address", "10.0.0.1:7400")
    told = facts(out)
    assert (code, told["name"], told["role"], told["authority"]) == (0, "web1", "agent", authority)
    keys = load_keys("web1.keys")
    assert stat.S_IMODE(Path("web1.keys").stat().st_mode) == 0o600
    assert told["id"].split()[0] == keys.id.hex()
    assert told["seed"].startswith("10.0.0.1:7400/")
    assert len(list(elf.secrets())) == 3, "of the authority, and two of web1"
    code, shown, _ = elf("show", "web1.keys")
    assert code == 0
    assert shown.splitlines() == out.splitlines()[:-1]
    elf("issue", "ann", "--role", "operator", "-o", "mine", "--days", "7")
    assert load_keys("mine").certificate.role == "operator"
    code, out, _ = elf("show", "elf-authority")
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["web1", "agent", "valid,"],
        ["ann", "operator", "valid,"],
    ]


def test_nothing_is_overwritten_without_being_told(elf: Shell) -> None:
    elf("init")
    secret = Path("elf-authority/authority.secret").read_text()
    code, _, err = elf("init")
    assert (code, err) == (
        2,
        "elf: elf-authority: there is a mesh authority already; name another folder with --dir\n",
    )
    assert Path("elf-authority/authority.secret").read_text() == secret
    Path("web1.keys").write_text("mine")
    code, _, err = elf("issue", "web1", "--role", "agent")
    assert code == 2
    assert "--force" in err
    assert Path("web1.keys").read_text() == "mine"
    assert elf("issue", "web1", "--role", "agent", "--force")[0] == 0
    assert load_keys("web1.keys").certificate.name == "web1"


def test_a_name_has_one_set_of_keys(elf: Shell) -> None:
    elf("init")
    elf("issue", "web1", "--role", "agent")
    code, _, err = elf("issue", "web1", "--role", "agent", "-o", "again.keys")
    assert code == 2
    assert "elf keys renew" in err
    assert not Path("again.keys").exists()
    elf("revoke", "web1")
    assert elf("issue", "web1", "--role", "agent", "-o", "again.keys")[0] == 0


def test_renewed_keys_are_the_same(elf: Shell) -> None:
    elf("init")
    elf("issue", "web1", "--role", "agent", "--days", "1", "--address", "h:1")
    before = load_keys("web1.keys")
    assert elf("renew", "web1.keys", "--days", "100")[0] == 0
    after = load_keys("web1.keys")
    assert (after.id, after.address, after.curve_secret) == (before.id, before.address, before.curve_secret)
    assert after.certificate.not_after_s > before.certificate.not_after_s
    elf("init", "--dir", "other")
    code, _, err = elf("renew", "web1.keys", "--dir", "other")
    assert code == 2
    assert "another authority" in err


def test_an_operators_jobs_are_shown_and_kept_when_the_keys_are_renewed(elf: Shell) -> None:
    elf("init")
    code, out, _ = elf("issue", "bob", "--role", "operator", "--jobs", "web-*", "--jobs", "db")
    assert (code, facts(out)["jobs"]) == (0, "web-*, db")
    assert facts(elf("issue", "ann", "--role", "operator")[1])["jobs"] == "all"
    assert "jobs" not in facts(elf("issue", "web1", "--role", "agent")[1])
    elf("renew", "bob.keys")
    assert load_keys("bob.keys").certificate.jobs == ("web-*", "db")
    assert facts(elf("show", "bob.keys")[1])["jobs"] == "web-*, db"
    listed = [line.partition("  jobs: ")[2] for line in elf("show", "elf-authority")[1].splitlines()[1:]]
    assert listed == ["web-*, db", "all", "", "web-*, db"]


def test_an_agent_that_ran_without_keys_keeps_its_id(elf: Shell, tmp_path: Path) -> None:
    elf("init")
    node = node_id(own_key(tmp_path))
    assert stat.S_IMODE((tmp_path / SECRET).stat().st_mode) == 0o600
    code, out, _ = elf("issue", "web1", "--role", "agent", "--id", SECRET)
    assert (code, facts(out)["id"].split()[0]) == (0, node.hex())
    assert (load_keys("web1.keys").id, node_id(own_key(tmp_path))) == (node, node)
    claim(tmp_path, node)
    with pytest.raises(StateError, match=r"which ran without keys, but .* elf keys issue --id .*id\.secret"):
        claim(tmp_path, node_id(b"another key"))
    (tmp_path / "node").write_text(node_id(b"its first key").hex())
    with pytest.raises(StateError, match="start the agent with its own keys"):
        claim(tmp_path, node)
    assert elf("issue", "bob", "--role", "operator", "--id", SECRET)[2] == (
        "elf: --id: only agents have an id in a mesh; leave it out\n"
    )
    Path("short").write_bytes(b"x")
    for wrong in ("short", "id"):
        assert elf("issue", "web2", "--role", "agent", "--id", wrong)[::2] == (
            2,
            f"elf: --id: {wrong}: expected the file id.secret of an agent's state_dir, of 32 bytes\n",
        )


@pytest.mark.parametrize("by", ["name", "serial"])
def test_revoking_takes_back_all_certificates_of_the_keys(elf: Shell, by: str) -> None:
    elf("init")
    elf("issue", "web1", "--role", "agent")
    elf("issue", "web2", "--role", "agent")
    before = load_keys("web1.keys")
    elf("renew", "web1.keys")
    after = load_keys("web1.keys")
    code, out, _ = elf("revoke", "web1" if by == "name" else before.certificate.serial.hex())
    assert code == 0
    assert "the mesh does not know of it yet" in out
    trust = Trust(before.authority)
    for item in load_revocations("elf-authority/revocations.toml"):
        signer_of(trust, item, NOW, jobs_of)
    assert trust.revoked == {before.certificate.serial, after.certificate.serial}
    code, _, err = elf("renew", "web1.keys")
    assert code == 2
    assert "were revoked" in err
    elf("revoke", "web2")
    assert len(load_revocations("elf-authority/revocations.toml")) == 3
    assert elf("show", "elf-authority")[1].count("revoked") == 3
    assert elf("show", "elf-authority/revocations.toml")[1].count("revoked: ") == 3


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("show", "none"), "none: cannot be read"),
        (("show", "elf-authority/authority.secret"), "not a bundle of keys"),
        (("show", "text"), "not a bundle of keys"),
        (("issue", "a b", "--role", "agent"), "cannot be a name"),
        (("issue", "../x", "--role", "agent", "-o", "x"), "cannot be a name"),
        (("issue", "x", "--role", "king"), "--role"),
        (("issue", "x", "--role", "agent", "--address", "h"), "give HOST:PORT"),
        (("issue", "x", "--role", "agent", "--address", "h:0"), "give HOST:PORT"),
        (("issue", "x", "--role", "agent", "--address", 'h:1"'), "give HOST:PORT"),
        (("issue", "x", "--role", "operator", "--address", "h:1"), "no node connects to an operator"),
        (("issue", "x", "--role", "agent", "--dir", "none"), "elf keys init --dir none"),
        (("issue", "x", "--role", "agent", "--jobs", "web-*"), "--jobs: only operators change jobs"),
        (("issue", "x", "--role", "operator", "--jobs", "a b"), "--jobs: expected at most 16 names"),
        (("issue", "x", "--role", "operator", "--jobs", "x" * 65), "--jobs: expected at most 16 names"),
        (("issue", "x", "--role", "operator", *["--jobs", "x"] * 17), "--jobs: expected at most 16 names"),
        (("revoke", "nobody"), "elf keys show elf-authority lists all"),
        (("renew", "text"), "not a bundle of keys"),
        (("init", "--dir", "text"), "text"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(elf: Shell, argv: tuple[str, ...], says: str) -> None:
    elf("init")
    Path("text").write_text("some text\n")
    code, out, err = elf(*argv)
    assert code in (1, 2)
    assert says in err
    assert err.count("\n") == 1
    assert not out
    assert not list(Path().glob("*.keys"))


def test_a_damaged_list_is_named(elf: Shell) -> None:
    elf("init")
    elf("issue", "web1", "--role", "agent")
    with Path("elf-authority/issued.jsonl").open("a") as file:
        file.write("{}\n")
    code, _, err = elf("issue", "web2", "--role", "agent")
    assert code != 0
    assert "elf-authority/issued.jsonl" in err


@pytest.mark.process
def test_revoked_keys_are_taken_to_the_mesh_by_the_agent_on_the_host(elf: Shell) -> None:
    with SignedMesh(elf.folder, AuthorityFolder.make(Path("elf-authority"))) as mesh:
        code, out, err = elf("revoke", "ann", "--agent", str(mesh.socket(0)))
        assert (code, err) == (0, "")
        assert "accepted 1 revocation," in out
        ann = mesh.operator.certificate.serial
        mesh.wait_for(lambda: all(notary.trust.is_revoked(ann) for notary in mesh.notaries))
        elf("init", "--dir", "other")
        elf("issue", "ann", "--role", "agent", "--dir", "other", "-o", "other.keys")
        code, _, err = elf("revoke", "ann", "--dir", "other", "--agent", str(mesh.socket(0)))
        assert code == 2
        assert "must be signed by its authority" in err
        code, out, _ = elf("revoke", "elf-authority/revocations.toml", "--agent", str(mesh.socket(1)))
        assert code == 0
