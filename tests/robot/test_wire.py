"""Messages and pictures between processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from vlrl.decoders import DTYPES, wire_pack, wire_unpack
from vlrl.placement.workers import pack_images, unpack_images

ARRAYS = st.dictionaries(
    st.text(max_size=4),
    st.sampled_from(DTYPES).flatmap(
        lambda d: arrays.arrays(d, arrays.array_shapes(min_dims=0, min_side=0, max_side=3))
    ),
    max_size=3,
)


@given(st.dictionaries(st.text(max_size=4), st.one_of(st.integers(), st.floats(), st.text(), st.none())), ARRAYS)
def test_what_is_packed_comes_back(fields, sent):
    """A snapshot would be inexact in another process."""
    got, received = wire_unpack(wire_pack(fields, sent))
    assert repr(got) == repr(fields)
    assert {n: (a.dtype, a.shape, a.tobytes()) for n, a in received.items()} == {
        n: (a.dtype, a.shape, a.tobytes()) for n, a in sent.items()
    }
    assert all(array.flags.writeable for array in received.values())


@given(st.binary(max_size=60), st.integers(0, 60))
def test_other_bytes_are_refused(noise, cut):
    """Whatever is sent must not crash, or be taken for a message."""
    whole = wire_pack({"a": 1}, {"state": np.arange(3.0)})
    for message in (noise, whole[: min(cut, len(whole) - 1)]):
        with pytest.raises(ValueError, match=r"message|cannot be"):
            wire_unpack(message)


def test_objects_are_not_sent():
    """To read them would run code."""
    with pytest.raises(ValueError, match="object"):
        wire_pack({}, {"a": np.array([object()])})


def test_pictures_of_any_size_come_back():
    """A camera of another size would show the last picture's pixels."""
    for side in (3, 90, 1, 200):
        sent = [
            Image.fromarray(np.random.default_rng(side + i).integers(0, 256, (side, side + i, 3), np.uint8))
            for i in range(12)
        ]
        received = unpack_images(wire_unpack(wire_pack({}, pack_images(sent)))[1])
        assert [(i.size, i.tobytes()) for i in received] == [(i.size, i.tobytes()) for i in sent]
