"""Policies behind the policy server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vlrl import registry
from vlrl.config import Config, PolicySection, is_training_config
from vlrl.engines import load_policy
from vlrl.imitation import reward_classifier
from vlrl.policies.arsq import ArsqPolicy
from vlrl.policies.discrete import ControlPolicy
from vlrl.policies.encoded import EncodedPolicy
from vlrl.policies.flow import FlowPolicy, GuidedPolicy, SteeredPolicy
from vlrl.policies.lerobot import LerobotPolicy
from vlrl.policies.loading import bundled, described, newest_checkpoint
from vlrl.policies.residual import CorrectedPolicy, ResidualPolicy
from vlrl.policies.robot_common import ActorPolicy
from vlrl.recipe_checks import load_config
from vlrl.serving.protocol import Feature, Keys, Picture, PolicyRequest, PolicySpec, Servable
from vlrl.serving.server import Door, blank, new_token, run, token_in
from vlrl.serving.sessions import Limits
from vlrl.system.http_server import is_loopback
from vlrl.types import Episode, Observation, RobotTask, Sample, Step, Turn, UserError

# The toolkit's own policies as servables: small ones that give numbers, language models that say actions.


class Driver:
    """A policy that gives numbers (`vlrl.policies.discrete`)."""

    def __init__(self, name: str, version: str, policy: ControlPolicy, spec: PolicySpec):
        self.name, self.version, self.spec, self._policy = name, version, spec, policy

    def infer(self, asked: Sequence[PolicyRequest]) -> list[np.ndarray]:
        return [each.action for each in _acted(self._policy, [make_observation(one) for one in asked])]

    def forget(self, session: str) -> None:
        """It remembers nothing."""


class Speaker:
    """A language model that says actions in the words of its task.

    Args:
        task: has `add_spoken_state` and `understood` (tasks/manipulation.py).
    """

    def __init__(self, name: str, version: str, policy: Any, spec: PolicySpec, task: Any):
        self.name, self.version, self.spec, self._policy, self._task = name, version, spec, policy, task

    def infer(self, asked: Sequence[PolicyRequest]) -> list[np.ndarray]:
        """Raises UserError where the words are no action; of several asked at once, for all of them."""
        decisions = _acted(self._policy, [self._task.add_spoken_state(make_observation(one)) for one in asked])
        chunks = [self._task.understood(each.action) for each in decisions]
        for chunk, decision in zip(chunks, decisions, strict=True):
            if chunk is None:
                raise UserError(f"the policy said no action, but {decision.action[:80]!r}")
        return chunks

    def forget(self, session: str) -> None:
        """It remembers nothing."""


def make_observation(asked: PolicyRequest) -> Observation:
    """As the toolkit's robots show it: pictures, then the instruction, and the state."""
    pictures = (Image.fromarray(np.ascontiguousarray(picture)) for picture in asked.images.values())
    return Observation((*pictures, asked.task), np.array(asked.state, np.float32))


def driver_spec(policy: ControlPolicy, about: Any, hz: float) -> PolicySpec:
    """What the policy says of itself; the rest from `about` the task's robots, where there is one
    (robot/workers.py)."""
    shape = policy.shape
    units = shape.units or (about.controls.units if about else ("",) * len(shape.low))
    pictures = shape.pictures or ("",) * len(shape.cameras)
    return PolicySpec(
        state=_features(shape.names or (about.names if about else ()), shape.state),
        pictures=tuple(Picture(name, high, wide) for name, (wide, high) in zip(pictures, shape.cameras, strict=True)),
        action=tuple(map(Feature, shape.controls, units, shape.low, shape.high)),
        hz=hz or shape.hz or (about.hz if about else 0.0),
        chunk=shape.chunk,
    )


def speaker_spec(task: Any, example: Observation, hz: float) -> PolicySpec:
    """Of a model that speaks, which itself knows nothing of a robot: all from its task and what its robot shows."""
    about = task.pool.info
    return PolicySpec(
        state=_features(about.names, 0 if example.state is None else len(example.state)),
        pictures=tuple(Picture("", image.height, image.width) for image in example.images),
        action=tuple(map(Feature, about.controls.names, about.controls.units)),
        hz=hz or about.hz,
        chunk=task.chunk,
    )


def _features(names: Sequence[str], size: int) -> tuple[Feature, ...]:
    return tuple(map(Feature, names)) if len(names) == size else (Feature(),) * size


def _acted(policy: Any, observations: Sequence[Observation]) -> list:
    """Greedy decisions, each of an episode of its own that has just begun."""
    nothing = Sample("", Observation(()))
    return policy.act([Episode(nothing, i) for i in range(len(observations))], observations, greedy=True)


# A policy that is replaced, between two inferences, when newer weights lie in its folder.

log = logging.getLogger("vlrl.serving.policies")


class ReloadingPolicy:
    """A servable whose newer versions are loaded and warmed up in a thread of their own, so that no robot waits.

    Args:
        load: the policy as it lies there now; may raise UserError.
        state: changes when other weights lie there.
        every: seconds between two looks.
    """

    def __init__(self, load: Callable[[], Servable], state: Callable[[], object], every: float = 1.0):
        self._load, self._state, self._every = load, state, every
        self._seen = state()
        self._now, self._next, self._said = load(), None, ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._now.name

    @property
    def version(self) -> str:
        return self._now.version

    @property
    def spec(self):
        return self._now.spec

    def infer(self, asked: Sequence[PolicyRequest]) -> list[np.ndarray]:
        newer, self._next = self._next, None
        if newer:
            log.warning("weights %s take the place of %s", newer.version, self._now.version)
            self._now = newer
        return self._now.infer(asked)

    def forget(self, session: str) -> None:
        self._now.forget(session)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> None:
        """Loads what is new, if anything is."""
        try:
            state = self._state()
            if state == self._seen:
                return
            newer = self._load()
            if newer.spec != self._now.spec:
                raise UserError("the newer policy has other inputs or outputs: start a new server for it")
            newer.infer([blank(newer.spec)])
            self._seen, self._next, self._said = state, newer, ""
        except Exception as error:  # half-written, removed meanwhile, or anybody's code: the present one goes on
            if str(error) != self._said:
                log.warning("the newer weights are not taken: %s", " ".join(str(error).split()))
            self._said = str(error)

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self.look()


# Which weights a folder holds.

DIGITS = 16


def source_of(folder: str) -> str:
    """Where the policy of a folder lies now: a run folder stands for its newest checkpoint.

    Raises:
        UserError: an embedded model that there is not.
    """
    return newest_checkpoint(bundled(folder))


def version_of(source: str) -> str:
    """The first digits of the SHA-256 of a folder's weights; of a name on the hub, the name."""
    files = sorted(Path(source).rglob("*.safetensors"))
    if not files:
        return source
    hashed = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            hashed.update(hashlib.file_digest(opened, "sha256").digest())
    return hashed.hexdigest()[:DIGITS]


def state_of(folder: str) -> tuple[object, ...]:
    """Changes when other weights lie there."""
    source = source_of(folder)
    files = sorted(Path(source).rglob("*.safetensors"))
    return source, *((file.name, (at := file.stat()).st_mtime_ns, at.st_size) for file in files)


# lerobot's policies as servables: each observation by itself, with real-time chunking where lerobot has it.


class Lerobot:
    """A policy of lerobot. It begins each inference with the same noise, so equal observations have equal answers.

    Of real-time chunking (arXiv 2506.07339), done by lerobot's own code, only those are capable whose `supports_rtc()`
    says so: of the kinds that are loaded here SmolVLA, pi0 and pi0.5. They give their whole chunk, of which a part
    overlaps with the next; others its first `n_action_steps`. A policy that sees a past sees the present in its place.
    """

    def __init__(self, name: str, version: str, policy: LerobotPolicy, hz: float, about: Any = None):
        self.name, self.version, self._policy = name, version, policy
        self._model, self._before, self._after = policy.model, policy._before, policy._after
        rtc = _prepared(self._model)
        self.spec = spec_of(policy, rtc, hz, about)

    @torch.no_grad()
    def infer(self, asked: Sequence[PolicyRequest]) -> list[np.ndarray]:
        """All of one shape: pictures, prefix and delay."""
        inputs = self._policy.inputs
        self._model.reset()
        self._model.eval()
        batch = self._before(inputs.batch([[make_observation(each)] * inputs.past for each in asked]))
        guided = {} if asked[0].prefix is None else self._guidance(asked)
        device = next(self._model.parameters()).device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)  # lerobot draws from the global generator
            chunk = self._model.predict_action_chunk(batch, **guided)
        return list(self._after(chunk[:, : self.spec.chunk]).float().cpu().numpy())

    def forget(self, session: str) -> None:
        """It remembers nothing."""

    def _guidance(self, asked: Sequence[PolicyRequest]) -> dict[str, Any]:
        horizon = self._model.config.rtc_config.execution_horizon
        prefix = torch.from_numpy(np.stack([each.prefix[:horizon] for each in asked]))
        return {"prev_chunk_left_over": self._as_the_model_has_it(prefix), "inference_delay": asked[0].delay}

    def _as_the_model_has_it(self, prefix: Tensor) -> Tensor:
        """Actions [B, P, A] in physical units -> as the network gives them; after the observation was processed."""
        from lerobot.policies.rtc import reanchor_relative_rtc_prefix
        from lerobot.processor import (
            NormalizerProcessorStep,
            RelativeActionsProcessorStep,
            TransitionKey,
            create_transition,
        )

        steps, device = self._before.steps, next(self._model.parameters()).device
        normalizer = next((each for each in steps if isinstance(each, NormalizerProcessorStep)), None)
        relative = next((s for s in steps if isinstance(s, RelativeActionsProcessorStep) and s.enabled), None)
        if relative is not None:
            states = relative.get_cached_state()
            anchored = [
                reanchor_relative_rtc_prefix(one, state, relative, normalizer, device)
                for one, state in zip(prefix, states, strict=True)
            ]
            return torch.stack([each.reshape(prefix.shape[1:]) for each in anchored])
        transition = create_transition(action=prefix.to(device))
        return (normalizer(transition) if normalizer else transition)[TransitionKey.ACTION]


def _prepared(model: Any) -> bool:
    """Switches real-time chunking on where the policy is capable of it, as lerobot's rollout does."""
    if not getattr(model, "supports_rtc", bool)():
        return False
    from lerobot.policies.rtc import RTCConfig

    model.config.rtc_config = getattr(model.config, "rtc_config", None) or RTCConfig()
    model.init_rtc_processor()
    return True


def spec_of(policy: LerobotPolicy, rtc: bool, hz: float, about: Any) -> PolicySpec:
    """What its configuration says; names of the state and the rate, which it does not say, from `about` the robots.

    Raises:
        UserError: it sees states of several sizes.
    """
    config, inputs = policy.model.config, policy.inputs
    sizes = set(inputs.states.values()) or {0}
    if len(sizes) > 1:
        raise UserError(f"--policy: it sees states of {sorted(sizes)} numbers, but a robot has one state")
    (size,), width = sizes, config.output_features["action"].shape[0]
    named = list(getattr(config, "action_feature_names", None) or ())
    states = about.names if about and len(about.names) == size else ("",) * size
    actions = named if len(named) == width else ("",) * width
    units = ("",) * width
    if about and len(about.controls) == width:
        actions, units = about.controls.names, about.controls.units
    return PolicySpec(
        state=tuple(map(Feature, states)),
        pictures=tuple(_picture(key, each) for key, each in inputs.cameras.items()),
        action=tuple(map(Feature, actions, units)),
        hz=hz or (about.hz if about else 0.0),
        chunk=int(config.chunk_size if rtc else config.n_action_steps),
        rtc=rtc,
    )


def _picture(key: str, size: tuple[int, int] | None) -> Picture:
    width, height = size or (0, 0)
    return Picture(key.removeprefix("observation.images.").removeprefix("observation."), height, width)


# A residual policy as a servable: it remembers where each client stands in the base's chunk.


class Corrector:
    """A base's chunk and its corrections (`vlrl.policies.residual`), greedily, some ticks an answer.

    What was answered counts as carried out: the next answer of an episode goes on in the base's chunk.
    """

    def __init__(self, name: str, version: str, policy: ResidualPolicy, spec: PolicySpec):
        self.name, self.version, self.spec, self._policy = name, version, spec, policy
        self._episodes: dict[str, Episode] = {}  # of each session, with its last turn alone

    def infer(self, asked: Sequence[PolicyRequest]) -> list[np.ndarray]:
        episodes, observations = [self._episode(one) for one in asked], [make_observation(one) for one in asked]
        decisions = self._policy.act(episodes, observations, greedy=True)
        for episode, observation, decision in zip(episodes, observations, decisions, strict=True):
            episode.turns[:] = [Turn(observation, decision, Step(observation))]
        return [decision.action for decision in decisions]

    def forget(self, session: str) -> None:
        self._episodes.pop(session, None)

    def _episode(self, asked: PolicyRequest) -> Episode:
        """The session's episode, a new one where its number has changed."""
        known = self._episodes.get(asked.session)
        if known is None or known.group != asked.episode:
            known = self._episodes[asked.session] = Episode(Sample("", Observation(())), asked.episode)
        return known


# A reward model as a servable.


class RewardServer:
    """A reward model behind `vlrl serve` (`vlrl.serving.protocol.Servable`): its action is the probability of
    success."""

    name = "reward model"

    def __init__(self, model: reward_classifier.RewardModel, version: str):
        self.model, self.version, shape = model, version, model.shape
        self.spec = PolicySpec(
            tuple(Feature(name) for name in shape.names),
            tuple(Picture(name, height, width) for name, width, height in shape.cameras),
            (Feature("success probability", ""),),
            hz=0.0,
            chunk=1,
        )

    def infer(self, asked: Sequence[PolicyRequest]) -> list[np.ndarray]:
        """One chunk float32 [1, 1] for each observation.

        Raises:
            UserError: a picture is missing or of another size.
        """
        pixels = [
            torch.stack([reward_classifier.pixels_of(_read_picture(each, *camera)) for each in asked])
            for camera in self.model.shape.cameras
        ]
        state = torch.from_numpy(np.stack([np.asarray(each.state, np.float32) for each in asked]))
        return [np.float32([[value]]) for value in self.model.probability(pixels, state).tolist()]

    def forget(self, session: str) -> None:
        """It remembers nobody."""


def reward_server(folder: str | Path) -> RewardServer:
    """The reward model of a folder, to be served.

    Raises:
        UserError: the folder holds something else.
    """
    model = reward_classifier.reward_model_load(folder)
    digest = hashlib.sha256((Path(folder) / "model.safetensors").read_bytes()).hexdigest()
    return RewardServer(model, digest[:16])


def _read_picture(asked: PolicyRequest, name: str, width: int, height: int) -> np.ndarray:
    picture = asked.images.get(name)
    if picture is None or picture.shape != (height, width, 3):
        size = "none" if picture is None else f"{picture.shape[1]}x{picture.shape[0]}"
        raise UserError(f"picture {name}: {size}; the reward model sees {width}x{height}")
    return picture


# From a folder to a policy that can be served.

# they have a `shape`
DRIVING = (
    ControlPolicy, ActorPolicy, ResidualPolicy, CorrectedPolicy, FlowPolicy, SteeredPolicy, GuidedPolicy, ArsqPolicy,
    EncodedPolicy,
)  # fmt: skip


def servable(folder: str, config: Config | None = None, *, hz: float = 0.0, device: str | None = None) -> Servable:
    """The policy of a folder, a run folder (its newest checkpoint), a bundled name or a name on the hub.

    Args:
        config: of a run, whose task says what the policy does not say of itself: names, units, rate, the words of
            its actions. None: that of the run folder, where there is one and it is needed.
        hz: actions a second, above what the policy or the task says; 0: what they say.

    Raises:
        UserError: no such policy, one that does not drive robots, or one whose actions need a task.
    """
    source = source_of(folder)
    run_config = config or _of_run(folder)
    section = run_config.policy if run_config else PolicySection()
    if described(source).get("model_type") == reward_classifier.FAMILY:
        return reward_server(source)
    policy = load_policy(section.model_copy(update={"model": source}), device=device)
    name, version = Path(folder).name, version_of(source)
    if isinstance(policy, DRIVING):
        known = config or (None if policy.shape.hz else run_config)
        kind = Corrector if isinstance(policy, ResidualPolicy) else Driver
        return kind(name, version, policy, driver_spec(policy, _find_robot_info(known, policy), hz))
    if isinstance(policy, LerobotPolicy):
        return Lerobot(name, version, policy, hz, _find_robot_info(config, policy))
    return _speaker(name, version, policy, run_config, hz)


def _of_run(folder: str) -> Config | None:
    """The configuration that `vlrl train` left in its folder, of which a checkpoint may be named; None of others'."""
    for place in (Path(folder), *Path(folder).parents[:2]):
        if (place / "config.yaml").is_file() and (place == Path(folder) or (place / "checkpoints").is_dir()):
            return load_config(place / "config.yaml") if is_training_config(place / "config.yaml") else None
    return None


def _find_robot_info(config: Config | None, policy: Any) -> Any:
    """What the task's robots are; None without a task, or of one without robots."""
    if config is None:
        return None
    task = registry.make_task(config)
    if not isinstance(task, RobotTask):
        return None
    try:
        task.fits(policy)
        return task.pool.info
    finally:
        task.close()


def _speaker(name: str, version: str, policy: Any, config: Config | None, hz: float) -> Speaker:
    task = registry.make_task(config) if config else None
    if not isinstance(task, RobotTask) or not task.speech:
        raise UserError(
            f"--policy {name}: a language model needs a task that says the words of its actions: --config RUN.yaml "
            "with a task `manipulation` and task.speech"
        )
    try:
        environment = task.environment(task.samples("test")[0])
        try:
            return Speaker(name, version, policy, speaker_spec(task, environment.reset(), hz), task)
        finally:
            environment.close()
    finally:
        task.close()


# `vlrl serve`: a policy behind a port (docs/serve.md).


def main(options: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM, then ends in order: 0.

    Args:
        options: policy, config, hz, host, port, token_file, new_token, tls_cert, tls_key, watch, max_clients,
            max_batch, openpi_key; None where one is not given.

    Raises:
        UserError: an option cannot be used, or the policy cannot be served.
    """
    if options.new_token:
        new_token(Path(options.new_token))
        print(f"a new token is in {options.new_token}: give it as --token-file, here and to the robots")
        return 0
    if not options.policy:
        raise UserError("--policy: a folder, a run folder, a bundled name (embedded_push) or a name on the hub")
    door, keys = _door(options), keys_of(options.openpi_key or ())
    limits = Limits(clients=options.max_clients or Limits.clients, batch=options.max_batch or Limits.batch)
    logging.basicConfig(format="vlrl: %(message)s")
    config = load_config(options.config) if options.config else None

    def load() -> Servable:
        return servable(options.policy, config, hz=options.hz or 0.0)

    if not options.watch:
        return asyncio.run(_serve(load(), door, limits, keys))
    with contextlib.closing(ReloadingPolicy(load, lambda: state_of(options.policy))) as watched:
        return asyncio.run(_serve(watched, door, limits, keys))


def _door(options: argparse.Namespace) -> Door:
    paths = (Path(file) if file else None for file in (options.tls_cert, options.tls_key))
    token = token_in(Path(options.token_file)) if options.token_file else None
    return Door(options.host, options.port, token, *paths)


def keys_of(given: Sequence[str]) -> Keys:
    """openpi's keys from PART=KEY; a part is `state` (several keys joined by +), `task` or a picture's name.

    Raises:
        UserError: one is not of this form.
    """
    parts = [text.partition("=") for text in given]
    wrong = [text for text, (part, _, key) in zip(given, parts, strict=True) if not part or not key]
    if wrong:
        raise UserError(f"--openpi-key {wrong[0]}: write PART=KEY, for example state=observation/joint_position")
    named = {part: key for part, _, key in parts}
    state, task = named.pop("state", None), named.pop("task", Keys.task)
    return Keys(tuple(state.split("+")) if state else Keys.state, task, named)


async def _serve(policy: Servable, door: Door, limits: Limits, keys: Keys) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        for each in signals:  # a second one ends at once
            loop.remove_signal_handler(each)
        stop.set()

    for each in signals:
        loop.add_signal_handler(each, end)

    def ready(url: str) -> None:
        spec, clear = policy.spec, not is_loopback(door.host) and door.cert is None
        takes = f"{len(spec.state)} numbers, {len(spec.pictures)} pictures"
        gives = f"{spec.chunk} x {len(spec.action)}" + (f" at {spec.hz:g} Hz" if spec.hz else "")
        print(
            f"serving {policy.name} {policy.version} ({takes} -> {gives}) at {url}" + ", not encrypted" * clear,
            flush=True,
        )

    await run(policy, door, limits, stop, ready, keys)
    return 0
