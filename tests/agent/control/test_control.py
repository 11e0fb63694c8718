"""The control socket: permissions, bounds, time limits, and the errors of a command without an answer."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import get_args

import pytest

from elf.agent.control import protocol as w
from elf.agent.control import server as c
from elf.agent.control.client import Control, socket_path
from elf.agent.control.server import BUFFER_BYTES, READ_ONLY, READERS_MAX, ControlServer
from elf.agent.control.service import wait_for_news
from elf.errors import ElfError, PeerError, UsageError
from elf.srt.messages.messages import Item


async def serve(request: w.AnyRequest) -> AsyncGenerator[w.Answer, None]:
    """Some answers; `JobWatch` never ends."""
    if isinstance(request, w.JobGet) and request.name == "wrong":
        raise UsageError("no such job")
    if isinstance(request, w.JobGet) and request.name == "bug":
        raise ZeroDivisionError("a bug")
    if isinstance(request, w.JobWatch):
        while True:
            yield w.Published(b"x" * 100_000)
    yield w.Jobs(())
    yield w.Done("done")


class Running:
    """A server in a loop of its own thread."""

    def __init__(self, path: Path, group: int | None = None) -> None:
        self.path, self.server = path, ControlServer(path, serve, group)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.do(self.server.start)

    def do(self, what: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await what()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def close(self) -> None:
        self.do(self.server.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@contextmanager
def running(path: Path, group: int | None = None) -> Iterator[Running]:
    server = Running(path, group)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Path]:
    with running(tmp_path / "control.sock") as server:
        yield server.path


def raw(path: Path, data: bytes, *, end: bool = False) -> bytes:
    """The answer to these bytes, until the agent disconnects."""
    with socket.socket(socket.AF_UNIX) as plain:
        plain.settimeout(10)
        plain.connect(str(path))
        plain.sendall(data)
        if end:
            plain.shutdown(socket.SHUT_WR)
        found = b""
        with suppress(ConnectionResetError):
            while part := plain.recv(1 << 16):
                found += part
        return found


def told(data: bytes) -> w.AnyAnswer:
    length = w.LENGTH.unpack(data[:4])[0]
    assert len(data) == 4 + length
    return w.answer_of(data[4:])


class TestServer:
    def test_only_its_owner_may_talk(self, at: Path) -> None:
        assert stat.S_IMODE(at.stat().st_mode) == 0o600

    def test_answers_in_order(self, at: Path) -> None:
        with Control(at) as control:
            assert list(control.ask(w.JobList())) == [w.Jobs(()), w.Done("done")]

    def test_what_is_wrong_is_raised_here(self, at: Path) -> None:
        with Control(at) as control, pytest.raises(UsageError, match="no such job"):
            control.one(w.JobGet("wrong"))

    @pytest.mark.parametrize(
        "body",
        [
            b"\xc1",
            b"",
            b"\x81\xa4type\xa3Foo",
            w.frame(w.Done())[4:],
            b"\x81\xa4type\xa6JobGet",
            b"\xff" * 99,
        ],
    )
    def test_what_is_no_request_is_refused(self, at: Path, body: bytes) -> None:
        answer = told(raw(at, w.LENGTH.pack(len(body)) + body))
        assert isinstance(answer, w.Failed)
        assert "another version" in answer.text

    def test_a_request_that_is_too_large_is_not_read(self, at: Path) -> None:
        answer = told(raw(at, w.LENGTH.pack(w.REQUEST_BYTES_MAX + 1) + b"x" * 10))
        assert isinstance(answer, w.Failed)

    @pytest.mark.parametrize("cut", [0, 2, 4, 9])
    def test_half_a_request_is_none(self, at: Path, cut: int) -> None:
        assert raw(at, w.frame(w.JobGet("a job"))[:cut], end=True) == b""

    def test_silent_command_is_not_waited_for(self, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(c, "REQUEST_S", 0.05)
        assert raw(at, b"") == b""

    def test_so_many_at_a_time(self, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(c, "CONNECTIONS_MAX", 2)
        with Control(at) as one, Control(at) as two:
            for control in (one, two):
                assert isinstance(control.one(w.JobWatch("hits")), w.Published)
            with Control(at) as three, pytest.raises(ElfError, match="end one"):
                three.one(w.JobList())
        for _ in range(100):  # until the server has seen that two are gone
            with suppress(ElfError), Control(at) as four:
                assert four.one(w.JobList()) == w.Jobs(())
                return
        raise AssertionError("no room again")

    def test_who_does_not_read_is_not_written_for(self, at: Path) -> None:
        """The stream stops by itself, so closing it leaves nothing behind."""
        with Control(at) as control:
            answers = control.ask(w.JobWatch("hits"))
            for _ in range(50):
                assert isinstance(next(answers), w.Published)

    def test_a_socket_that_was_left_behind_is_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "control.sock"
        with socket.socket(socket.AF_UNIX) as former:
            former.bind(str(path))
        with running(path), Control(path) as control:
            assert control.one(w.JobList()) == w.Jobs(())
        assert not path.exists()

    def test_a_long_path(self, tmp_path: Path) -> None:
        folder = tmp_path / ("x" * 120)
        folder.mkdir()
        with running(folder / "control.sock"), Control(folder / "control.sock") as control:
            assert control.one(w.JobList()) == w.Jobs(())


class TestClient:
    def test_no_agent_there(self, tmp_path: Path) -> None:
        with pytest.raises(ElfError, match="elf agent run"):
            Control(tmp_path / "none")

    def test_not_the_owner(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: socket.socket, address: str) -> None:
            raise PermissionError(13, "Permission denied")

        class Refusing(socket.socket):
            connect = refuse  # type: ignore[assignment]

        monkeypatch.setattr(socket, "socket", Refusing)
        with pytest.raises(ElfError, match="sudo -u"):
            Control(tmp_path / "control.sock")

    @pytest.mark.parametrize(
        "data", [b"", b"\x01", w.LENGTH.pack(10) + b"abc", w.LENGTH.pack(1 << 31), w.LENGTH.pack(1) + b"\xc1"]
    )
    def test_an_agent_that_talks_nonsense(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "agent"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()

            def answer() -> None:
                talk, _ = listening.accept()
                with talk:
                    talk.recv(1 << 16)
                    talk.sendall(data)

            thread = threading.Thread(target=answer)
            thread.start()
            with Control(path) as control, pytest.raises((ElfError, PeerError)):
                control.one(w.JobList())
            thread.join()


def test_an_agent_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """As one that was stopped: its kernel takes connections all the same."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with Control(path) as control, pytest.raises(ElfError, match="does not answer; is it stopped"):
            control.one(w.JobList(), within_s=0.05)


def test_an_error_of_ours_is_reported_and_logged(at: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Control(at) as control, pytest.raises(ElfError, match="its log says where"):
        control.one(w.JobGet("bug"))
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err


class TestReaders:
    """Who is neither root nor the agent's user: here everybody, since who connects is said to be user 7."""

    @pytest.fixture
    def at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        monkeypatch.setattr("elf.agent.control.server._may_change", lambda writer: False)
        with running(tmp_path / "control.sock") as server:
            yield server.path

    @pytest.mark.parametrize(
        "request_",
        [
            w.JobGet("visits"),
            w.JobList(),
            w.JobWatch("visits"),
            w.MeshStatus(),
            w.MeshTree("visits"),
            w.MeshAudit(),
        ],
    )
    def test_they_read(self, at: Path, request_: w.Request) -> None:
        with Control(at) as control:
            assert isinstance(control.one(request_), w.Jobs | w.Published)

    @pytest.mark.parametrize(
        "request_",
        [
            w.JobPut(Item("job", b"x", (1,), b"")),
            w.JobChange(Item("job", b"x", (1,), b"")),
            w.Revoke(()),
            w.AlertTestRequest("many"),
            w.MeshLeave(),
        ],
    )
    def test_they_change_nothing(self, at: Path, request_: w.Request) -> None:
        with Control(at) as control, pytest.raises(ElfError) as caught:
            control.one(request_)
        assert str(caught.value) == READ_ONLY
        assert "only root and the user that runs this agent may change anything" in READ_ONLY

    def test_every_request_is_one_or_the_other(self) -> None:
        changing = {w.JobPut, w.JobChange, w.JobEstimate, w.Revoke, w.MeshLeave, w.AlertTestRequest}
        assert set(get_args(w.AnyRequest)) - set(get_args(w.Reading)) == changing

    def test_they_keep_nobody_out(self, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with ExitStack() as stack:
            for _ in range(READERS_MAX):
                control = stack.enter_context(Control(at))
                asked = control.ask(w.JobWatch("endless"))
                next(asked)
            with (
                Control(at) as control,
                pytest.raises(ElfError, match=f"^{READERS_MAX} commands are connected"),
            ):
                control.one(w.JobList())
            monkeypatch.setattr("elf.agent.control.server._may_change", lambda writer: True)
            with Control(at) as control:
                assert control.one(w.JobList()) == w.Jobs(())

    def test_their_requests_are_small(self, at: Path) -> None:
        large = w.JobPut(Item("job", b"x", (1,), bytes(BUFFER_BYTES)))
        with Control(at) as control, pytest.raises(ElfError, match="does not know this request"):
            control.one(large)


def test_a_socket_is_opened_to_a_group_and_to_no_other(tmp_path: Path) -> None:
    group = os.getgroups()[-1] if os.geteuid() else 4
    with running(tmp_path / "plain.sock") as server:
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    with running(tmp_path / "control.sock", group) as server:
        held = server.path.stat()
        assert (stat.S_IMODE(held.st_mode), held.st_gid) == (0o660, group)
        with Control(server.path) as control:
            control.one(w.MeshLeave())  # by the agent's own user


def test_a_group_that_the_agents_user_is_not_in_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path, user: int, group: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.chown", denied)
    server = ControlServer(tmp_path / "control.sock", serve, 4)
    with pytest.raises(PermissionError, match="no member of its control_group; add it"):
        asyncio.run(server.start())


class TestPath:
    def test_the_one_that_is_named_comes_first(self, tmp_path: Path) -> None:
        assert socket_path(tmp_path / "s", tmp_path / "elf.toml", {}) == tmp_path / "s"
        assert socket_path(tmp_path, tmp_path / "elf.toml", {}) == tmp_path / "control.sock"

    def test_a_state_dir_that_others_may_not_enter_is_the_one_unless_there_is_one_for_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that the command names the permitted user."""
        monkeypatch.setattr("elf.agent.control.client.RUN_DIR", tmp_path / "run")

        def denied(path: Path) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        config = tmp_path / "elf.toml"
        config.write_text('[agent]\nstate_dir = "state"\n')
        monkeypatch.setattr(Path, "lstat", denied)
        assert socket_path(None, config, {}) == tmp_path / "state" / "control.sock"
        assert socket_path(tmp_path / "nowhere", config, {}) == tmp_path / "nowhere"
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "control.sock").touch()
        assert socket_path(None, config, {}) == tmp_path / "run" / "control.sock"

    def test_then_the_configured_state_dir_then_run(self, tmp_path: Path) -> None:
        config = tmp_path / "elf.toml"
        assert socket_path(None, config, {}) == Path("/run/elf/control.sock")
        config.write_text('[agent]\nstate_dir = "state"\n')
        assert socket_path(None, config, {}) == Path("/run/elf/control.sock")
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "control.sock").touch()
        assert socket_path(None, config, {}) == tmp_path / "state" / "control.sock"
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "control.sock").touch()
        found = socket_path(None, config, {"ELF_AGENT_STATE_DIR": "other"})
        assert found == tmp_path / "other" / "control.sock"

    @pytest.mark.parametrize("text", ["agent = 1", "[agent", "[agent]\nstate_dir = 7", "[agent]\n"])
    def test_a_configuration_without_it(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "elf.toml").write_text(text)
        assert socket_path(None, tmp_path / "elf.toml", {}).name == "control.sock"


@pytest.mark.parametrize("turns", range(5))
def test_a_command_ends_although_news_for_it_come_at_that_moment(turns: int) -> None:
    async def run() -> None:
        news = asyncio.Event()

        async def watch() -> None:
            while True:
                await wait_for_news(news, 10)
                news.clear()

        task = asyncio.create_task(watch())
        await asyncio.sleep(0)
        news.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=1)
        assert task.cancelled()

    asyncio.run(run())
