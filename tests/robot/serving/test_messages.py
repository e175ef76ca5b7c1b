"""Messages: what is sent is read, and nothing that anybody sends breaks the reader or fills its memory."""

import gc
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlrl.serving.protocol import (
    PROTOCOL,
    REASON,
    Hello,
    Observe,
    Ping,
    Refused,
    Reset,
    Wants,
    arrays_pack,
    encode,
    from_client,
    from_server,
    hello_of,
    press,
)
from vlrl.serving.sessions import Limits, Session

MANY = 100_000
HOSTILE = [
    b"", b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\x81\xa4type\xdb\xff\xff\xff\xff", b"\x91" * 100_000, b"\x81\xa1a" * 50_000, b"\xc9\xff\xff\xff\xff\x01",
    b"\x81\xa4type\xa7observe", b"\x80", b"\x82\xa4type\xa4ping\xa1t\xcb\x7f\xf8" + bytes(6), b"\xd6\xff" + bytes(4),
    b"\x82\xa4type\xa4ping\xa4type\xa4ping", b"\x81\xa4type\xc0", b"\x81\x01\x02", b"\x81\xa4type\xa3\xff\xfe\xfd",
]  # fmt: skip


def resident():
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def session(tools):
    return Session(tools.SPEC, Limits(), ("front", "wrist"))


def observation(made, tools, seq=0, **other):
    images = {"front": arrays_pack(tools.pictures()["front"], "|u1"), "wrist": press(tools.pictures()["wrist"], 80)}
    told = {"session": made.id, "seq": seq, "t": 1.5, "episode": 0, "task": "go", "images": images}
    return Observe(
        **(
            told
            | {"state": arrays_pack(np.array([1.0, 2.0])), "prefix": arrays_pack(np.ones((3, 2))), "delay": 1}
            | other
        )
    )


def take(session, data):
    """Everything that is done with a message before a policy sees it. Returns what became of it."""
    try:
        message = from_client(data)
        if isinstance(message, Observe):
            session.request(message).decode()
        elif isinstance(message, Reset):
            session.reset(message)
    except Refused as refused:
        return refused.code
    return "taken"


def test_an_observation_comes_through(session, tools):
    """What the policy is shown must be what the robot saw."""
    request = session.request(from_client(encode(observation(session, tools)))).decode()
    assert (
        request.state.tolist() == [1, 2]
        and request.prefix.shape == (3, 2)
        and request.delay == 1
        and request.task == "go"
    )
    assert (request.images["front"] == 7).all() and request.images["wrist"].shape == (6, 4, 3)


def test_hostile_messages_neither_crash_nor_fill_the_memory(session, tools):
    """Whoever reaches the port could stop every robot on it."""
    rng = np.random.default_rng(0)
    valid = [encode(each) for each in (Ping(1.0), Reset(session.id, 0), Hello(PROTOCOL, "x", Wants()))]
    valid += [encode(observation(session, tools, seq)) for seq in (0, 2**52)]
    counts = {}
    before = resident()
    for number in range(MANY):
        data = HOSTILE[number % len(HOSTILE)] if number % 50 == 0 else mutated(rng, valid[rng.integers(len(valid))])
        if number % 3:
            session.seq, session.episode = -1, 0  # else nearly all would be old
        code = take(session, data)
        counts[code] = counts.get(code, 0) + 1
    assert resident() - before < 64 * 2**20
    assert sum(counts.values()) == MANY and counts["malformed"] > MANY / 10
    assert {"taken", "session", "shape", "seq"} <= set(counts)  # the mutants came past the first check


def mutated(rng, data):
    """The message with some bytes changed, cut, doubled or put in."""
    kind, at = rng.integers(5), int(rng.integers(len(data)))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + rng.bytes(4) + data[at:]
    if kind == 2:
        return data + data[:at]
    changed = bytearray(data)
    for place in rng.integers(len(data), size=kind - 2):
        changed[place] = rng.integers(256)
    return bytes(changed)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_in_one_line(data):
    """A traceback tells a stranger about the machine, and a reader nothing."""
    for read in (from_client, from_server, hello_of):
        with pytest.raises(Refused) as caught:
            read(data)
        assert "\n" not in caught.value.reason and len(caught.value.reason) <= REASON


def test_no_message_needs_more_memory_than_its_own_bytes(session):
    """A list of a million empty lists is 1 MB on the wire and 60 MB as objects, sixteen of them a gigabyte."""
    bomb = b"\xdd" + (2**24).to_bytes(4, "big") + b"\x90" * 2**24
    placed = [
        bomb,
        b"\x82\xa4type\xa7observe\xa6images" + bomb,
        b"\x82\xa4type\xa7observe\xa7session" + bomb,
        b"\x82\xa4type\xa7observe\xa5state\x82\xa4type\xa5array\xa5shape" + bomb,
        b"\x82\xa4type\xa7observe\xa7unknown" + bomb,
    ]
    before = resident()
    for data in placed:
        assert take(session, data) == "malformed"
        assert resident() - before < 64 * 2**20


@pytest.mark.parametrize(
    ("other", "code", "told"),
    [
        ({"session": "another"}, "session", "not this connection's"),
        ({"state": arrays_pack(np.ones(3))}, "shape", "the state has 3 numbers, the policy sees 2"),
        ({"state": arrays_pack(np.array([1.0, np.nan]))}, "shape", "the state is not finite"),
        ({"state": arrays_pack(np.ones(2), "|u1")}, "shape", "the state is |u1"),
        ({"images": {}}, "shape", "pictures [], the policy sees ['front', 'wrist']"),
        ({"prefix": arrays_pack(np.ones((6, 2)))}, "shape", "a prefix [6, 2]"),
        ({"prefix": arrays_pack(np.full((3, 2), np.inf))}, "shape", "the prefix is not finite"),
        ({"delay": 4}, "shape", "a delay of 4"),
        ({"prefix": None}, "shape", "a delay has no prefix"),
    ],
)
def test_what_the_policy_cannot_be_shown_is_refused(session, tools, other, code, told):
    """A policy fed with another robot's numbers moves this one anyhow."""
    with pytest.raises(Refused) as caught:
        session.request(observation(session, tools, **other))
    assert caught.value.code == code and told in caught.value.reason


def test_pictures_of_another_size_are_refused(session, tools):
    """Also as a file, whose header alone says so; a policy that takes any size takes no giant."""
    big = np.zeros((2000, 2000, 3), np.uint8)
    for name, picture in (("front", arrays_pack(big, "|u1")), ("front", press(big, 50)), ("wrist", press(big, 50))):
        good = dict(observation(session, tools).images)
        with pytest.raises(Refused, match=f"picture '{name}' is 2000x2000") as caught:
            session.request(observation(session, tools, session.seq + 1, images=good | {name: picture}))
        assert caught.value.code == "shape"


def test_an_observation_is_taken_once(session, tools):
    """A recorded message played again would move the arm again."""
    session.request(observation(session, tools, 5))
    for seq in (5, 4):
        with pytest.raises(Refused, match="not newer") as caught:
            session.request(observation(session, tools, seq))
        assert caught.value.code == "seq"
    session.request(observation(session, tools, 6, episode=3))
    with pytest.raises(Refused, match="of episode 2, which is over"):
        session.request(observation(session, tools, 7, episode=2))


@pytest.mark.parametrize(("protocol", "word"), [(0, "older"), (PROTOCOL + 1, "newer")])
def test_another_protocol_is_named_whatever_else_it_says(protocol, word):
    """Half of a robot's fleet is always on another version; 'malformed' would send people looking for a bug."""
    future = {"type": "hello", "protocol": protocol, "wants": "all", "new field": [1, 2]}
    with pytest.raises(Refused, match=f"speaks protocol {protocol}, {word}") as caught:
        hello_of(msgspec.msgpack.encode(future))
    assert caught.value.code == "protocol"
