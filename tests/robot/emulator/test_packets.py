"""The protocol's packets: whole ones are found in any stream, and nothing else is."""

from hypothesis import given
from hypothesis import strategies as st

from robot.emulator.servo import LONGEST, PING, READ, Packet, encode, split, sync_write, sync_writes

PACKETS = st.builds(Packet, st.integers(0, 0xFE), st.integers(0, 0xFF), st.binary(max_size=100))


def test_a_packet_is_as_the_manual_writes_it():
    """A servo would not understand one bit off; ping of servo 1 and the read of its position."""
    assert encode(Packet(1, PING)) == bytes.fromhex("ff ff 01 02 01 fb")
    assert encode(Packet(1, READ, bytes((56, 2)))) == bytes.fromhex("ff ff 01 04 02 38 02 be")


@given(st.lists(PACKETS, max_size=5), st.integers(1, 20))
def test_packets_are_found_however_they_are_cut(sent, size):
    """A serial port hands bytes over in pieces of its own choosing."""
    stream, found, rest = b"".join(map(encode, sent)), [], b""
    for at in range(0, len(stream), size):
        more, rest = split(rest + stream[at : at + size])
        found += more
    assert found == sent


@given(st.binary(max_size=300))
def test_noise_never_raises_and_is_not_kept(data):
    """A burst on the wire would end the bus, or fill its memory."""
    found, rest = split(data)
    assert len(rest) <= LONGEST + 4
    for each in found:
        assert encode(each) in data


@given(PACKETS, st.data())
def test_a_flipped_bit_is_noticed(packet, data):
    """A garbled goal would be carried out."""
    whole = bytearray(encode(packet))
    bit = data.draw(st.integers(8 * 4, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    assert packet not in split(bytes(whole))[0]


@given(st.integers(0, 250), st.integers(1, 4), st.lists(st.integers(0, 0xFD), min_size=1, max_size=8))
def test_a_sync_write_says_what_goes_where(address, size, ids):
    """Goals would reach other joints."""
    values = [(number, bytes((number,)) * size) for number in ids]
    where, parts = sync_writes(sync_write(address, values).params)
    assert (where, list(parts)) == (address, values)


@given(st.binary(max_size=40))
def test_a_malformed_sync_write_writes_nothing_odd(params):
    """Bytes of one servo would be taken for another's id."""
    _, parts = sync_writes(params)
    assert all(len(data) == params[1] for _, data in parts)
