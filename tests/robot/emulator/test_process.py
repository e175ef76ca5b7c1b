"""The emulator as a process: it starts, is asked, says what is wrong, and never outlives whoever started it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import serial

from robot.emulator import control
from robot.emulator.control import Emulator
from robot.emulator.servo import PING, READ, Packet, encode, split
from vlrl import cli
from vlrl.types import UserError


def test_ports_and_socket_go_with_it():
    """Links that lead nowhere would be opened by the next run."""
    with Emulator() as emulator:
        assert Path(emulator.port).exists() and Path(emulator.leader_port).exists()
        assert os.stat(Path(emulator.socket).parent).st_mode & 0o077 == 0
        folder, pid = Path(emulator.socket).parent, emulator.pid
    assert not folder.exists() and not psutil.pid_exists(pid)


def test_it_ends_with_whoever_started_it(until):
    """A test run that was killed would leave emulators behind, each at work."""
    code = (
        "from robot.emulator.control import Emulator; e = Emulator(cameras={'top': (32, 32)}).__enter__(); "
        "import psutil; print(e.pid, *[c.pid for c in psutil.Process(e.pid).children(recursive=True)], flush=True); "
        "input()"
    )
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen([sys.executable, "-c", code], env=os.environ | path, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)  # fmt: skip
    pids = list(map(int, parent.stdout.readline().split()))
    assert len(pids) >= 2 and all(map(psutil.pid_exists, pids))
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    until(lambda: not any(map(psutil.pid_exists, pids)))


@pytest.fixture(scope="module")
def emulator():
    with Emulator() as made:
        yield made


def test_what_cannot_be_done_is_said_and_it_goes_on(emulator):
    """One wrong request would end the run."""
    for request, said in [
        ({"do": "dance"}, "unknown request 'dance'"),
        ({"do": "scene", "seed": -1}, "whole number"),
        ({"do": "scene", "seed": "x"}, "whole number"),
        ({"do": "scene"}, "seed"),
        ({"do": "fault", "kind": "late", "ms": "long"}, "ms 'long'"),
        ({"do": "leader", "path": [[1, [0, 0]]]}, "a path is of"),
        ({"do": "log", "since": {}}, "log"),
        ({"do": "clear", "kind": "x"}, "unknown fault 'x'"),
        ({"do": "calibration", "arm": "x"}, "arm 'x'"),
    ]:
        with pytest.raises(UserError, match=said) as error:
            emulator.ask(**request)
        assert "\n" not in str(error.value)
    assert emulator.truth()["success"] is False


@pytest.mark.parametrize("line", [b"{", b"[]", b"3", b'"x"', b"\xff\xfe", b"null", b'{"do": ["x"]}', b""])
def test_nonsense_on_the_socket_is_answered(emulator, line):
    """A typing error in a script of one's own would hang it."""
    with socket.socket(socket.AF_UNIX) as plug:
        plug.settimeout(20)
        plug.connect(emulator.socket)
        stream = plug.makefile("rwb")
        stream.write(line + b"\n" + b'{"do": "about"}\n')
        stream.flush()
        assert "error" in json.loads(stream.readline())
        assert "ok" in json.loads(stream.readline())
        stream.close()


def test_a_gone_emulator_is_said(until):
    """A traceback of sockets would hide what happened."""
    with Emulator() as emulator:
        pid = emulator.pid
        emulator.ask("quit")
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        with pytest.raises(UserError, match="gone"):
            emulator.truth()


def asked(port, data, size):
    port.write(data)
    heard = b""
    end = time.monotonic() + 10
    while len(heard) < size and time.monotonic() < end:
        heard += port.read(size)
    return split(heard)[0]


def test_noise_on_the_wire_is_passed_over(emulator):
    """The bus would be deaf after the first disturbance."""
    with serial.Serial(emulator.port, 1_000_000, timeout=0.05) as port:
        port.write(os.urandom(300) + b"\xff\xff\x01\xf0")
        time.sleep(0.2)
        port.reset_input_buffer()
        assert asked(port, encode(Packet(1, PING)), 6)[0].id == 1
        assert asked(port, encode(Packet(2, READ, bytes((3, 2)))), 8)[0].params == (777).to_bytes(2, "little")


def test_a_wrong_speed_is_not_understood(emulator):
    """Finding motors by their speed, as lerobot's set-up does, could not be rehearsed."""
    with serial.Serial(emulator.port, 115_200, timeout=0.2) as port:
        port.write(encode(Packet(1, PING)))
        assert port.read(6) == b""
    with serial.Serial(emulator.port, 1_000_000, timeout=0.05) as port:
        assert asked(port, encode(Packet(1, PING)), 6)


def run(monkeypatch, arguments, typed):
    read, write = os.pipe()
    os.write(write, typed.encode())
    os.close(write)
    with open(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        return control.main(cli.parser().parse_args(["emulate", "so101", *arguments]))


def test_a_person_types_faults_and_sees_what_they_do(monkeypatch, capsys, tmp_path):
    """Users develop with it by hand first."""
    typed = "fault late ms=80 count=1\n\nbogus\nfault x\nclear\nscene 7\nleader 1 shoulder_pan=30\ntruth\nquit\n"
    folder = tmp_path / "ports"
    assert run(monkeypatch, ["--link", str(folder), "--calibration", str(tmp_path), "--id", "me"], typed) == 0
    out = capsys.readouterr().out
    for said in (f"port={folder}/so101 id=me", "type=so101_leader", '"kind": "late"', "commands: fault",
                 "unknown kind 'x'", '["late"]', "Touch the disc.", '"qpos_deg"'):  # fmt: skip
        assert said in out
    assert json.loads((tmp_path / "me.json").read_text())["gripper"]["id"] == 6
    assert (tmp_path / "me_leader.json").is_file() and not list(folder.iterdir())


def test_in_the_background_it_runs_until_a_signal(tmp_path):
    """Started with `&` by a script its stdin is the null device: it was gone before anybody could connect."""
    command = [
        sys.executable,
        "-m",
        "vlrl.cli",
        "emulate",
        "so101",
        "--link",
        str(tmp_path),
        "--calibration",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        line = ""
        while not line.startswith("commands: "):
            line = process.stdout.readline()
        assert (tmp_path / "so101").is_symlink() and process.poll() is None
        process.terminate()
        assert process.wait(20) == 0
    assert not (tmp_path / "so101").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--camera", "front"], "NAME=WIDTHxHEIGHT"),
        (["--camera", "side=64x64"], "camera 'side'"),
        (["--job", "fold"], "job 'fold'"),
        (["--seed", "-1"], "--seed -1"),
        (["--fps", "0"], "--fps"),
    ],
)
def test_a_wrong_option_is_named(monkeypatch, arguments, said):
    """A typing error must lead on."""
    with pytest.raises(UserError, match=said):
        run(monkeypatch, arguments, "")


def test_a_folder_in_use_is_left_alone(monkeypatch, tmp_path):
    """A file of the user's would be deleted for a link."""
    (tmp_path / "so101").write_text("mine")
    with pytest.raises(UserError, match="is no link"):
        run(monkeypatch, ["--link", str(tmp_path)], "")
    assert (tmp_path / "so101").read_text() == "mine"
