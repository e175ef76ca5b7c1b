"""lerobot's policies in training (SmolVLA, pi0, pi0.5, diffusion, ACT): noise in each step gives chunks a probability.

lerobot prepares, embeds and denoises; only its loop over steps is another one here. Noise goes into the numbers that
the robot carries out, the first `n_action_steps` ticks of its own controls. The rest of a chunk, padding and ticks that
are thrown away, is denoised without noise: it follows from those numbers, the first noise and the weights, so that the
density of the carried-out numbers' path is exact and has no part that nothing depends on.

Flows take their stochastic form (`vlrl.policies.flow.sde_law`). Diffusion takes DDPM's posterior, DDIM with eta 1 the
same, with deviations of at least `scale` (DPPO, arXiv 2409.00588). ACT's chunk is the mean of one step of deviation
`scale`, which is not learned: lerobot's folders have no place for it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from vlrl.policies import LEROBOT_FLOWS
from vlrl.policies.discrete import DiscreteShape, Level
from vlrl.policies.flow import SCALE, gaussian, sde_law, to_denoising_level
from vlrl.policies.generation import normals
from vlrl.policies.lerobot import LerobotPolicy, adapt_lerobot
from vlrl.policies.robot_common import ScoredPolicy
from vlrl.types import Decision, Episode, Evaluation, Observation, Sample, UserError, first_line

Field = Callable[[Tensor, Tensor], Tensor]  # places [B, K, D] and lerobot's times [B] -> velocities to noise [B, K, D]
OTHERS = ("act", "diffusion")  # kinds that are trained here and no flows
_LOCK = threading.Lock()  # lerobot's integrator is one for all threads
Loop = Callable[[Field, Tensor, int], Tensor]  # a field, noise [B, K, D], steps -> a chunk [B, K, D]


def integrate_by(model: Any, batch: Mapping[str, Any], noise: Tensor, loop: Loop) -> Tensor:
    """The chunk [B, K, A] that lerobot's policy makes with `loop` in its integrator's place.

    With gradient where that is enabled; in the loop itself pi0 forbids it.
    """
    module: Any = sys.modules[type(model.model).__module__]
    with _LOCK:
        original = module.euler_integrate
        module.euler_integrate = lambda field, start, steps, **_: loop(field, start, steps)
        try:
            # without the no_grad that it is decorated by
            return type(model).predict_action_chunk.__wrapped__(model, dict(batch), noise=noise)
        finally:
            module.euler_integrate = original


def denoise(
    field: Field, noise: Tensor, steps: int, choose: Callable[[int, Tensor, Tensor], Tensor], size: tuple[int, int],
    scale: float,
) -> Tensor:  # fmt: skip
    """A chunk [B, K, D] whose first R ticks' first A numbers take after each step what `choose` says.

    Args:
        choose: the step's number, means and standard deviations [B, R, A] -> places [B, R, A].
        size: R and A.
    """
    (ticks, controls), place = size, noise
    for step in range(steps):
        time = torch.full((len(place),), step / steps, device=place.device)
        velocity = -field(place, 1 - time)
        mean, std = sde_law(place[:, :ticks, :controls], velocity[:, :ticks, :controls], time, steps, scale)
        moved = place + velocity / steps
        first = torch.cat([choose(step, mean, std), moved[:, :ticks, controls:]], 2)
        place = torch.cat([first, moved[:, ticks:]], 1)
    return place


# lerobot's diffusion: the laws of its denoising steps.


def diffusion_law(scheduler: Any, output: Tensor, place: Tensor, time: int) -> tuple[Tensor, Tensor, float]:
    """The mean place after a step with noise, the place after one without, and the noise's standard deviation.

    Args:
        scheduler: diffusers' DDPM or DDIM, its steps set.
        output: of the network at places [B, K, D], noise or clean chunks, as the scheduler's `prediction_type` says.
        time: one of the scheduler's.
    """
    settings = scheduler.config
    following = time - settings.num_train_timesteps // scheduler.num_inference_steps
    kept = float(scheduler.alphas_cumprod[time])
    after = float(scheduler.alphas_cumprod[following]) if following >= 0 else 1.0
    predicts_noise = settings.prediction_type == "epsilon"
    clean = (place - (1 - kept) ** 0.5 * output) / kept**0.5 if predicts_noise else output
    bounded = clean.clamp(-settings.clip_sample_range, settings.clip_sample_range) if settings.clip_sample else clean
    # DDIM keeps the noise that the network sees, DDPM that of the bounded chunk
    noise = (place - kept**0.5 * (clean if type(scheduler).__name__ == "DDIMScheduler" else bounded)) / (
        1 - kept
    ) ** 0.5
    variance = (1 - after) / (1 - kept) * (1 - kept / after)
    middle = after**0.5 * bounded
    return middle + (1 - after - variance) ** 0.5 * noise, middle + (1 - after) ** 0.5 * noise, variance**0.5


def diffuse(
    diffusion: Any, condition: Tensor, noise: Tensor, choose: Callable[[int, Tensor, Tensor], Tensor],
    size: tuple[int, int], scale: float,
) -> Tensor:  # fmt: skip
    """As `denoise`, of lerobot's diffusion model and what it makes of observations, [B, C]."""
    (ticks, _), place, scheduler = size, noise, diffusion.noise_scheduler
    scheduler.set_timesteps(diffusion.num_inference_steps)
    for step, time in enumerate(scheduler.timesteps.tolist()):
        times = torch.full((len(place),), time, dtype=torch.long, device=place.device)
        output = diffusion.unet(place, times, global_cond=condition)
        mean, still, std = diffusion_law(scheduler, output, place, time)
        chosen = choose(step, mean[:, :ticks], torch.full_like(mean[:, :ticks], max(std, scale)))
        place = torch.cat([chosen, still[:, ticks:]], 1)
    return place


def make_chunk(
    model: Any, batch: Mapping[str, Any], noise: Tensor, choose: Callable[[int, Tensor, Tensor], Tensor],
    size: tuple[int, int], scale: float,
) -> Tensor:  # fmt: skip
    """The chunk [B, K, D] of lerobot's policy, its own loop replaced by one that `choose`s (`denoise`), with gradient
    where that is enabled."""
    ticks = size[0]
    if model.config.type in LEROBOT_FLOWS:
        grad = torch.is_grad_enabled()

        def loop(field: Field, start: Tensor, steps: int) -> Tensor:
            with torch.set_grad_enabled(grad):
                return denoise(field, start, steps, choose, size, scale)

        return integrate_by(model, batch, noise, loop)
    model.reset()  # a diffusion policy reads the batch where it remembers nothing
    model.eval()  # dropout and random crops would give a chunk another density each time
    predict = type(model).predict_action_chunk.__wrapped__  # without the no_grad that it is decorated by
    if model.config.type == "act":
        mean = predict(model, dict(batch))
        first = choose(0, mean[:, :ticks], torch.full_like(mean[:, :ticks], scale))
        return torch.cat([first, mean[:, ticks:]], 1)
    diffusion = model.diffusion
    with _LOCK:
        diffusion.conditional_sample = lambda count, global_cond, noise: diffuse(
            diffusion, global_cond, noise, choose, size, scale
        )
        try:
            return predict(model, dict(batch), noise=noise)
        finally:
            del diffusion.conditional_sample


class ChunkScorer(nn.Module):
    """Log-densities and entropies [B, N, R, A] of the N denoising steps of chunks: what is trained and may be wrapped.

    Args:
        size: R ticks that are carried out, and A controls.
    """

    def __init__(self, model: Any, size: tuple[int, int], scale: float):
        super().__init__()
        self.model, self.size, self.scale = model, size, scale

    def forward(self, batch: Mapping[str, Any], noise: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
        """batch: lerobot's; noise: float32 [B, K, D]; path: float32 [B, N, R, A], the places after each step."""
        laws: list[tuple[Tensor, Tensor]] = []

        def choose(step: int, mean: Tensor, std: Tensor) -> Tensor:
            laws.append(gaussian(path[:, step], mean, std))
            return path[:, step]

        make_chunk(self.model, batch, noise, choose, self.size, self.scale)
        logprobs, entropy = zip(*laws, strict=True)
        return torch.stack(logprobs, 1), torch.stack(entropy, 1)


@dataclass(frozen=True, eq=False)
class ChunkInputs:
    """A decision that was sampled, or is to be imitated."""

    observations: tuple[Observation, ...]
    noise: Tensor  # float32 [K, D]; of one to imitate the chunk itself, [K, A], physical
    path: Tensor | None = None  # float32 [N, R, A]; None: to imitate


class LerobotFlowPolicy(ScoredPolicy, LerobotPolicy):
    """The policy (`vlrl.types.Policy`). Greedy decisions are lerobot's own, without noise in the steps.

    Args:
        model, before, after: lerobot's policy, its pre- and its post-processor.
        scale: of the noise in each denoising step (`vlrl.policies.flow.sde_law`), in normalized controls.
        level: what log-probabilities are of, as `vlrl.policies.flow.FlowPolicy`.
    """

    def __init__(
        self, model: Any, before: Any, after: Any, *, scale: float = SCALE, level: Level = "chunk", seed: int = 0
    ):
        super().__init__(model, before, after, seed=seed)
        self.level, self.generator = level, torch.Generator().manual_seed(seed)
        if model.config.type in (
            "pi0",
            "pi05",
        ):  # lerobot keeps no graph of what pi0's language model makes of a prompt
            model.model.paligemma_with_expert.paligemma.requires_grad_(False)
        config, controls = model.config, int(model.config.action_feature.shape[0])
        self._chunk, self.steps = {
            "diffusion": lambda: ((int(config.horizon), controls), int(model.diffusion.num_inference_steps)),
            "act": lambda: ((int(config.chunk_size), controls), 1),
            "smolvla": lambda: ((int(config.chunk_size), int(config.max_action_dim)), int(config.num_steps)),
        }.get(config.type, lambda: ((int(config.chunk_size), int(config.max_action_dim)), config.num_inference_steps))()
        self.scorer = ChunkScorer(model, (self._steps, controls), scale)

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One decision for each observation, float32 [R, A] in physical units.

        Raises:
            UserError: the robot shows something else than the policy was made for.
        """
        if greedy:
            return super().act(episodes, observations, greedy)
        histories = [tuple(self.inputs.select_observations(*each)) for each in zip(episodes, observations, strict=True)]
        return self._sample(episodes, histories)

    @torch.no_grad()
    def _sample(self, episodes: Sequence[Episode], histories: Sequence[tuple[Observation, ...]]) -> list[Decision]:
        self.model.eval()
        ticks, controls = size = self.scorer.size
        count, steps = len(histories), self.steps
        sizes = [math.prod(self._chunk), steps * ticks * controls]
        normal = torch.from_numpy(normals(episodes, (sum(sizes),), self.generator)).to(self.device)
        noise, later = normal.split(sizes, 1)
        noise, later = noise.reshape(count, *self._chunk), later.reshape(count, steps, ticks, controls)
        path: list[Tensor] = []
        laws: list[tuple[Tensor, Tensor]] = []

        def choose(step: int, mean: Tensor, std: Tensor) -> Tensor:
            path.append(mean + std * later[:, step])
            laws.append(gaussian(path[-1], mean, std))
            return path[-1]

        batch = self._before(self.inputs.batch(histories))
        chunk = make_chunk(self.model, batch, noise, choose, size, self.scorer.scale)
        logprobs, entropy = (self._levelled(torch.stack(part, 1)).cpu() for part in zip(*laws, strict=True))
        actions = self._after(chunk[:, :ticks]).float().cpu().numpy()
        places, noise = torch.stack(path, 1).cpu(), noise.cpu()
        return [
            Decision(actions[b], logprobs[b], entropy[b], False, inputs=ChunkInputs(histories[b], noise[b], places[b]))
            for b in range(count)
        ]

    def _levelled(self, values: Tensor) -> Tensor:
        return to_denoising_level(values, self.level)

    def check(self, sample: Sample) -> None:
        """Nothing that a sample could show beforehand."""

    def _evaluate(self, scorer: nn.Module, decisions: Sequence[Decision]) -> Evaluation:
        frames = self.inputs.batch([decision.inputs.observations for decision in decisions])
        if decisions[0].inputs.path is None:
            return self._imitation(frames | {"action": torch.stack([decision.inputs.noise for decision in decisions])})
        noise = torch.stack([decision.inputs.noise for decision in decisions]).to(self.device)
        path = torch.stack([decision.inputs.path for decision in decisions]).to(self.device)
        logprobs, entropy = map(self._levelled, scorer(self._before(frames), noise, path))
        return Evaluation(logprobs, entropy, torch.ones_like(logprobs, dtype=torch.bool))

    @torch.no_grad()
    def features(self, decisions: Sequence[Decision]) -> Tensor:
        """What the expert makes of each prompt at the middle of all noise, its ticks' mean, float32 [B, hidden]."""
        return self.encode([decision.inputs.observations for decision in decisions])

    @torch.no_grad()
    def encode(self, histories: Sequence[Sequence[Observation]]) -> Tensor:
        """The same of observations [B, past].

        Of diffusion what conditions its network, of ACT the mean of its encoder's tokens.
        """
        hidden: list[Tensor] = []
        frames = self.inputs.batch(histories)
        if self.model.config.type in OTHERS:
            return self._encode_other(self._before(frames))
        hook = self.model.model.action_out_proj.register_forward_pre_hook(lambda _, args: hidden.append(args[0]))

        def loop(field: Field, start: Tensor, steps: int) -> Tensor:
            field(start, torch.ones(len(start), device=start.device))
            return start

        try:
            middle = torch.zeros((len(histories), *self._chunk), device=self.device)
            integrate_by(self.model, self._before(frames), middle, loop)
        finally:
            hook.remove()
        return hidden[0].float().mean(1)

    def _encode_other(self, batch: dict[str, Any]) -> Tensor:
        outputs: list[Tensor] = []
        part = self.model.model.encoder if self.model.config.type == "act" else self.model.diffusion.unet
        is_act = self.model.config.type == "act"

        def keep(_: Any, args: Any, named: dict[str, Any], output: Any) -> None:
            outputs.append(output.mean(0) if is_act else named["global_cond"])

        hook = part.register_forward_hook(keep, with_kwargs=True)
        try:
            noise = torch.zeros((1, *self._chunk), device=self.device)
            count = len(next(value for value in batch.values() if isinstance(value, Tensor)))
            make_chunk(
                self.model, batch, noise.expand(count, -1, -1), lambda step, mean, _: mean, self.scorer.size, 0.0
            )
        finally:
            hook.remove()
        return outputs[0].float()

    # -- imitation ---------------------------------------------------------------------------------------------------

    def decide(
        self, observation: Observation, action: np.ndarray, key: str | None = None, before: Sequence[Any] = ()
    ) -> Decision:
        """A given chunk [K, A], physical, as a decision to imitate."""
        values, size = np.asarray(action, np.float32), (self._chunk[0], self.scorer.size[1])
        if values.shape != size:
            raise UserError(
                f"{key or 'a decision'}: an action of shape {list(values.shape)}; the policy gives {list(size)}"
            )
        nothing = torch.zeros(values.size)
        return Decision(
            values, nothing, nothing, False, inputs=ChunkInputs((observation,) * self.inputs.past, torch.tensor(values))
        )

    def _imitation(self, frames: Mapping[str, Any]) -> Evaluation:
        """Minus the errors [B, K*A] that lerobot's loss is the mean of, at noise and times drawn anew."""
        batch = self._before(frames)
        if self.model.config.type in OTHERS:
            errors = {"act": _act_errors, "diffusion": _diffusion_errors}[self.model.config.type]
            off = errors(self.model, batch, self.generator).flatten(1)
            return Evaluation(-off, torch.zeros_like(off), torch.ones_like(off, dtype=torch.bool))
        count, ticks, controls = batch["action"].shape
        width = self._chunk[1]
        padded = torch.nn.functional.pad(batch["action"], (0, width - controls))
        noise = torch.randn((count, ticks, width), generator=self.generator).to(self.device)
        # Beta(1.5, 1), as lerobot: more of what is nearly noise
        time = (torch.rand(count, generator=self.generator) ** (1 / 1.5) * 0.999 + 0.001).to(self.device)
        off: list[Tensor] = []

        def loop(field: Field, start: Tensor, steps: int) -> Tensor:
            with torch.enable_grad():
                velocity = field(torch.lerp(padded, noise, time[:, None, None]), time)
                off.append((noise - padded - velocity)[..., :controls].square().flatten(1))
            return start

        integrate_by(self.model, batch, noise, loop)
        return Evaluation(-off[0], torch.zeros_like(off[0]), torch.ones_like(off[0], dtype=torch.bool))

    # -- what is kept ------------------------------------------------------------------------------------------------

    def load_weights(self, folder: Path) -> None:
        """Weights that `save` wrote into the present model.

        Raises:
            UserError: the folder holds none, or another network's.
        """
        try:
            load_model(self.model, str(folder / "model.safetensors"))  # weights may be tied
        except (OSError, SafetensorError, RuntimeError) as error:
            raise UserError(f"policy.model: {folder}: {first_line(error)}") from None


def _act_errors(model: Any, batch: dict[str, Any], generator: torch.Generator) -> Tensor:
    """[B, K, A]: distances to the chunk, and to each number its share of the latent's divergence."""
    model.train()
    views = {"observation.images": [batch[key] for key in model.config.image_features]} if _images(model) else {}
    padding = torch.zeros(batch["action"].shape[:2], dtype=torch.bool, device=batch["action"].device)
    chunk, (mean, log_variance) = model.model(batch | views | {"action_is_pad": padding})
    off = (chunk - batch["action"]).abs()
    if mean is None:
        return off
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
    return off + model.config.kl_weight * divergence[:, None, None]


def _diffusion_errors(model: Any, batch: dict[str, Any], generator: torch.Generator) -> Tensor:
    """[B, K, A]: squared, of the noise or the chunk that the network is to find."""
    diffusion, chunk = model.diffusion, batch["action"]
    model.train()
    if _images(model):
        batch = batch | {"observation.images": torch.stack([batch[key] for key in model.config.image_features], -4)}
    noise = torch.randn(chunk.shape, generator=generator).to(chunk.device)
    steps = diffusion.noise_scheduler.config.num_train_timesteps
    times = torch.randint(steps, (len(chunk),), generator=generator).to(chunk.device)
    condition = diffusion._prepare_global_conditioning(batch)
    output = diffusion.unet(diffusion.noise_scheduler.add_noise(chunk, noise, times), times, global_cond=condition)
    return (output - (noise if model.config.prediction_type == "epsilon" else chunk)).square()


def _images(model: Any) -> bool:
    return bool(model.config.image_features)


# A small SmolVLA to begin with, where no pretrained one is at hand: lerobot's own class with every size shrunk.

PATCH = 8  # pixels; four patches become one token
TINY: dict[str, Any] = {
    "num_steps": 5,
    "freeze_vision_encoder": False,
    "train_expert_only": False,
    "expert_width_multiplier": 1.0,
}
SPECIAL = {
    "image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}  # fmt: skip


def make_smolvla(
    shape: DiscreteShape,
    states: np.ndarray,
    actions: np.ndarray,
    vlm: Path,
    words: Path,
    seed: int,
    **settings: Any,
) -> LerobotFlowPolicy:
    """An untrained SmolVLA for what a robot shows and takes; its weights are drawn anew.

    Args:
        shape: its state, cameras, controls and chunk; `hidden` and `layers` are the language model's.
        states, actions: float32 [M, S] and [M, A], to normalize by.
        vlm: a folder to put the language model's configuration and processor into, which lerobot reads again.
        words: a folder with the tokenizer to take.
        settings: of lerobot's `SmolVLAConfig`, in place of those that are chosen here.

    Raises:
        UserError: lerobot is missing, or the robot shows no picture.
    """
    try:
        from lerobot.configs.types import FeatureType, PolicyFeature
        from lerobot.policies.factory import make_pre_post_processors
        from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
        from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
    except ImportError as error:
        raise UserError(f"policy.kind: needs lerobot: pip install 'vlrl[robot]' ({first_line(error)})") from None
    if not shape.cameras:
        raise UserError("policy.kind: smolvla sees pictures, and this robot shows none: give it a camera, or take flow")
    side = -(-max(max(size) for size in shape.cameras) // (2 * PATCH)) * 2 * PATCH
    sizes = {"hidden_size": shape.hidden, "intermediate_size": 2 * shape.hidden, "num_hidden_layers": shape.layers}
    heads = {"num_attention_heads": 4, "head_dim": shape.hidden // 4, "num_key_value_heads": 2}
    vision = {**sizes, "num_attention_heads": 4, "image_size": side, "patch_size": PATCH}
    write_vlm(vlm, words, {"model_type": "llama", **sizes, **heads}, vision, scale=2)
    features, controls = _features(shape), len(shape.low)
    chosen: dict[str, Any] = TINY | {
        "max_state_dim": shape.state,
        "max_action_dim": controls,
        "resize_imgs_with_padding": (side, side),
    }
    chosen |= {"chunk_size": shape.chunk, "n_action_steps": shape.chunk}
    adapt_lerobot()
    with contextlib.redirect_stdout(io.StringIO()):
        config = SmolVLAConfig(
            input_features=features, output_features={"action": PolicyFeature(FeatureType.ACTION, (controls,))},
            device="cpu", push_to_hub=False, vlm_model_name=str(vlm), num_vlm_layers=shape.layers, **chosen | settings,
        )  # fmt: skip
        model = SmolVLAPolicy(config)
    stats = {"observation.state": _spread(states), "action": _spread(actions)}
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    return LerobotFlowPolicy(model, before, after, seed=seed)


def _features(shape: DiscreteShape) -> dict[str, Any]:
    """A robot's state and cameras as lerobot describes them; where there is no camera, the state again as that of the
    environment, for ACT and diffusion want one of the two."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    names = shape.pictures or [f"camera{place}" for place in range(1, len(shape.cameras) + 1)]
    features = {"observation.state": PolicyFeature(FeatureType.STATE, (shape.state,))}
    for name, (width, height) in zip(names, shape.cameras, strict=True):
        features[f"observation.images.{name}"] = PolicyFeature(FeatureType.VISUAL, (3, height, width))
    if not names:
        features["observation.environment_state"] = PolicyFeature(FeatureType.ENV, (shape.state,))
    return features


DENOISING_STEPS = 5  # of a small diffusion policy
VISION = {"vision_backbone": "resnet18", "pretrained_backbone_weights": None}


def make_small(
    kind: str, shape: DiscreteShape, states: np.ndarray, actions: np.ndarray, seed: int, **settings: Any
) -> LerobotFlowPolicy:
    """An untrained ACT or diffusion policy of lerobot's, of the shape's `hidden` and `layers`.

    Args:
        kind: `act` or `diffusion`.
        states, actions: float32 [M, S] and [M, A], to normalize by.
        settings: of lerobot's configuration, in place of those that are chosen here.

    Raises:
        UserError: lerobot or diffusers is missing, or a chunk cannot be halved as often as there are layers.
    """
    try:
        from lerobot.configs.types import FeatureType, PolicyFeature
        from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

        if kind == "diffusion":
            importlib.import_module("diffusers")
    except ImportError as error:
        raise UserError(f"policy.kind: needs lerobot: pip install 'vlrl[robot]' ({first_line(error)})") from None
    features, controls = _features(shape), len(shape.low)
    hidden, layers = shape.hidden, shape.layers
    if kind == "act":
        sizes: dict[str, Any] = {
            "chunk_size": shape.chunk, "dim_model": hidden, "n_heads": 4, "dim_feedforward": 2 * hidden,
            "n_encoder_layers": layers, "n_vae_encoder_layers": layers, "latent_dim": 8, "dropout": 0.0,
        }  # fmt: skip
    else:
        sizes: dict[str, Any] = {
            "n_obs_steps": 1, "horizon": shape.chunk, "down_dims": tuple(hidden * 2**i for i in range(layers)),
            "use_group_norm": True, "noise_scheduler_type": "DDIM", "num_inference_steps": DENOISING_STEPS,
            "diffusion_step_embed_dim": hidden, "spatial_softmax_num_keypoints": 16,
        }  # fmt: skip
    sizes |= {"n_action_steps": shape.chunk} | VISION
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            config = make_policy_config(
                kind, input_features=features, device="cpu", push_to_hub=False,
                output_features={"action": PolicyFeature(FeatureType.ACTION, (controls,))}, **sizes | settings,
            )  # fmt: skip
            model = get_policy_class(kind)(config)
        except ValueError as error:
            raise UserError(f"policy.kind: {kind}: {first_line(error)}") from None
    stats = {"observation.state": _spread(states), "action": _spread(actions)}
    if not shape.cameras:
        stats["observation.environment_state"] = stats["observation.state"]
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    return LerobotFlowPolicy(model, before, after, seed=seed)


def _spread(values: np.ndarray) -> dict[str, Tensor]:
    numbers = {"mean": values.mean(0), "std": values.std(0).clip(1e-3), "min": values.min(0), "max": values.max(0)}
    numbers["max"] = np.maximum(numbers["max"], numbers["min"] + 1e-3)
    return {name: torch.tensor(value) for name, value in numbers.items()}


def write_vlm(folder: Path, words: Path, text: dict[str, Any], vision: dict[str, Any], scale: int) -> None:
    """Configuration and processor of a SmolVLM of these sizes, with the tokenizer of the folder `words`.

    Args:
        scale: so many patches of a row become one token.
    """
    from transformers import (
        AutoTokenizer,
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    tokenizer: Any = AutoTokenizer.from_pretrained(words, extra_special_tokens=SPECIAL)
    tokens = (vision["image_size"] // vision["patch_size"] // scale) ** 2
    SmolVLMProcessor(SmolVLMImageProcessor(), tokenizer, SmolVLMVideoProcessor(), image_seq_len=tokens).save_pretrained(
        folder
    )
    SmolVLMConfig(
        image_token_id=tokenizer.convert_tokens_to_ids(SPECIAL["image_token"]), scale_factor=scale,
        text_config={"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id} | text,
        vision_config=vision,
        architectures=["SmolVLMForConditionalGeneration"],
    ).save_pretrained(folder)  # fmt: skip
