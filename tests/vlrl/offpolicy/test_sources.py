"""Given data of every format: what was written comes back, time-outs go on, and bad files are one line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vlrl import registry
from vlrl.config import Component
from vlrl.offpolicy.datasets import lerobot, minari, neorl2, robomimic, scripted
from vlrl.types import UserError

LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)
STATES, CONTROLS, CHUNK = 3, 2, 2


def task(hz: float = 10.0, names: tuple[str, ...] = ()) -> SimpleNamespace:
    """A robot of two controls with a state of three numbers."""
    controls = SimpleNamespace(names=("x", "grip"), low=LOW, high=HIGH)
    about = SimpleNamespace(hz=hz, names=names, script=False)
    return SimpleNamespace(chunk=CHUNK, controls=controls, pool=SimpleNamespace(info=about), bad_rows=(), view=None)


def take(length: int, seed: int, won: int | None = None) -> dict[str, np.ndarray]:
    """An episode of `length` ticks, won with tick number `won`: states [T + 1, S], unit controls, rewards."""
    rng = np.random.default_rng(seed)
    rewards = np.zeros(length, np.float32)
    if won is not None:
        rewards[won:] = 1.0
    return {"states": rng.standard_normal((length + 1, STATES)).astype(np.float32), "rewards": rewards,
            "controls": rng.uniform(-1, 1, (length, CONTROLS)).astype(np.float32)}  # fmt: skip


def physical(controls: np.ndarray) -> np.ndarray:
    return LOW + (controls + 1) / 2 * (HIGH - LOW)


def same(found, states, controls, *, won: bool, ended: bool) -> None:
    """Rows of one episode of chunks of two, worked out tick by tick."""
    count = len(controls)
    assert len(found) == count
    np.testing.assert_allclose(found.state, states[:count])
    for t in range(count):
        ticks = min(CHUNK, count - t)
        np.testing.assert_allclose(found.action[t], controls[[t, min(t + 1, count - 1)]], atol=1e-6)
        np.testing.assert_allclose(found.next_state[t], states[t + ticks])
        assert found.used[t] == ticks / CHUNK
        final = t + CHUNK >= count
        assert (found.reward[t], found.terminal[t]) == (float(final and won), final and ended)


# -- Robomimic -------------------------------------------------------------------------------------------------------


@pytest.fixture
def h5py():
    return pytest.importorskip("h5py")


def write_robomimic(h5py, path: Path, takes: list[dict], after: bool = True) -> Path:
    with h5py.File(path, "w") as file:
        for i, each in enumerate(takes):
            demo = file.create_group(f"data/demo_{i}")
            for kind, rows in (("obs", slice(None, -1)), ("next_obs", slice(1, None)))[: 1 + after]:
                demo[f"{kind}/eef"], demo[f"{kind}/gripper"] = each["states"][rows, :2], each["states"][rows, 2]
            demo["actions"], demo["rewards"] = each["controls"].astype(np.float64), each["rewards"]
            demo["dones"] = np.eye(len(each["rewards"]), dtype=np.int64)[-1]
        file["mask/train"] = np.array([b"demo_0"])
    return path


OBS = ["eef", "gripper"]


def test_robomimic_comes_back(tmp_path, h5py):
    """Controls are meant as shares of the limits; `dones` of a time-out is no end; after the success nothing counts."""
    takes = [take(6, 0, won=3), take(5, 1)]
    path = write_robomimic(h5py, tmp_path / "a.hdf5", takes)
    found = robomimic(task(), 0, path=str(path), obs=OBS)
    won, lost = found.take(range(4)), found.take(range(4, 9))
    controls, states = physical(takes[0]["controls"][:4]), takes[0]["states"][:4]
    same(won, np.concatenate([states, states[-1:]]), controls, won=True, ended=True)
    same(lost, takes[1]["states"], physical(takes[1]["controls"]), won=False, ended=False)
    assert won.paid.tolist() == [0, 0, 1, 1] and lost.paid.tolist() == [0] * 5
    assert len(robomimic(task(), 0, path=str(path), obs=OBS, mask="train")) == 4
    assert len(robomimic(task(), 0, path=str(path), obs=OBS, keep="success")) == 4
    assert robomimic(task(), 0, path=str(path), obs=OBS, success="all").terminal.sum() == 4  # two of each


def test_what_came_of_a_last_control_is_not_invented(tmp_path, h5py):
    """Without next_obs a time-out's last state is not known: a step to nowhere would be learned."""
    made = take(5, 1)
    path = write_robomimic(h5py, tmp_path / "a.hdf5", [made], after=False)
    found = robomimic(task(), 0, path=str(path), obs=OBS, units="physical")
    same(found, made["states"][:5], made["controls"][:4], won=False, ended=False)


# -- Minari and D4RL -------------------------------------------------------------------------------------------------


def write_minari(h5py, path: Path, takes: list[tuple[dict, bool]], named: bool = False) -> Path:
    path.mkdir(parents=True)
    with h5py.File(path / "main_data.hdf5", "w") as file:
        for i, (each, terminated) in enumerate(takes):
            episode = file.create_group(f"episode_{i}")
            if named:
                episode["observations/observation"] = each["states"][:, :2]
                episode["observations/desired_goal"] = each["states"][:, 2:]
            else:
                episode["observations"] = each["states"].astype(np.float64)
            last = np.arange(len(each["rewards"])) == len(each["rewards"]) - 1
            episode["actions"], episode["rewards"] = each["controls"], each["rewards"]
            episode["terminations"], episode["truncations"] = last & terminated, last & (not terminated)
    return path


@pytest.mark.parametrize("named", [False, True])
def test_minari_comes_back(tmp_path, h5py, named):
    """A truncation is no end; a termination is, won or lost, as `success` says."""
    takes = [(take(4, 0), True), (take(5, 1), False)]
    path = write_minari(h5py, tmp_path / "set" / "data", takes, named).parent
    obs = ["observation", "desired_goal"] if named else []
    for success, won in ((None, False), ("terminated", True)):
        found = minari(task(), 0, path=str(path), obs=obs, success=success)
        same(found.take(range(4)), takes[0][0]["states"], physical(takes[0][0]["controls"]), won=won, ended=True)
        same(found.take(range(4, 9)), takes[1][0]["states"], physical(takes[1][0]["controls"]), won=False, ended=False)


def write_d4rl(h5py, path: Path, takes: list[tuple[dict, bool]], **changes) -> Path:
    """Flat arrays; the last take ends with the file."""
    columns = {"observations": np.concatenate([each["states"][:-1] for each, _ in takes])}
    for name, mine in (("actions", "controls"), ("rewards", "rewards")):
        columns[name] = np.concatenate([each[mine] for each, _ in takes])
    lasts = np.concatenate([np.eye(len(each["rewards"]))[-1] for each, _ in takes]).astype(bool)
    over = np.concatenate([np.full(len(each["rewards"]), terminated) for each, terminated in takes])
    columns |= {"terminals": lasts & over, "timeouts": lasts & ~over} | changes
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            if values is not None:
                file[name] = values
    return path


def test_d4rl_comes_back(tmp_path, h5py):
    """One long row, cut at terminals and timeouts: no step may lead from one episode into the next."""
    takes = [(take(4, 0), True), (take(5, 1), False), (take(3, 2, won=1), False)]
    path = write_d4rl(h5py, tmp_path / "a.hdf5", takes)
    found = minari(task(), 0, path=str(path), success=1.0)
    states, controls = takes[0][0]["states"][:4], [physical(each["controls"]) for each, _ in takes]
    same(found.take(range(4)), np.concatenate([states, states[-1:]]), controls[0], won=False, ended=True)
    same(found.take(range(4, 8)), takes[1][0]["states"][:5], controls[1][:4], won=False, ended=False)
    same(found.take(range(8, 10)), takes[2][0]["states"][[0, 1, 2]], controls[2][:2], won=True, ended=True)
    after = np.concatenate([each["states"][1:] for each, _ in takes])
    found = minari(task(), 0, path=str(write_d4rl(h5py, tmp_path / "b.hdf5", takes, next_observations=after)))
    same(found.take(range(4, 9)), takes[1][0]["states"], controls[1], won=False, ended=False)


# -- D5RL and NeoRL-2 ------------------------------------------------------------------------------------------------


def test_d5rl_comes_back(tmp_path, h5py):
    """Its files mark the last tick of every trajectory, of terminated ones too, in a column of another name."""
    takes = [(take(4, 0), True), (take(5, 1), False), (take(3, 2), True)]
    after = np.concatenate([each["states"][1:] for each, _ in takes])
    ends = np.concatenate([np.eye(len(each["rewards"]))[-1] for each, _ in takes]).astype(bool)
    path = write_d4rl(
        h5py, tmp_path / "d5rl.h5", takes, timeouts=None, trajectory_ends=ends, next_observations=after
    )  # fmt: skip
    found, first = minari(task(), 0, path=str(path)), 0
    for each, terminated in takes:
        count = len(each["controls"])
        part = found.take(range(first, first + count))
        same(part, each["states"], physical(each["controls"]), won=False, ended=terminated)
        first += count
    assert first == len(found)


def write_neorl2(path: Path, takes: list[tuple[dict, bool]], **changes) -> Path:
    """As https://github.com/polixir/NeoRL2 describes it; `index` is where each trajectory begins."""
    lengths = [len(each["rewards"]) for each, _ in takes]
    columns = {"obs": [each["states"][:-1] for each, _ in takes], "next_obs": [each["states"][1:] for each, _ in takes],
               "action": [each["controls"] for each, _ in takes], "reward": [each["rewards"] for each, _ in takes],
               "done": [np.eye(n)[-1] * ended for n, (_, ended) in zip(lengths, takes, strict=True)]}  # fmt: skip
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    whole |= {"index": np.cumsum([0, *lengths[:-1]])} | changes
    np.savez(path, **{name: values for name, values in whole.items() if values is not None})
    return path


def test_neorl2_comes_back(tmp_path):
    """Two trajectories would be one where a time-out leaves no `done`; a quarter of `val` goes with `train`."""
    takes = [(take(4, i, won=3), i == 0) for i in range(8)]
    write_neorl2(tmp_path / "Pipeline-train.npz", takes)
    write_neorl2(tmp_path / "Pipeline-val.npz", takes[::-1], reward=np.zeros((32, 1)))
    found = neorl2(task(), 0, path=str(tmp_path), episodes=3)
    assert len(found) == 3 * 4
    for number, (each, ended) in enumerate(takes[:3]):
        part = found.take(range(4 * number, 4 * number + 4))
        same(part, each["states"], physical(each["controls"]), won=False, ended=ended)
        assert part.paid.tolist() == [0, 0, 1, 1]  # of chunks of two
    chosen = neorl2(task(), 0, path=str(tmp_path), part="val", episodes=8, units="physical")
    assert len(chosen) == 2 * 4 and not chosen.terminal.any()
    np.testing.assert_array_equal(chosen.state[0], takes[7][0]["states"][0])
    won = neorl2(task(), 0, path=str(tmp_path / "Pipeline-train.npz"), success=1.0)
    assert won.terminal.sum() == won.reward.sum() == 8 * 2


def test_bad_neorl2_files_are_one_line(tmp_path):
    """A traceback of numpy, or transitions from the end of one trajectory to the beginning of another."""
    takes = [(take(4, 0), True), (take(4, 1), False)]
    broken = [dict(each) for each, _ in takes]
    broken[1]["states"] = broken[1]["states"].copy()
    broken[1]["states"][2, 1] = np.inf
    text = tmp_path / "text.npz"
    text.write_bytes(b"PK but no archive")
    write_neorl2(tmp_path / "one-val.npz", takes)
    write_neorl2(tmp_path / "two-val.npz", takes)
    cases = [
        ({"path": str(tmp_path / "none")}, r"0 files \*-train.npz"),
        ({"path": str(tmp_path), "part": "val"}, r"2 files \*-val.npz"),
        ({"path": str(text)}, "no NeoRL-2 file, or damaged"),
    ]
    for number, (changes, problem) in enumerate([
        ({"index": None}, r"has no index \(it has obs, next_obs, action, reward, done\)"),
        ({"index": np.array([0, 9])}, "index: should count up from 0, below the 8 ticks"),
        ({"index": np.array([4, 0])}, "index: should count up from 0"),
        ({"index": np.array([0, 3])}, "episode 0: obs is not what next_obs of the tick before was|episode 1"),
        ({"reward": np.zeros(7)}, "columns of different lengths: obs 8, next_obs 8, action 8, reward 7, done 8"),
        ({"done": np.zeros((8, 2))}, r"done is of float64, shape \(8, 2\)"),
        ({"obs": np.array([["a"] * 3] * 8)}, "obs is of <U1"),
        ({"action": np.zeros((8, 5))}, "episode 0: controls of 5 numbers; the robot's are x, grip: mend it"),
        ({"action": np.full((8, 2), np.nan)}, "episode 0: controls are not finite"),
        ({"reward": np.array([object()] * 8)}, "no NeoRL-2 file, or damaged"),
    ]):  # fmt: skip
        cases.append(({"path": str(write_neorl2(tmp_path / f"{number}.npz", takes, **changes))}, problem))
    path = write_neorl2(tmp_path / "bad.npz", list(zip(broken, (True, False), strict=True)))
    cases.append(({"path": str(path)}, "episode 1: states are not finite: mend it, or set on_bad: skip"))
    for options, problem in cases:
        with pytest.raises(UserError, match=problem) as said:
            neorl2(task(), 0, **options)
        assert "\n" not in str(said.value)
    assert len(neorl2(task(), 0, path=str(path), on_bad="skip")) == 4


# -- LeRobotDataset --------------------------------------------------------------------------------------------------


def write_lerobot(path: Path, takes: list[dict], fps: int = 10, **more: list[np.ndarray]) -> Path:
    """A data set as lerobot lays it out, without lerobot, whose import takes seconds (its own: test_reading.py)."""
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "observation.state": [t["states"][:-1] for t in takes],
        "action": [t["controls"] for t in takes],
        "next.reward": [t["rewards"] for t in takes],
        "next.success": [t["rewards"] > 0 for t in takes],
        **more,
    }
    columns |= {"episode_index": [np.full(len(t["rewards"]), i) for i, t in enumerate(takes)],
                "frame_index": [np.arange(len(t["rewards"])) for t in takes]}  # fmt: skip
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    features = {name: {"dtype": str(v.dtype), "shape": v.shape[1:] or (1,), "names": None} for name, v in whole.items()}
    (path / "meta").mkdir(parents=True)
    info = {"codebase_version": "v3.0", "fps": fps, "features": features, "total_episodes": len(takes)}
    (path / "meta" / "info.json").write_text(json.dumps(info))
    (path / "data" / "chunk-000").mkdir(parents=True)
    table = pa.table({name: pa.array(v.tolist()) if v.ndim > 1 else pa.array(v) for name, v in whole.items()})
    pq.write_table(table, path / "data" / "chunk-000" / "file-000.parquet")
    return path


def test_lerobot_comes_back(tmp_path):
    """Success ends an episode; one without it is a time-out, and the frame after its last control is not known."""
    takes = [take(6, 0, won=3), take(5, 1)]
    path = str(write_lerobot(tmp_path / "a", takes))
    found = lerobot(task(), 0, path=path)
    states = takes[0]["states"][:4]
    same(found.take(range(4)), np.concatenate([states, states[-1:]]), takes[0]["controls"][:4], won=True, ended=True)
    same(found.take(range(4, 8)), takes[1]["states"][:5], takes[1]["controls"][:4], won=False, ended=False)
    by_reward = lerobot(task(), 0, path=path, success=1.0)
    np.testing.assert_array_equal(by_reward.terminal, found.terminal)
    assert not found.person.any() and lerobot(task(), 0, path=path, success="all").reward.sum() == 2 * CHUNK


def test_what_was_sent_is_learned_from_and_a_persons_hand_is_known(tmp_path):
    """`action` of our recordings is what the script would have done, not what brought the next state."""
    takes = [take(4, 0, won=3)]
    sent, driver = takes[0]["controls"] * 0.5, np.array([1, 2, 2, 0])
    fell = np.array([False, True, False, False])
    path = str(write_lerobot(tmp_path / "a", takes, sent_action=[sent], source=[driver], fell=[fell]))
    found = lerobot(task(), 0, path=path)
    np.testing.assert_allclose(found.action[:, 0], sent)
    assert found.person.tolist() == [False, True, True, False]
    np.testing.assert_allclose(lerobot(task(), 0, path=path, action="action").action[:, 0], takes[0]["controls"])
    lost = lerobot(task(), 0, path=path, lost="fell")
    assert lost.terminal.tolist() == [True, True] and not lost.reward.any()


@pytest.mark.slow
def test_a_recording_of_our_own_is_read(tmp_path):
    """`vlrl demos` and this source must speak of the same columns."""
    pytest.importorskip("lerobot")
    from robot.demos import record
    from robot.registry import robots

    out = tmp_path / "demos"
    record(robots()["tabletop"].target, {"job": "reach"}, ticks=60, episodes=2, out=out, noise=0.2)
    spec = Component(name="manipulation", robot={"name": "tabletop", "job": "reach"}, chunk=4, workers=1)
    made = registry.make("task", spec, "task")
    try:
        found = lerobot(made, 0, path=str(out))
        assert found.terminal.sum() == found.reward.sum() == 2 * 4  # two won episodes, chunks of four
        assert len(found) > 8 and (found.action >= made.controls.low - 1e-6).all()
    finally:
        made.close()


# -- what is wrong ---------------------------------------------------------------------------------------------------


def test_bad_episodes_stop_or_are_set_aside_with_a_reason(tmp_path, h5py):
    """A NaN in one of a thousand episodes costs that one, and is told."""
    takes = [take(4, i, won=3) for i in range(4)]
    takes[1]["states"][2, 0] = np.nan
    takes[2]["controls"] = takes[2]["controls"][:, :1]
    takes[3]["rewards"] = takes[3]["rewards"][:2]
    path = str(write_robomimic(h5py, tmp_path / "a.hdf5", takes))
    with pytest.raises(UserError, match=r"a.hdf5: episode 1: states are not finite: mend it, or set on_bad: skip"):
        robomimic(task(), 0, path=path, obs=OBS)
    made = task()
    assert len(robomimic(made, 0, path=path, obs=OBS, on_bad="skip")) == 4
    assert [(each.row, each.problem) for each in made.bad_rows] == [
        (1, "states are not finite"), (2, "controls of 1 numbers; the robot's are x, grip"),
        (3, "columns of different lengths: states 4, actions 4, rewards 2"),
    ]  # fmt: skip


def test_bad_files_are_one_line(tmp_path, h5py):
    """A traceback of h5py or pyarrow, hours into a queue."""
    good = write_robomimic(h5py, tmp_path / "good.hdf5", [take(4, 0)])
    text = tmp_path / "text.hdf5"
    text.write_bytes(b"no HDF5")
    part = tmp_path / "part.hdf5"
    part.write_bytes(good.read_bytes()[:-900])
    old = write_d4rl(h5py, tmp_path / "old.hdf5", [(take(4, 0), True)], timeouts=None)
    names = h5py.File(tmp_path / "names.hdf5", "w")
    names["observations"] = np.array([b"a", b"b"])
    names.close()
    cases = [
        (robomimic, {"path": "nowhere", "obs": OBS}, "no file nowhere"),
        (robomimic, {"path": str(text), "obs": OBS}, "no HDF5 file, or damaged"),
        (robomimic, {"path": str(part), "obs": OBS}, "no HDF5 file, or damaged"),
        (robomimic, {"path": str(old), "obs": OBS}, "no Robomimic file"),
        (robomimic, {"path": str(good), "obs": ["eff"]}, "has no numbers obs/eff"),
        (robomimic, {"path": str(good), "obs": OBS, "mask": "valid"}, "has no mask 'valid'; its masks: train"),
        (robomimic, {"path": str(good), "obs": OBS, "keep": "success"}, "none of 1 episodes was won"),
        (minari, {"path": str(good)}, "neither Minari's episode_0 nor D4RL's observations"),
        (minari, {"path": str(old)}, "has no numbers timeouts"),
        (minari, {"path": str(tmp_path / "names.hdf5")}, "not of numbers a tick"),
        (lerobot, {"path": str(tmp_path)}, "no LeRobotDataset"),
    ]
    for source, options, problem in cases:
        with pytest.raises(UserError, match=problem) as said:
            source(task(), 0, **options)
        assert "\n" not in str(said.value)


def test_data_of_another_robot_are_refused(tmp_path):
    """At half the rate each control would be carried out for half its time."""
    path = str(write_lerobot(tmp_path / "a", [take(4, 0)]))
    for made, options, problem in (
        (task(hz=20.0), {}, "10 frames a second, but the robot takes 20"),
        (task(names=("a", "b")), {}, r"a state of 3 numbers instead of 2 \(a, b\)"),
        (task(), {"state": "observation.env"}, "has no column observation.env"),
        (task(), {"lost": "fell"}, "has no column fell"),
    ):
        with pytest.raises(UserError, match=problem):
            lerobot(made, 0, path=path, **options)
    file = next(Path(path).glob("data/*/*.parquet"))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(UserError, match="damaged, or being written now"):
        lerobot(task(), 0, path=path)


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    """An ImportError says nothing of what to install."""
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"pip install 'vlrl\[hdf5\]'"):
        minari(task(), 0, path="a.hdf5")


# -- the scripted mixture --------------------------------------------------------------------------------------------


@pytest.fixture
def line(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import line_task

    yield line_task.LineTask(ticks=12, chunk=2, scenes=40)
    sys.modules.pop("line_task", None)


def test_a_mixture_has_its_shares(line):
    """The script wins, chance does not: a share that is off makes every comparison on the data meaningless."""
    kinds = {"expert": (1.0, 0.0), "poor": (0.0, 1.0), "chance": (0.0, 0.0)}
    won = {name: _won(scripted(line, 0, episodes=20, expert=e, poor=p)) for name, (e, p) in kinds.items()}
    assert won["expert"] == 20 and won["chance"] <= 8 and won["chance"] <= won["poor"] < 20
    exact = scripted(line, 0, episodes=40, expert=0.25, poor=0.0, hold=12)
    held = [e for e in _episodes(exact) if len(set(exact.action[e, 0, 0].tolist())) == 1]
    speeds = [exact.action[e[0], 0, 0] for e in held]
    assert sum(abs(abs(float(s)) - 0.8) < 1e-6 for s in speeds) == 10  # the script's speed, exactly a quarter


def test_a_mixture_is_its_seeds(line):
    """A resumed study would compare methods on different data."""
    one, again, other = (scripted(line, seed, episodes=10) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.action, again.action)
    assert len(one) != len(other) or (one.action != other.action).any()
    won = scripted(line, 0, episodes=10, keep="success")
    assert _won(won) == _won(one) == len(_episodes(won))


def test_shares_and_scenes_are_checked(line):
    """More than everything, and more scenes than there are."""
    for options, problem in (({"expert": 0.7, "poor": 0.5}, "together at most 1"),
                             ({"episodes": 41}, "41 episodes, but 40 training scenes")):  # fmt: skip
        with pytest.raises(UserError, match=problem):
            scripted(line, 0, **options)


def _episodes(found):
    from vlrl.offpolicy.learner import episodes

    return episodes(found)


def _won(found) -> int:
    return sum(found.reward[rows[-1]] > 0 for rows in _episodes(found))
