"""The other side of `robot.sim.remote`: holds one simulator in an interpreter of its own and does as it is told.

Started as `PYTHON remote_host.py PIPE` with an inherited file descriptor, for messages.
Runs on Python 3.8 and newer with any numpy, and imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import math
import operator
import os
import random
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

# Messages as `vlrl.decoders.wire_pack` writes them: a length, JSON of that length, the arrays' bytes.


def pack(fields, arrays):
    listed, data = [], []
    for name, array in arrays.items():
        kind = array.dtype.newbyteorder("<")
        listed.append([name, kind.str, array.shape])
        data.append(array.astype(kind, copy=False).tobytes())
    header = json.dumps({"fields": fields, "arrays": listed}).encode()
    return b"".join([len(header).to_bytes(4, "little"), header, *data])


def unpack(message):
    start = 4 + int.from_bytes(message[:4], "little")
    header, arrays = json.loads(message[4:start]), {}
    for name, kind, shape in header["arrays"]:
        end = start + math.prod(shape) * np.dtype(kind).itemsize
        arrays[name] = np.frombuffer(bytearray(message[start:end]), kind).reshape(shape)
        start = end
    return header["fields"], arrays


# What environments have in common, of Gymnasium, of gym before 0.26 and of robosuite.


class WrongSettingError(Exception):
    """What a user can mend, in one line that begins with the setting."""


def find(target, *paths):
    """The first of these attributes that it has, such as `unwrapped.hz`, or None."""
    for path in paths:
        try:
            value = operator.attrgetter(path)(target)
        except AttributeError:
            continue
        if value is not None:
            return value
    return None


def find_anywhere(env, *names):
    """An attribute of the environment or of what is in its wrappers, or None."""
    return find(env, *(outer + name for name in names for outer in ("", "unwrapped.", "env.")))


def describe_error(error):
    line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {line}".rstrip(": ")


def load_function(name):
    """`module:function` from what the interpreter has and the working directory, or `path/to/file.py:function`."""
    module, _, attribute = name.rpartition(":")
    if module.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(module)))  # for its neighbours
    try:
        loaded = importlib.import_module(os.path.basename(module)[:-3] if module.endswith(".py") else module)
    except Exception as error:  # whatever a module raises
        what = f"{module} cannot be imported by {sys.executable}: {describe_error(error)}"
        raise WrongSettingError(f"robot.make: {what}") from error
    function = find(loaded, attribute)
    if not callable(function):
        raise WrongSettingError(f"robot.make: {module} has no function {attribute!r}")
    return function


def make_environment(name, options):
    function = load_function(name)
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise WrongSettingError(f"robot.options: {name}: {error}") from error
    except ValueError:  # some functions of C have no signature
        pass
    try:
        env = single(function(**options))
    except Exception as error:  # simulators raise what they like
        raise WrongSettingError(f"robot.make: {name} raised {describe_error(error)}") from error
    missing = [method for method in ("reset", "step") if not callable(find(env, method))]
    if missing:
        raise WrongSettingError(f"robot.make: {name} gave {type(env).__name__} without {' and '.join(missing)}")
    return env


def single(env):
    """One environment of what a folder of lerobot's EnvHub gives: {suite: {task: a vector of one}}, or less of it."""
    while isinstance(env, dict):
        env = next(iter(env.values()))
    copies = find(env, "envs")
    return copies[0] if isinstance(copies, (list, tuple)) else env


def reset_environment(env, seed):
    """The first observation. Seeds all that it may draw from: nothing else runs in this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    parameters = inspect.signature(env.reset).parameters
    keywords = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    old_seed = find(env, "seed")
    if "seed" in parameters or (keywords and not callable(old_seed)):
        result = env.reset(seed=seed)
    else:
        if callable(old_seed):
            old_seed(seed)
        result = env.reset()
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    return result[0] if pair else result


def step_environment(env, action):
    """Observation, reward, terminated, truncated, info; `done` of the old four counts as terminated."""
    result = env.step(action)
    if len(result) == 5:
        return result
    observation, reward, done, info = result
    cut = bool(info.get("TimeLimit.truncated"))
    return observation, reward, bool(done) and not cut, cut, info


def find_limits(env):
    """Least and largest action: two arrays of real numbers."""
    space = find(env, "action_space")
    limits = find_anywhere(env, "action_spec") if space is None else (find(space, "low"), find(space, "high"))
    try:
        low, high = (np.asarray(each) for each in limits)
        right = low.dtype.kind == "f" and low.size and np.isfinite([low, high]).all() and (low < high).all()
    except (TypeError, ValueError):
        right = False
    if not right:
        what = "unknown: it has no action_space" if space is None else space
        raise WrongSettingError(f"robot.make: its actions are {what}: must be real numbers with finite limits")
    return low, high


def list_versions(env):
    """Of Python and of the packages, as far as they are loaded, by which what an environment does may differ."""
    from importlib import metadata  # it takes a tenth of a second, which is not the first answer's

    own = type(find(env, "unwrapped") or env).__module__.partition(".")[0]
    versions = {"python": sys.version.partition(" ")[0]}
    for name in (own, "lerobot", "gymnasium", "gym", "robosuite", "mujoco", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):  # a file of the user's
            versions[name] = metadata.version(name) if name in sys.modules else ""
    return {name: version for name, version in versions.items() if version}


def list_parts(observation, keys=()):
    """Names, such as agent.pos, and arrays of what an observation is made of; what is no numbers is left out."""
    if isinstance(observation, dict):
        pairs = observation.items()
    elif isinstance(observation, tuple):
        pairs = enumerate(observation)
    else:
        array = np.asarray(observation)
        if array.dtype.kind in "fiub":
            wide = array.dtype.itemsize > 8
            yield ".".join(map(str, keys)) or "observation", array.astype(np.float64) if wide else array
        return
    for key, each in pairs:
        yield from list_parts(each, (*keys, key))


def is_picture(array):
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3


def read_numbers(info):
    """What of `info` is one finite number."""
    numbers = {}
    for name, value in info.items():
        if isinstance(value, (dict, str, bytes)):
            continue
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "fiub" and math.isfinite(array.item()):
            numbers[str(name)] = array.item()
    return numbers


# One simulator, asked over the pipe.


class SimulatorHost:
    """Each method answers one request with fields and arrays."""

    def __init__(self):
        self._env: Any = None
        self._observation: Any = None
        self._low: Any = None

    def hello(self, fields, arrays):
        return {}, {}

    def make(self, fields, arrays):
        """Makes the environment and says what it is."""
        self._env = env = make_environment(fields["make"], fields["options"])
        self._low, high = find_limits(env)
        self._observation = reset_environment(env, 0)
        metadata = find(env, "metadata") or {}
        hz = find_anywhere(env, "hz", "control_freq") or metadata.get("render_fps")
        return {
            "hz": hz and float(hz),
            "names": find_anywhere(env, "action_names"),
            "units": find_anywhere(env, "action_units"),
            "versions": list_versions(env),
            "snapshots": all(callable(find(env, method)) for method in ("snapshot", "restore")),
            "parts": [[name, array.shape, is_picture(array)] for name, array in list_parts(self._observation)],
        }, {"low": self._low, "high": high}

    def reset(self, fields, arrays):
        self._observation = reset_environment(self._env, fields["seed"])
        return self._show({})

    def step(self, fields, arrays):
        action = arrays["action"].astype(self._low.dtype).reshape(self._low.shape)
        self._observation, reward, terminated, truncated, info = step_environment(self._env, action)
        numbers = read_numbers(info)
        return self._show({"reward": float(reward), "ends": [bool(terminated), bool(truncated)], "info": numbers})

    def look(self, fields, arrays):
        """The pictures of the observation."""
        return {}, {name: array for name, array in list_parts(self._observation) if is_picture(array)}

    def render(self, fields, arrays):
        frames = self._env.render()
        frames = [np.asarray(each) for each in (frames if isinstance(frames, (list, tuple)) else [frames])]
        if not frames or not all(is_picture(each) for each in frames):
            raise ValueError("render() gave no pictures, uint8 [H, W, 3]")
        return {}, {str(i): frame for i, frame in enumerate(frames)}

    def snapshot(self, fields, arrays):
        return {}, {name: np.asarray(value) for name, value in self._env.snapshot().items()}

    def restore(self, fields, arrays):
        self._observation = self._env.restore(arrays)
        return self._show({})

    def _show(self, fields):
        """These fields and the instruction of the episode; what of the observation is no picture."""
        text = find_anywhere(self._env, "instruction", "task_description", "language_instruction")
        fields["instruction"] = text if isinstance(text, str) else ""
        return fields, {name: array for name, array in list_parts(self._observation) if not is_picture(array)}

    def close(self):
        if callable(find(self._env, "close")):
            self._env.close()


def serve(pipe, host):
    """Answers until the other side is gone."""
    answers = {
        "hello": host.hello, "make": host.make, "reset": host.reset, "step": host.step, "look": host.look,
        "render": host.render, "snapshot": host.snapshot, "restore": host.restore,
    }  # fmt: skip
    try:
        while True:
            fields, arrays = unpack(pipe.recv_bytes())
            try:
                reply = pack(*answers[fields["request"]](fields, arrays))
            except WrongSettingError as error:
                reply = pack({"user_error": str(error)}, {})
            except Exception as error:  # simulators raise what they like
                reply = pack({"error": describe_error(error)}, {})
            pipe.send_bytes(reply)
    except (EOFError, OSError):  # the other side has closed the pipe, or is gone
        pass
    finally:
        host.close()


if __name__ == "__main__":
    os.dup2(2, 1)  # what a simulator prints is no result of ours
    sys.path[0] = ""  # this folder's files are named as simulators are
    sys.path.append(sys.path.pop(0))  # the working directory, which hides nothing that is installed
    serve(Connection(int(sys.argv[1])), SimulatorHost())
