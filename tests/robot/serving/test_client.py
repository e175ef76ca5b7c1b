"""A robot's side: what it takes, what it drops, what it says when the server is gone."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from websockets.sync.server import serve

from robot.serving.client import PolicyReply, RequestLedger, Stats
from vlrl.serving import protocol
from vlrl.serving.protocol import PROTOCOL, Chunk, Failure, Observe, Ping, Pong, Wants, Welcome, arrays_pack
from vlrl.serving.server import Door
from vlrl.types import UserError

TOKEN = "a-token-of-many-characters"


def until(true, seconds=20.0):
    """Waits for something that another thread will bring about."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


def the_answer(client):
    (answer,) = client.answers(20)
    return answer


@pytest.mark.parametrize("quality", [None, 90])
def test_an_observation_is_answered(tools, quality):
    """The whole path with both kinds of pictures."""
    with tools.server() as url, tools.client(url, quality=quality) as client:
        assert (client.spec, client.model, client.lost) == (tools.SPEC, "echo", "")
        seq = client.ask(tools.asked(5.0))
        answer = the_answer(client)
        assert answer.seq == seq and answer.actions.dtype == np.float32 and (answer.actions == [5, 2]).all()
        assert (answer.hz, answer.version, answer.expires_s) == (30, "v1", 5 / 30)
        assert answer.sent_at <= answer.received_at and client.answers() == []
        (timing,) = client.stats.timings
        assert timing.round_trip_s >= timing.queue_s + timing.infer_s


def test_a_chunk_can_be_asked_for_with_what_is_left_of_the_last(tools):
    """Real-time chunking joins a chunk to the one that is being carried out."""
    with tools.server() as url, tools.client(url) as client:
        client.ask(tools.asked(prefix=np.ones((3, 2), np.float32), delay=2))
        assert the_answer(client).seq == 0
        client.ask(tools.asked(prefix=np.ones((3, 2), np.float32), delay=4))
        until(lambda: "a delay of 4" in client.failure)
        client.ask(tools.asked())
        assert the_answer(client).seq == 2 and client.failure == ""


def test_an_observation_that_cannot_be_sent_is_told_and_the_next_goes(tools):
    """A thread that ends in silence leaves a robot without a policy and without a reason."""
    with tools.server() as url, tools.client(url) as client:
        client.ask(replace(tools.asked(), task=None))
        until(lambda: client.failure)
        client.ask(replace(tools.asked(), state=np.array(["five"])))
        until(lambda: "observation 1 cannot be sent" in client.failure)
        client.ask(tools.asked())
        assert the_answer(client).seq == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"wants": Wants()}, "refused: state: the robot has 0 numbers, the policy 2"),
        ({"token": "wrong"}, "refused: 401: the token is missing or wrong"),
        ({"token": None}, "refused: 401: the token is missing or wrong"),
    ],
)
def test_a_server_that_does_not_want_it_says_why_at_once(tools, options, told):
    """Users must not wait for a time-out to learn of a mistake."""
    with tools.server(door=Door(port=0, token=TOKEN)) as url, pytest.raises(UserError) as caught:
        tools.client(url, **{"token": TOKEN, "patience": 20} | options)
    assert told in str(caught.value) and url in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1", "ws://"])
def test_what_is_no_url_is_one_line(tools, url):
    """The library's own error speaks of schemes."""
    with pytest.raises(UserError, match="write ws://HOST:PORT"):
        tools.client(url)


def test_a_server_that_is_not_there_is_one_line(tools):
    """The first thing that goes wrong on a bench."""
    with tools.server() as url:
        pass
    with pytest.raises(UserError, match=f"policy server {url}: .*refused"):
        tools.client(url, patience=0.3)


def test_a_connection_that_is_lost_is_made_anew(tools):
    """The server is started again with other weights while the robot stands."""
    first, second = tools.Echo(), tools.Echo()
    second.version = "v2"
    with tools.server(first) as url:
        client = tools.client(url)
        client.ask(tools.asked())
        the_answer(client)
    with client:
        until(lambda: client.lost)
        assert client.lost == "closed by the server: the server stops" or "refused" in client.lost
        with tools.server(second, door=Door(port=int(url.rpartition(":")[2]))):
            until(lambda: not client.lost)
            client.ask(tools.asked(7.0))
            answer = the_answer(client)
            assert answer.version == "v2" and answer.actions[0, 0] == 7 and client.stats.connections == 2


def test_an_unsent_observation_is_replaced(tools):
    """A slow line would fill with pictures of where the robot was."""
    policy = tools.Echo()
    with tools.server(policy) as url, tools.client(url) as client:
        policy.gate.clear()
        last = [client.ask(tools.asked(float(20 + number))) for number in range(50)][-1]
        until(lambda: client.stats.sent + client.stats.replaced == 50)
        policy.gate.set()
        seen = []
        until(lambda: last in [seen.append(answer.seq) or answer.seq for answer in client.answers(0.05)])
        assert seen == sorted(seen) and client.stats.answered == len(seen)


class Scripted:
    """A server that says what a test tells it, whatever it is asked."""

    def __init__(self, spec, script):
        self.heard, self.script, self.spec = [], script, spec

    def __call__(self, socket):
        socket.recv()
        socket.send(protocol.encode(Welcome(PROTOCOL, "session", "model", "v", self.spec, 2**20)))
        for data in socket:
            message = protocol.from_client(data)
            self.heard.append(message)
            if isinstance(message, Ping):
                self.pong(socket, message)
            elif isinstance(message, Observe):
                for said in self.script(message):
                    socket.send(protocol.encode(said))

    def pong(self, socket, message):
        socket.send(protocol.encode(Pong(message.t)))

    def chunk(self, observe, **other):
        told = {
            "session": "session",
            "seq": observe.seq,
            "episode": observe.episode,
            "actions": arrays_pack(np.ones((5, 2))),
        }
        times = {"t": observe.t, "hz": 30.0, "expires_s": 20.0, "queue_s": 0.0, "infer_s": 0.0, "total_s": 0.0}
        return Chunk(**(told | times | {"version": "v"} | other))


@pytest.fixture
def scripted(tools):
    """`scripted(script) -> url` of a server of which the test writes the answers."""
    servers = []

    def start(script, made=Scripted):
        server = serve(made(tools.SPEC, script), "127.0.0.1", 0, compression=None, close_timeout=0.1)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        servers.append((server, thread))
        return f"ws://127.0.0.1:{server.socket.getsockname()[1]}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()


def test_late_and_foreign_chunks_are_dropped_and_counted(tools, scripted):
    """A chunk that is carried out for another observation than it was made for is a jump."""
    held = []

    def script(observe):
        said = {0: [], 1: [make(observe), *held], 2: [make(observe, seq=77)]}
        held.append(make(observe))
        return said.get(observe.seq, [make(observe)])

    make = Scripted(tools.SPEC, script).chunk
    with tools.client(scripted(script)) as client:
        seen = []
        for number in range(4):
            client.ask(tools.asked())
            until(lambda wanted=number: client.stats.sent == wanted + 1)
            if number in (1, 3):
                seen.append(the_answer(client).seq)
        assert seen == [1, 3]
        assert client.stats.dropped == {"older": 1, "not asked on this connection": 1}


def reply(seq, expires_s=100.0):
    return PolicyReply(seq, np.ones((1, 1), np.float32), 30.0, expires_s, 0.0, 0.0, "v")


def test_the_ledger_knows_what_is_too_late():
    """Each case by itself, with clocks that the test sets."""
    stats = Stats()
    ledger = RequestLedger(stats)
    for seq in range(6):
        ledger.add_request(seq, float(seq), 0)
    assert ledger.judge(reply(1), 2.0).seq == 1
    assert ledger.judge(reply(0), 2.0) is None and stats.dropped == {"older": 1}
    assert ledger.judge(reply(2, expires_s=0.5), 2.6).seq == 2  # a slow policy's one action is still an answer
    assert ledger.judge(reply(77), 2.7) is None and stats.dropped["not asked on this connection"] == 1
    assert ledger.judge(reply(3), 2.8).seq == 3  # a foreign number has not made it old
    ledger.reset(1)
    assert ledger.judge(reply(4), 4.0) is None and stats.dropped["episode"] == 1
    ledger.add_request(6, 6.0, 1)
    ledger.disconnected()
    assert ledger.judge(reply(6), 7.0) is None and stats.dropped["not asked on this connection"] == 2
    ledger.add_request(7, 7.0, 1)
    answer = ledger.judge(reply(7), 9.0)
    assert (answer.sent_at, answer.received_at) == (7.0, 9.0) and stats.answered == 4


def test_a_new_episode_takes_no_answer_of_the_old(tools):
    """The arm was put back by hand; the old chunk would pull it to where it was."""
    policy = tools.Echo()
    with tools.server(policy) as url, tools.client(url) as client:
        policy.gate.clear()
        client.ask(tools.asked(1.0))
        assert policy.entered.acquire(timeout=20) and policy.entered.acquire(timeout=20)
        client.reset(1)
        client.ask(tools.asked(2.0, episode=1))
        policy.gate.set()
        assert the_answer(client).actions[0, 0] == 2 and client.stats.dropped == {"episode": 1}
        until(lambda: len(policy.forgotten) == 2)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda chunk: {"actions": arrays_pack(np.ones((5, 3)))},
        lambda chunk: {"actions": arrays_pack(np.full((5, 2), np.nan))},
        lambda chunk: {"actions": arrays_pack(np.ones((0, 2)))},
        lambda chunk: {"session": "another's"},
    ],
)
def test_a_server_that_sends_what_is_no_chunk_is_not_believed(tools, scripted, wrong):
    """The robot does not trust the server either."""
    make = Scripted(tools.SPEC, None).chunk
    answers = iter([lambda o: [make(o, **wrong(o))]])
    url = scripted(lambda observe: next(answers, lambda o: [make(o)])(observe))
    with tools.client(url) as client:
        client.ask(tools.asked())
        until(lambda: client.stats.connections == 2 and not client.lost)  # it left, and came back
        client.ask(tools.asked())
        assert the_answer(client).actions.shape == (5, 2)


def test_a_failure_is_told(tools, scripted):
    """Else a robot that stands still gives no reason."""
    with tools.client(scripted(lambda observe: [Failure("policy", "out of memory", True, observe.seq)])) as client:
        client.ask(tools.asked())
        until(lambda: client.failure == "policy: out of memory")
        assert client.stats.failures == 1 and client.lost == ""


class Mute(Scripted):
    def pong(self, socket, message):
        """Says nothing, as behind a cable that was pulled."""


def test_a_server_that_falls_silent_is_lost(tools, scripted):
    """A pulled cable closes no connection: TCP alone would wait for minutes."""
    with tools.client(scripted(lambda observe: [], Mute), silence=0.2) as client:
        until(lambda: client.lost == "not a word for 0.2 s" or client.stats.connections > 1)


def test_round_trips_without_inference_are_measured(tools):
    """To tell a slow network from a slow policy."""
    with tools.server() as url, tools.client(url, silence=1.0) as client:
        until(lambda: len(client.stats.pings) >= 2)
        assert all(0 < each < 20 for each in client.stats.pings)


def test_it_loads_without_torch():
    """A robot's computer may be too small for it, and starting would take seconds."""
    import subprocess
    import sys

    code = "import sys, robot.serving.client, vlrl.serving.server; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
