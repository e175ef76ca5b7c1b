"""lerobot's policies (ACT, diffusion, SmolVLA, pi0, pi0.5) as `lerobot-train` saves them: to act and be evaluated."""

from __future__ import annotations

import contextlib
import importlib
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from vlrl.decoders import load_json
from vlrl.policies import LEROBOT_FLOWS
from vlrl.system.hub import reach_model
from vlrl.types import Decision, Episode, Evaluation, Observation, Policy, Sample, UserError, first_line

# Observations as lerobot's policies take them.

RESIZES = ("resize_imgs_with_padding", "image_resolution")  # a configuration with one of them takes any pictures


@dataclass(frozen=True)
class LeRobotInputs:
    """What a policy sees. The state goes to each of its states, the k-th picture to its k-th camera."""

    past: int  # observations, the present one included
    states: Mapping[str, int]  # key -> numbers
    cameras: Mapping[str, tuple[int, int] | None]  # key -> width and height; None: any
    timed: bool = False  # whether values have an axis of time, also where `past` is 1

    @classmethod
    def of(cls, config: Any) -> LeRobotInputs:
        """Those of a lerobot policy's configuration."""
        states, cameras = {}, {}
        resizes = any(hasattr(config, name) for name in RESIZES)
        for key, feature in config.input_features.items():
            if feature.type.name in ("STATE", "ENV"):
                states[key] = feature.shape[0]
            elif feature.type.name == "VISUAL" and "empty_camera" not in key:
                cameras[key] = None if resizes else (feature.shape[2], feature.shape[1])
        return cls(int(getattr(config, "n_obs_steps", 1)), states, cameras, config.type == "diffusion")

    def select_observations(self, episode: Episode, shown: Observation) -> list[Observation]:
        """The last `past` observations; before an episode's first there was always the same."""
        turns = episode.turns[max(0, len(episode.turns) - self.past + 1) :]
        history = [*(turn.observation for turn in turns), shown]
        return [history[0]] * (self.past - len(history)) + history

    def batch(self, seen: Sequence[Sequence[Observation]]) -> dict[str, Any]:
        """As lerobot's data loader gives it: values [B, ...], or [B, past, ...] where they are `timed`.

        Raises:
            UserError: the robot shows something else than the policy was made for.
        """
        for observation in (each for past in seen for each in past):
            self._check(observation)
        batch: dict[str, Any] = {"task": [past[-1].text for past in seen]}
        for key in self.states:
            batch[key] = self._stacked([[torch.tensor(observation.state) for observation in past] for past in seen])
        for number, key in enumerate(self.cameras):
            batch[key] = self._stacked([[_pixels(observation.images[number]) for observation in past] for past in seen])
        return batch

    def _check(self, shown: Observation) -> None:
        size, sizes = 0 if shown.state is None else len(shown.state), [image.size for image in shown.images]
        expected = list(self.cameras.values())
        fits = len(sizes) == len(expected) and all(
            want in (None, size) for want, size in zip(expected, sizes, strict=True)
        )
        if not fits or any(size != each for each in self.states.values()):
            raise UserError(
                f"policy.model: made for {_describe_inputs(list(self.states.values()), expected)}, but the robot shows "
                f"{_describe_inputs([size], sizes)}"
            )

    def _stacked(self, values: list[list[Tensor]]) -> Tensor:
        stacked = torch.stack([torch.stack(past) for past in values])
        return stacked if self.past > 1 or self.timed else stacked[:, 0]


def _describe_inputs(states: Sequence[int], cameras: Sequence[tuple[int, int] | None]) -> str:
    pictures = ", ".join("x".join(map(str, size)) if size else "any size" for size in cameras)
    return f"a state of {' and '.join(map(str, states)) or 0} numbers and {len(cameras)} pictures" + (
        f" ({pictures})" if pictures else ""
    )


def _pixels(image: Any) -> Tensor:
    """float32 [3, height, width], 0 to 1."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255


# What a checkpoint of lerobot says of itself, read and judged before lerobot acts on it.
#
# lerobot 0.6.1 imports and calls whatever class a checkpoint's processor files name (`PolicyProcessorPipeline`,
# `subprocess.Popen` included), and some of its models run code from the hub. So only what is named here is loaded.

# Models whose chunk hangs on the observations of one call alone, and that run no code that comes with weights.
TYPES = ("act", "diffusion", "smolvla", "pi0", "pi05")
VLM_FOLDER = "vlm"  # beside one whose language model is no name of the hub: its configuration and processor
# The steps that their processors are made of.
STEPS = (
    "rename_observations_processor", "to_batch_processor", "device_processor", "normalizer_processor",
    "unnormalizer_processor", "tokenizer_processor", "smolvla_new_line_processor", "pi0_new_line_processor",
    "pi05_prepare_state_tokenizer_processor_step", "relative_actions_processor", "absolute_actions_processor",
)  # fmt: skip
PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")


def checkpoint(source: str) -> str:
    """A run folder of `lerobot-train` stands for its last checkpoint; anything else for itself."""
    last = Path(source) / "checkpoints" / "last" / "pretrained_model"
    return str(last) if last.is_dir() else source


def fetched(source: str) -> str:
    """The folder of a checkpoint; one on the hub is brought first, so that what is judged is what is loaded.

    Raises:
        UserError: there is none.
    """
    if Path(source).is_dir():
        return source
    reach_model(source)
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(source, allow_patterns=["*.json", "*.safetensors"])
    except (OSError, ValueError) as error:  # its errors are of these kinds
        raise UserError(f"policy.model: cannot fetch {source}: {str(error).strip().splitlines()[0]}") from None


def check_files(source: str) -> None:
    """Passes a checkpoint's folder whose model and processors are among those above.

    Raises:
        UserError: they are not, or there is none.
    """
    about = _read(source, "config.json")
    kind = about.get("type")
    if kind not in TYPES:
        raise UserError(f"policy.model: {source} is lerobot's {kind!r}; supported are {', '.join(TYPES)}")
    if about.get("use_peft"):
        raise UserError(f"policy.model: {source} is an adapter: merge it into its model first")
    if about.get("temporal_ensemble_coeff") is not None:
        raise UserError(
            f"policy.model: {source} averages over time: set temporal_ensemble_coeff to null in config.json"
        )
    for name in PROCESSORS:
        for step in _steps(_read(source, name)):
            named = step if isinstance(step, dict) else {"class": step}
            called = named.get("registry_name", named.get("class"))
            if "registry_name" not in named or called not in STEPS:
                raise UserError(f"policy.model: {source}/{name} asks for the step {called!r}, which is not loaded here")


def adapt_lerobot() -> None:
    """Lets lerobot 0.6.1's flows run under transformers from 5.6 on, which it does not ask for; again is no change.

    SmolVLA tells a cache how many tokens stay, where it is now told how many go; pi0 tells a mask where its tokens
    stand, which is now seen from the cache. Under older versions numbers are the same.
    """
    from transformers import DynamicCache
    from transformers.masking_utils import create_causal_mask

    class LengthCroppedCache(DynamicCache):
        def crop(self, tokens_to_remove: int) -> None:
            layers: Any = self.layers
            for layer in layers:  # as many stay as lerobot says
                layer.keys, layer.values = layer.keys[:, :, :tokens_to_remove], layer.values[:, :, :tokens_to_remove]

    smolvla: Any = importlib.import_module("lerobot.policies.smolvla.smolvlm_with_expert")
    pi0: Any = importlib.import_module("lerobot.policies.pi_gemma")
    smolvla.DynamicCache = LengthCroppedCache
    pi0.create_causal_mask = lambda *, cache_position=None, **named: create_causal_mask(**named)


def _steps(about: dict[str, Any]) -> list[Any]:
    steps = about.get("steps")
    return steps if isinstance(steps, list) else [steps]


def _read(source: str, name: str) -> dict[str, Any]:
    try:
        about = load_json(Path(source) / name, finite=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"policy.model: cannot read {name} of {source}, which lerobot's policies have: {str(error).splitlines()[0]}"
        ) from None
    if not isinstance(about, dict):
        raise UserError(f"policy.model: {name} of {source} is no JSON object")
    return about


@dataclass(frozen=True, eq=False)
class PlannedChunk:
    """What the policy keeps of its own decision."""

    rest: np.ndarray  # float32 [R, A], for the ticks after it


class LerobotPolicy(Policy):
    """A policy of lerobot (`vlrl.types.Policy`), for acting alone: it cannot say how likely its actions were.

    A decision is float32 [K, A] in physical units: the first `n_action_steps` of the predicted chunk. A policy that
    sees several steps of the past (diffusion) is asked tick by tick, since it must see each tick; it plans anew when
    its plan is carried out, as in lerobot. All of an episode's memory is in its turns, so any episodes may be asked in
    one batch.

    Args:
        model, before, after: lerobot's policy, its pre- and its post-processor.
        seed: of the noise that diffusion and flows begin with.
    """

    def __init__(self, model: Any, before: Any, after: Any, *, seed: int = 0):
        self.model, self._before, self._after, self._seed = model, before, after, seed
        self._draws = np.random.default_rng(seed)
        self.inputs, self._steps = LeRobotInputs.of(model.config), int(model.config.n_action_steps)

    @torch.no_grad()
    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One decision for each observation; log-probabilities and entropies are unknown, so NaN [K].

        Args:
            greedy: noise is the same in every run with equal batches, whatever was asked before.

        Raises:
            UserError: the robot shows something else than the policy was made for.
        """
        plans = [_rest(episode) for episode in episodes]
        rows = [i for i, plan in enumerate(plans) if not len(plan)]
        if rows:
            histories = [self.inputs.select_observations(episodes[i], observations[i]) for i in rows]
            seed = self._seed + len(episodes[rows[0]].turns) if greedy else int(self._draws.integers(2**32))
            for i, plan in zip(rows, self._plan(histories, seed), strict=True):
                plans[i] = plan
        size = 1 if self.inputs.past > 1 else self._steps
        return [_decision(plan[:size], plan[size:]) for plan in plans]

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def save(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """lerobot's layout, which its own commands open; weights keep their types."""
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        self._before.save_pretrained(folder)
        self._after.save_pretrained(folder)
        source = Path(vars(self.model.config).get("vlm_model_name", "/dev/null"))  # pi0's has no name
        if source.is_dir() and source.resolve() != (folder / VLM_FOLDER).resolve():
            shutil.copytree(source, folder / VLM_FOLDER, dirs_exist_ok=True)

    def check(self, sample: Sample) -> None:
        """UserError: what the trainer asks before it begins."""
        self._refuse()

    def evaluate(self, decisions: Sequence[Decision]) -> Evaluation:
        """UserError: there are no likelihoods."""
        self._refuse()

    def reference(self, decisions: Sequence[Decision]) -> Tensor:
        """UserError: there are no likelihoods."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UserError(
            f"policy.model: lerobot's {self.model.config.type!r} cannot be trained by likelihood, for it sees "
            f"{self.inputs.past} steps of the past, and a chunk's end shows one: train it with n_obs_steps 1, or start "
            "from a policy that `vlrl clone` makes"
        )

    def _plan(self, seen: Sequence[Sequence[Observation]], seed: int) -> np.ndarray:
        """Actions float32 [B, n_action_steps, A], physical, after observations [B, past]."""
        self.model.reset()
        self.model.eval()
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)  # lerobot draws from the global generator
            chunk = self.model.predict_action_chunk(self._before(self.inputs.batch(seen)))
        return self._after(chunk[:, : self._steps]).float().cpu().numpy()


def _rest(episode: Episode) -> np.ndarray:
    """What the last decision left for the next ticks."""
    plan = episode.turns[-1].decision.inputs if episode.turns else None
    return plan.rest if isinstance(plan, PlannedChunk) else np.zeros((0, 0), np.float32)


def _decision(action: np.ndarray, rest: np.ndarray) -> Decision:
    unknown = torch.full((len(action),), torch.nan)
    return Decision(np.ascontiguousarray(action), unknown, unknown, False, inputs=PlannedChunk(rest))


def read_lerobot(source: str, device: str) -> tuple[Any, Any, Any]:
    """lerobot's policy, pre- and post-processor of a folder or hub name, or of a run folder of `lerobot-train`.

    Raises:
        UserError: lerobot is missing, or there is no such policy, or it is of a kind that is not loaded.
    """
    source = fetched(checkpoint(source))
    check_files(source)
    try:
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError as error:
        raise UserError(f"policy.model: needs lerobot: pip install 'vlrl[robot]' ({first_line(error)})") from None
    vlm = Path(source) / VLM_FOLDER
    own = [f"--vlm_model_name={vlm}"] if vlm.is_dir() else []
    on = {"device_processor": {"device": device}}
    on |= {"tokenizer_processor": {"tokenizer_name": str(vlm)}} if own else {}
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # lerobot says that it is loading
            config = PreTrainedConfig.from_pretrained(source, cli_overrides=[f"--device={device}", *own])
            if config.type in LEROBOT_FLOWS:
                adapt_lerobot()
            model = get_policy_class(config.type).from_pretrained(source, config=config, strict=True)
            before, after = make_pre_post_processors(config, source, preprocessor_overrides=on)
    except Exception as error:  # lerobot and what it calls raise what they like
        raise UserError(f"policy.model: lerobot cannot load {source}: {first_line(error)}") from None
    return model, before, after


# lerobot's flow and diffusion policies under given noise: what noise steering needs of a policy, no more.

KINDS = ("diffusion", *LEROBOT_FLOWS)  # whose predict_action_chunk takes noise (ActionSelectKwargs)


def noise_size(policy: LerobotPolicy) -> tuple[int, int]:
    """N and M of the noise [B, N, M] of a chunk; M may be above the number of controls (lerobot pads).

    Raises:
        UserError: the policy has no noise, or draws more while it makes a chunk.
    """
    config = policy.model.config
    if config.type not in KINDS:
        raise UserError(f"policy.model: lerobot's {config.type!r} has no noise; with it are {', '.join(KINDS)}")
    if config.type != "diffusion":
        return int(config.chunk_size), int(config.max_action_dim)
    if config.noise_scheduler_type != "DDIM":
        raise UserError(
            f"policy.model: its {config.noise_scheduler_type} draws noise at every step, so that the first does not "
            "decide: set noise_scheduler_type to DDIM, and num_inference_steps, in its config.json"
        )
    return int(config.horizon), int(config.action_feature.shape[0])


@torch.no_grad()
def chunks(
    policy: LerobotPolicy, episodes: Sequence[Episode], observations: Sequence[Observation], noise: np.ndarray
) -> np.ndarray:
    """New chunks float32 [B, K, A] in physical units under noise float32 [B, N, M], as `FlowPolicy.chunks`.

    Raises:
        UserError: the policy cannot, or the robot shows something else than it was made for.
        ValueError: noise of another shape.
    """
    shape = (len(observations), *noise_size(policy))
    if noise.shape != shape:
        raise ValueError(f"noise of shape {list(noise.shape)}; wanted is {list(shape)}")
    histories = [
        policy.inputs.select_observations(episode, observation)
        for episode, observation in zip(episodes, observations, strict=True)
    ]
    policy.model.reset()
    policy.model.eval()
    start = torch.as_tensor(noise, dtype=torch.float32, device=policy.device)
    chunk = policy.model.predict_action_chunk(policy._before(policy.inputs.batch(histories)), noise=start)
    return policy._after(chunk[:, : policy._steps]).float().cpu().numpy()
