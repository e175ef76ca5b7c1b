"""What a run opens, in which order, checked against each other before anything moves."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence

from robot.deploy.chunks import Chunks
from robot.deploy.config import Deploy, Served
from robot.deploy.connect import connected
from robot.deploy.ending import Ender
from robot.deploy.hands import Hands
from robot.deploy.keys import Keys
from robot.deploy.ledger import Ledger
from robot.deploy.practice import Practising
from robot.deploy.practice import check as check_practice
from robot.deploy.preflight import check
from robot.deploy.record import Recorder
from robot.deploy.reset import pose_of
from robot.deploy.rig import Rig, shown, told_of, wants
from robot.deploy.scene import BodyScene, Operator, Scene
from robot.deploy.scene_emulator import EmulatorScene
from robot.deploy.scene_served import ServedScene
from robot.deploy.serve import served
from robot.deploy.sight import Eyes
from robot.deploy.view import View
from robot.motion.ports import hold_ports
from robot.motion.process import Motion
from robot.robot import RobotError
from robot.serving.client import Client
from vlrl.types import UserError

FIRST_S = 20.0  # for the cameras' first pictures
CONNECT_S = 60.0  # for the robot

Sizes = Mapping[str, Sequence[int]]  # camera -> height, width


def opened(stack: contextlib.ExitStack, config: Deploy, ender: Ender) -> tuple[Rig, Recorder | None, Practising | None]:
    """Everything that the config names. `stack` closes it, the motion process first.

    Raises:
        UserError: something is missing, or two things do not fit.
    """
    with hold_ports(config.robot, "robot"):  # before it takes minutes to find out; the motion process holds them
        pass
    stack.enter_context(hold_ports(config.teleop.options if config.teleop else {}, "teleop"))
    keys = stack.enter_context(Keys(config.safety.estop.keys))
    view = _view(stack, config)
    if config.practice:  # before it takes minutes to find out
        check_practice(config.practice, view is not None or keys.open)
    url = config.policy.url or stack.enter_context(served(config.policy.dir, config.policy.start_s))
    eyes = _closed(stack, Eyes(config.cameras)) if config.cameras else None
    motion = _closed(stack, moved(config))
    sizes = _sizes(eyes, motion)
    scene = _closed(stack, _scene(config, motion.about.names, sizes))
    client = _closed(stack, _client("policy", config, url, motion, sizes))
    hands = _closed(stack, _hands(config, motion)) if config.teleop else None
    stack.callback(motion.close)  # again: first of all
    if config.home:
        pose_of(config.home.pose, motion.about.channels, "home.pose")
    chunks = Chunks(config.policy, client.spec, motion.about.hz)
    check(config, motion.about, client, chunks.hz)
    rig = Rig(config, motion, client, chunks, scene, Ledger(motion.about.hz), ender, keys, eyes, hands, view)
    recorder = Recorder(config, motion.about, sizes, chunks.hz, client.model) if config.record else None
    return rig, recorder, _practising(stack, rig, sizes)


def moved(config: Deploy) -> Motion:
    """The robot, connected. Raises UserError: it cannot be."""
    try:
        return Motion(config.robot, config.safety, patience=CONNECT_S)
    except RobotError as error:
        raise UserError(f"robot: {error}") from None


def _closed[T](stack: contextlib.ExitStack, made: T) -> T:
    stack.callback(made.close)
    return made


def _view(stack: contextlib.ExitStack, config: Deploy) -> View | None:
    if config.view is None:
        return None
    view = _closed(stack, View(config.view.port))
    print(f"live view: {view.url}", file=sys.stderr)
    return view


def _sizes(eyes: Eyes | None, motion: Motion) -> Sizes:
    """Of all pictures that there are: the cameras', then the body's own."""
    if eyes:
        eyes.wait(FIRST_S)
    seen = {name: each.picture.shape for name, each in eyes.latest().items()} if eyes else {}
    return seen | dict(motion.about.images)


def _scene(config: Deploy, names: Sequence[str], sizes: Sizes) -> Scene:
    """The scene that the config names; its options were checked when it was read."""
    name, options = config.scene.name, config.scene.options
    if name == "served":
        return ServedScene(Served.model_validate(options), names, sizes, config.task)
    return EmulatorScene(options["socket"]) if name == "emulator" else BodyScene() if name == "body" else Operator()


def _client(key: str, config: Deploy, url: str, motion: Motion, sizes: Sizes) -> Client:
    """Of a policy that drives the robot: it must see and give what the robot does."""
    policy = config.policy
    state = [motion.about.names[place] for place in told_of(motion.about.names, policy.state)]
    said = wants(motion, state, shown(sizes, policy.pictures)) if policy.names else None
    return connected(key, url, policy.token_file, policy.ca, said, policy.start_s)


def _hands(config: Deploy, motion: Motion) -> Hands:
    return Hands(config.teleop.type, config.teleop.options, [each.name for each in motion.about.channels])


def _practising(stack: contextlib.ExitStack, rig: Rig, sizes: Sizes) -> Practising | None:
    practice, motion = rig.config.practice, rig.motion
    if practice is None:
        return None
    resetter = None
    if practice.reset.url:
        resetter = _closed(stack, _client("practice.reset", rig.config, practice.reset.url, motion, sizes))
        check(rig.config, motion.about, resetter, resetter.spec.hz or motion.about.hz)
        stack.callback(motion.close)
    return Practising(rig, practice, resetter)
