"""Memory planner: activations, adapters, prompts and sizes of a run before it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vlrl import registry
from vlrl.decoders import load_json
from vlrl.distributed.world import stays_in_parts
from vlrl.performance.memory import (
    CHUNK,
    FULL,
    MODELS,
    SOURCES,
    MemoryInputs,
    StepCost,
    adapters,
    count_launches,
    is_mixed,
    linears,
    peak,
)
from vlrl.performance.profiling import (
    FAMILIES,
    GPUS,
    Device,
    Geometry,
    Group,
    Parameters,
    Update,
    factors,
    from_config,
    parameters,
)
from vlrl.performance.profiling import step as flops_step
from vlrl.policies import LEROBOT_FLOWS
from vlrl.types import Observation, RobotTask, UserError, Video

if TYPE_CHECKING:
    from vlrl.config import Config

# The model that a configuration names, by its sizes alone: no weights, no torch.

# smallest and largest image in pixels, of the published processors
PIXELS = {"qwen2_vl": (56 * 56, 12845056), "qwen2_5_vl": (56 * 56, 12845056), "qwen3_vl": (65536, 16777216)}


@dataclass(frozen=True)
class Model:
    """pixels: of the smallest and the largest image; folder: where its files are, None where there are none."""

    geometry: Geometry
    source: str
    pixels: tuple[int, int]
    folder: Path | None = None


@dataclass(frozen=True)
class UnknownModel:
    """A folder's model of a type whose sizes are not known: `vlrl.tools.dry_run` makes its passes without numbers."""

    source: str = "its own passes, on tensors without numbers"


CAMERAS = 3  # of lerobot's published bases


@dataclass(frozen=True)
class RobotModel:
    """One of lerobot's flows. folder: where its configuration is; None: lerobot's default of that kind."""

    kind: str
    folder: str | None

    @property
    def source(self) -> str:
        return (
            "config.json"
            if self.folder
            else f"lerobot's default {self.kind} with {CAMERAS} cameras; nothing was downloaded"
        )


def find_robot(name: str) -> RobotModel | None:
    """lerobot's flow in a folder, or of a hub name that begins with its kind; None: something else.

    Raises:
        UserError: a policy of lerobot's that is no flow.
    """
    from vlrl.policies.lerobot import checkpoint
    from vlrl.policies.loading import bundled, described, newest_checkpoint

    source = checkpoint(newest_checkpoint(bundled(name)))
    about = described(source)
    if "type" in about and "model_type" not in about:
        if about["type"] not in LEROBOT_FLOWS:
            raise UserError(f"policy.model: lerobot's {about['type']} is not planned; {', '.join(LEROBOT_FLOWS)} are")
        return RobotModel(about["type"], source)
    kind = re.match(rf"({'|'.join(LEROBOT_FLOWS)})(?![a-z0-9])", name.split("/")[-1].lower())
    return RobotModel(kind[1], None) if kind and not Path(source).exists() else None


def model_of(name: str) -> Model | UnknownModel:
    """A local folder's model, an embedded one, or a published one by its name.

    Raises:
        UserError: no sizes are known of it.
    """
    from vlrl.policies.loading import bundled, newest_checkpoint

    folder = Path(newest_checkpoint(bundled(name)))
    if (folder / "config.json").is_file():
        return _local(folder, name)
    for known, geometry in MODELS.items():
        if name.split("/")[-1].lower().startswith(f"{known.lower()}-"):
            return Model(geometry, f"sizes of {known} built in", PIXELS[geometry.family])
    raise UserError(
        f"policy.model: no config.json in {name!r}, and no sizes built in under that name "
        f"(there are: {', '.join(MODELS)}); download the model's config.json and name its folder"
    )


def _local(folder: Path, name: str) -> Model | UnknownModel:
    config = _read(folder / "config.json")
    if config.get("model_type") not in FAMILIES:
        return UnknownModel()
    try:
        geometry = from_config(config)
    except (KeyError, TypeError) as error:
        raise UserError(f"policy.model: {folder / 'config.json'} lacks a size: {error}") from None
    return Model(geometry, "config.json", _pixels(folder, geometry), folder)


def _pixels(folder: Path, geometry: Geometry) -> tuple[int, int]:
    """Of the folder's image processor; the published one's where it has none."""
    for file, part in (("processor_config.json", "image_processor"), ("preprocessor_config.json", None)):
        if (folder / file).is_file():
            values = _read(folder / file)
            values = values.get(part, {}) if part else values
            size = values.get("size") or {}
            low, high = (
                size.get(new) or values.get(old)
                for new, old in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
            )
            if low and high:
                return low, high
    return PIXELS[geometry.family]


def _read(file: Path) -> dict[str, Any]:
    try:
        read = load_json(file, finite=False)
    except (OSError, ValueError) as error:
        raise UserError(f"policy.model: cannot read {file}: {error}") from None
    if not isinstance(read, dict):
        raise UserError(f"policy.model: {file} is no JSON object")
    return read


# What could be turned when a run does not fit, and what each turn gives: tried one by one by the same model.


@dataclass(frozen=True)
class Knob:
    """change: as a user writes it; shrunk: the share of visual tokens that is left."""

    change: str
    config: Config
    gpus: int
    shrunk: float = 1.0

    @property
    def key(self) -> str:
        return self.change.split("=")[0].split(" ")[0]


def knobs(config: Config, gpus: int, model: Model | UnknownModel | RobotModel, visual: float) -> Iterator[Knob]:
    """Every single change that can make a step smaller, the mildest first."""
    policy, train = config.policy, config.train
    every = max(_held_out(config, gpus), -(-train.prompts_per_step // gpus) * train.group_size)
    under_way = policy.max_num_seqs or every
    if (few := max(train.group_size, under_way // 4)) < under_way:
        yield Knob(f"policy.max_num_seqs={few}", _policy(config, max_num_seqs=few), gpus)
    if not policy.recomputes_layers:
        yield Knob("policy.gradient_checkpointing=true", _policy(config, gradient_checkpointing=True), gpus)
    elif policy.gradient_checkpointing != "offload":
        yield Knob("policy.gradient_checkpointing=offload", _policy(config, gradient_checkpointing="offload"), gpus)
    share = train.micro_size or -(-train.prompts_per_step // gpus // train.num_minibatches)
    if share > 1:
        fewer = max(1, share // 4)
        yield Knob(f"train.micro_batch_size={fewer}", _train(config, micro_batch_size=fewer), gpus)
    if policy.lora is not None and not policy.load_in_4bit and gpus == 1:
        yield Knob("policy.load_in_4bit=true", _policy(config, load_in_4bit=True), gpus)
    if "vision" not in policy.freeze:
        frozen = [*policy.freeze, "vision"]
        yield Knob(f"policy.freeze=[{', '.join(frozen)}]", _policy(config, freeze=frozen), gpus)
    if policy.lora is None:
        from vlrl.config import Lora  # pydantic, which bench/speed.py gpu does without

        lora = Lora()
        yield Knob(f"policy.lora.rank={lora.rank}", _policy(config, lora=lora), gpus)
    if isinstance(model, Model):
        pixels = round(visual / 2) * _area(model.geometry)
        if pixels > (policy.min_pixels or model.pixels[0]):
            yield Knob(f"policy.max_pixels={pixels}", _policy(config, max_pixels=pixels), gpus, 0.5)
    if train.prompts_per_step > train.num_minibatches:
        half = max(train.num_minibatches, train.prompts_per_step // 2)
        yield Knob(f"train.prompts_per_step={half}", _train(config, prompts_per_step=half), gpus)
    yield Knob(f"--gpus {2 * gpus}", config, 2 * gpus)


def _area(geometry: Geometry) -> int:
    """Pixels of one visual token."""
    return geometry.tower.patch**2 * geometry.tower.merge


def _policy(config: Config, **changes: object) -> Config:
    return config.model_copy(update={"policy": config.policy.model_copy(update=changes)})


def _train(config: Config, **changes: object) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update=changes)})


# How many tokens a task's prompts take: counted from its first samples, or as told.

SAMPLES = 8  # that are looked at
LETTERS = 4  # of a token, where there is no tokenizer; English
AROUND = 25  # tokens of the chat template around a prompt, where there is none


@dataclass(frozen=True)
class PromptSize:
    """visual and text: tokens; frames: images and pairs of video frames; source: where the numbers come from."""

    visual: float
    text: float
    frames: float
    source: str

    @property
    def tokens(self) -> float:
        return self.visual + self.text


def prompt_of(config: Config, model: Model, visual: int | None, text: int | None) -> PromptSize:
    """The mean prompt of a task.

    Args:
        visual, text: tokens, where told; with both, the task is not made.

    Raises:
        UserError: the task cannot be made here, and they are not both told.
    """
    if visual is not None and text is not None:
        return PromptSize(visual, text, 1 if visual else 0, "as told")
    published = config.published
    if published and not (config.data.train and Path(config.data.train).exists()):
        size, source = (published.visual, published.text), "as the config's `published` says"
        return PromptSize(visual or size[0], text or size[1], 1, source)
    counted = _counted(config, model)
    options = [name for name, value in (("--visual", visual), ("--text", text)) if value is not None]
    return PromptSize(
        counted.visual if visual is None else visual, counted.text if text is None else text,
        counted.frames or (1 if visual else 0), ", ".join([counted.source, *(f"{name} as told" for name in options)]),
    )  # fmt: skip


def tokens_of(observation: Observation, model: Model, limits: tuple[int, int], count: Callable) -> PromptSize:
    """One observation's size; count: of `(observation)`, its text's tokens, chat template included."""
    visual_tokens = [_visual(part, model, limits) for part in observation.media]
    visual, frames = (sum(numbers) for numbers in zip(*visual_tokens, strict=True)) if visual_tokens else (0, 0)
    return PromptSize(visual, count(observation), frames, "")


def text_counter(model: Model) -> tuple[Callable[[Observation], int], str]:
    """What counts an observation's text, and how it does."""
    if model.folder is None or not (model.folder / "tokenizer.json").is_file():
        return _guessed, f"text at {LETTERS} letters a token"
    from transformers import AutoTokenizer

    from vlrl.policies.processor import TextEncoder

    tokenizer = AutoTokenizer.from_pretrained(model.folder)
    encoder = TextEncoder(tokenizer)

    def counted(observation: Observation) -> int:
        parts = [
            {"type": "text", "text": part} if isinstance(part, str)
            else {"type": "video" if isinstance(part, Video) else "image"}
            for part in observation.content
        ]  # fmt: skip
        turns, stand_ins = encoder.protect([{"role": "user", "content": parts}])
        rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        ids = encoder.restore(tokenizer.encode(rendered), stand_ins)
        media = len(observation.media)  # their placeholders count as visual
        stamps = sum(_stamps(part, tokenizer) for part in observation.content if isinstance(part, Video))
        return len(ids) - media + (stamps if model.geometry.family == "qwen3_vl" else 0)

    return counted, "its own tokenizer"


def _first_samples(config: Config) -> list[Observation]:
    samples = registry.make_task(config).samples("train")
    return [samples[i].prompt for i in range(min(SAMPLES, len(samples)))]


def _counted(config: Config, model: Model) -> PromptSize:
    try:
        observations = _first_samples(config)
    except UserError as error:
        raise UserError(f"{error}; to plan without the task's samples, give --visual and --text") from None
    limits = (config.policy.min_pixels or model.pixels[0], config.policy.max_pixels or model.pixels[1])
    if limits[0] > limits[1]:
        raise UserError(f"policy.max_pixels: {limits[1]} is below the smallest image, {limits[0]}")
    count, how = text_counter(model)
    counts = [tokens_of(observation, model, limits, count) for observation in observations]
    means = [sum(column) / len(counts) for column in zip(*((o.visual, o.text, o.frames) for o in counts), strict=True)]
    return PromptSize(*means, f"mean of {len(counts)} samples of {config.task.name}, {how}")


def _visual(part: Any, model: Model, limits: Sequence[int]) -> tuple[int, int]:
    """Tokens and frames of an image or a video, resized as the model will be shown it."""
    from qwen_vl_utils.vision_process import smart_resize

    tower = model.geometry.tower
    side = tower.patch * round(tower.merge**0.5)
    width, height = part.size
    try:
        high, wide = smart_resize(height, width, side, *limits)
    except ValueError:
        raise UserError(f"an image of {width}x{height} pixels is too thin for the model") from None
    frames = -(-len(part.frames) // 2) if isinstance(part, Video) else 1
    return frames * (high // side) * (wide // side), frames


def _stamps(video: Video, tokenizer) -> int:
    """Tokens that tell the seconds of each pair of frames, with the marks around it but for the template's own pair."""
    pairs = -(-len(video.frames) // 2)
    return pairs * (len(tokenizer.encode("<0.5 seconds>", add_special_tokens=False)) + 2) - 2


def _guessed(observation: Observation) -> int:
    letters = sum(len(part) for part in observation.content if isinstance(part, str))
    return AROUND + -(-letters // LETTERS) + 2 * len(observation.media)


# Seconds of a step by part: compute at a share of a device's peak, decoding no faster than its memory is read.


def cost_of(run: MemoryInputs) -> StepCost:
    phase, memory = peak(run)
    parts = vars(flops_step(run.geometry, run.group, run.update))
    flops = {name: part.total * run.prompts for name, part in parts.items()}
    total = parameters(run.geometry).all
    completions = run.prompts * run.group.members
    launches = count_launches(run.geometry.language.layers, completions, run.group.completion, run.slots)
    return StepCost(total, run.trained, run.width, run.update.mode, phase, memory, flops, bytes_read(run), launches)


LAUNCH = 6e-6  # seconds in which a host starts an operation on a GPU; assumed


def seconds(cost: StepCost, device: Device, mfu: float, graphs: bool = False) -> dict[str, float] | None:
    """Part -> seconds; None where the device's peak is not known: that of a listed GPU is bfloat16's.

    Left out: rewards, environments, images' preprocessing, communication between devices.

    Args:
        mfu: share of the peak that forward and backward passes reach.
        graphs: whether a token's operations are replayed (`policy.cuda_graphs`), so that none is started by itself.
    """
    if device.tflops is None or (device in GPUS and cost.width == FULL):
        return None
    times = {name: part / (mfu * device.tflops * 1e12) for name, part in cost.flops.items()}
    if device.bandwidth:
        launched = 0.0 if graphs else cost.launches * LAUNCH
        times["decode"] = max(times["decode"], cost.decode_bytes / (device.bandwidth * 1e12), launched)
    return times


def bytes_read(run: MemoryInputs) -> float:
    """Bytes that decoding reads: for every token the matrices once, and all keys and values so far."""
    group, language = run.group, run.geometry.language
    # autocast keeps bfloat16 copies of matrices that are trained; frozen ones are bfloat16
    matrices = run.width * (language.layers * language.block_matrices + language.vocabulary * language.hidden)
    copies = group.members if run.update.mode == "naive" else 1
    before = copies * group.prompt + group.members * group.completion / 2
    return group.completion * (matrices + run.prompts * before * language.cached * run.width)


# From a configuration and its prompts' size to what the cost and memory models take.

HALF = 2  # bytes of bfloat16


def run_of(
    config: Config, geometry: Geometry, prompt: PromptSize, *, tokens: float, gpus: int, on_gpu: bool, slices: int = 1
) -> MemoryInputs:
    """One GPU's part of a step.

    Args:
        tokens: of a completion.
        gpus: each takes its share of the prompts; the language model's weights, gradients and optimizer are in parts on
            them (FSDP2, `vlrl.distributed.sharding`); its weights are whole in a rollout, and a reference always, but
            where another engine writes; the tower is whole.
        slices: how many of them share each sequence.

    Raises:
        UserError: nothing would be trained; sequences cannot be shared so.
    """
    train, policy, whole = config.train, config.policy, parameters(geometry)
    added = adapters(geometry, policy.lora.rank, policy.lora.targets) if policy.lora else None
    learning = {part: (added or vars(whole))[part] for part in vars(whole) if part not in policy.freeze}
    if not sum(learning.values()):
        raise UserError(f"policy.freeze: {', '.join(policy.freeze)} leaves nothing to train")
    if gpus % slices or geometry.language.heads % slices:
        raise UserError(
            f"--slices {slices}: must divide --gpus ({gpus}) and the attention heads ({geometry.language.heads})"
        )
    prompts = -(-train.prompts_per_step // gpus)
    micro = min(train.micro_size or prompts, -(-prompts // train.num_minibatches))
    asks_reference = _asks_reference(config)
    update = Update(
        mode=_mode(config, gpus, geometry), passes=int(asks_reference), epochs=train.update_epochs, **factors(learning,
        bool(added)),
        checkpointed=policy.recomputes_layers, offloaded=on_gpu and policy.gradient_checkpointing == "offload",
        chunked=micro * train.group_size * tokens * geometry.language.vocabulary > CHUNK,
    )  # fmt: skip
    whole_trained = sum(learning.get(part, 0) for part in ("vision", "projector"))
    tower = whole.vision + whole.projector + (whole_trained if added else 0)
    narrow, mixed = policy.weights_dtype == "bfloat16", is_mixed(policy, on_gpu)
    spoken = [layer for layer in linears(geometry) if layer.section == "language"]  # the tower's, too, but they are few
    return MemoryInputs(
        geometry, Group(prompt.tokens, prompt.visual, tokens, train.group_size, max(prompt.frames, 1)), update,
        prompts=prompts, micro=micro, trained=sum(learning.values()), adapters=sum(learning.values()) if added else 0,
        width=HALF if mixed else FULL, states=_states(config, geometry, whole, learning),
        copied=asks_reference and not added, slots=policy.max_num_seqs,
        held_out=_held_out(config, gpus), shards=gpus, whole=tower, whole_trained=whole_trained,
        stays=gpus > 1 and stays_in_parts(policy), slices=slices, weight=HALF if narrow else FULL,
        masters=narrow and train.master_weights,
        quantised=sum(each.inputs * each.outputs * each.count for each in spoken) if policy.load_in_4bit else 0,
    )  # fmt: skip


def _held_out(config: Config, gpus: int) -> int:
    """Prompts that one GPU answers at once in an evaluation."""
    return -(-min(config.eval.batch_size, config.eval.num_samples or config.eval.batch_size) // gpus)


def _mode(config: Config, gpus: int, geometry: Geometry) -> Literal["naive", "shared", "kept"]:
    """As the trainer decides: a kept prefill serves one update of all of a step's prompts, by whole weights."""
    train = config.train
    whole = train.num_minibatches == train.update_epochs == 1 and not train.micro_size and gpus == 1
    whole = whole and geometry.family in FAMILIES
    return "naive" if not train.shared_prefix else "kept" if whole else "shared"


STATES = {"adamw": 2.0, "muon": 1.0, "adamw_8bit": 0.512, "paged_adamw_8bit": 0.512}


def _states(config: Config, geometry: Geometry, whole: Parameters, learning: dict[str, int]) -> float:
    """Numbers of 4 bytes that the optimizer keeps of a parameter: two, and less of what is no embedding."""
    less = STATES[config.train.optimizer]
    if config.policy.lora or "language" not in learning:
        return less
    embedded = geometry.language.vocabulary * geometry.language.hidden / sum(learning.values())
    return less + (2.0 - less) * embedded


def _asks_reference(config: Config) -> bool:
    estimators = [registry.make("advantages", c, f"advantages.{i}") for i, c in enumerate(config.advantages)]
    return registry.needs_reference(config, estimators)


# A run's memory and seconds before anything is loaded, and what to turn where it does not fit.

ROOM = 0.9  # of a device's memory; the rest goes to its driver, to single kernels and to gaps between tensors


@dataclass(frozen=True)
class PlanOptions:
    """What a command line says beside the configuration. tokens: of a completion."""

    device: Device | None = None
    gpus: int = 1
    slices: int = 1
    mfu: float = 0.4
    visual: int | None = None
    text: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """times: part -> seconds, None where not known."""

    config: Config
    model: Model | UnknownModel | RobotModel
    prompt: PromptSize
    asked: PlanOptions
    cost: StepCost
    times: dict[str, float] | None

    @property
    def memory(self) -> dict[str, float]:
        return self.cost.memory

    @property
    def gigabytes(self) -> float:
        return sum(self.memory.values()) / 1e9

    @property
    def fits(self) -> bool | None:
        """None: no device was named."""
        device = self.asked.device
        return None if device is None else self.gigabytes <= ROOM * device.memory

    @property
    def step(self) -> float | None:
        """Seconds of a step."""
        return None if self.times is None else sum(self.times.values())


@dataclass(frozen=True)
class PlanChange:
    """A knob, or several, and the plan that they make."""

    change: str
    plan: MemoryPlan


def plan_plan(config: Config, asked: PlanOptions) -> MemoryPlan:
    """Plans a configuration.

    Raises:
        UserError: the model's sizes or the prompts' are not known; nothing would be trained.
    """
    model = find_robot(config.policy.model) or model_of(config.policy.model)
    if asked.slices > 1 and not isinstance(model, Model):
        raise UserError(f"--slices: {config.policy.model} has no layers that are shared so: leave it out")
    if isinstance(model, RobotModel):
        return _try_robot(config, model, asked)
    if isinstance(model, UnknownModel):
        return _try_step(config, model, asked)
    return _count_step(config, model, prompt_of(config, model, asked.visual, asked.text), asked)


def singles(whole: MemoryPlan) -> list[PlanChange]:
    """What each knob alone gives, of those that give anything."""
    turned = (_turned(whole, knob) for knob in _knobs(whole))
    return [turn for turn in turned if turn.plan.gigabytes < whole.gigabytes]


def together(whole: MemoryPlan) -> PlanChange | None:
    """The mildest knobs that are enough together, none of them for nothing; None where all are not enough."""
    keys = [knob.key for knob in _knobs(whole)]
    count = next((n for n in range(1, len(keys) + 1) if _all_turned(whole, keys[:n]).plan.fits), None)
    if count is None:
        return None
    needed = keys[:count]
    for key in keys[:count]:
        fewer = [other for other in needed if other != key]
        if fewer and _all_turned(whole, fewer).plan.fits:
            needed = fewer
    return _all_turned(whole, needed)


def _all_turned(whole: MemoryPlan, keys: list[str]) -> PlanChange:
    """Several knobs, one after another."""
    changes = []
    for key in keys:
        knob = next((knob for knob in _knobs(whole) if knob.key == key), None)
        if knob is not None:
            whole, changes = _turned(whole, knob).plan, [*changes, knob.change]
    return PlanChange(" ".join(changes), whole)


def _knobs(whole: MemoryPlan) -> list[Knob]:
    options = knobs(whole.config, whole.asked.gpus, whole.model, whole.prompt.visual / max(whole.prompt.frames, 1))
    if isinstance(whole.model, RobotModel):  # of its layers none is frozen or recomputed here
        return [knob for knob in options if knob.key in ("train.micro_batch_size", "train.prompts_per_step")]
    on_cpu = whole.asked.device is not None and whole.asked.device.name == "cpu"
    return [knob for knob in options if not (on_cpu and "4bit" in knob.key)]


def _turned(whole: MemoryPlan, knob: Knob) -> PlanChange:
    changed = replace(whole.asked, gpus=knob.gpus)
    if isinstance(whole.model, RobotModel):
        return PlanChange(knob.change, _try_robot(knob.config, whole.model, changed))
    if isinstance(whole.model, UnknownModel):
        return PlanChange(knob.change, _try_step(knob.config, whole.model, changed))
    prompt = replace(whole.prompt, visual=whole.prompt.visual * knob.shrunk)
    return PlanChange(knob.change, _count_step(knob.config, whole.model, prompt, changed))


def _count_step(config: Config, model: Model, prompt: PromptSize, asked: PlanOptions) -> MemoryPlan:
    tokens = asked.tokens or config.policy.max_tokens
    places = {"gpus": asked.gpus, "on_gpu": _on_gpu(asked), "slices": asked.slices}
    cost = cost_of(run_of(config, model.geometry, prompt, tokens=tokens, **places))
    return _plan_of(config, model, prompt, asked, cost)


def _try_step(config: Config, model: UnknownModel, asked: PlanOptions) -> MemoryPlan:
    """One device's part of a step, its passes made without numbers; weights are whole on every device."""
    from vlrl.tools.dry_run import DryPolicy, StepSizes

    train = config.train
    dry = DryPolicy(config.policy, train.shared_prefix is not False, is_mixed(config.policy, _on_gpu(asked)))
    if asked.visual is not None or asked.text is not None:
        raise UserError("--visual, --text: leave them out: this model's processor is asked about the task's samples")
    prompts = [dry.policy.prompt(observation) for observation in _first_samples(config)]
    visual = sum(int(prompt.types.sum()) for prompt in prompts) / len(prompts)
    text = sum(len(prompt.ids) for prompt in prompts) / len(prompts) - visual
    frames = sum(len(prompt.frames) for prompt in prompts) / len(prompts)
    size = PromptSize(visual, text, frames, f"mean of {len(prompts)} samples of {config.task.name}, its own processor")
    per_step = -(-train.prompts_per_step // asked.gpus)
    masters, states = float(train.master_weights), STATES[train.optimizer]
    cost = dry.measure(
        prompts,
        StepSizes(
            per_step, min(train.micro_size or per_step, -(-per_step // train.num_minibatches)), train.group_size,
            asked.tokens or config.policy.max_tokens, train.update_epochs, _asks_reference(config), states + masters,
            (states if config.policy.lora else 2.0) + masters, _held_out(config, asked.gpus),
        ),
    )  # fmt: skip
    return _plan_of(config, model, size, asked, cost)


def _try_robot(config: Config, model: RobotModel, asked: PlanOptions) -> MemoryPlan:
    """One device's part of a step of lerobot's flow, every episode as long as `task.horizon`."""
    from vlrl.tools.dry_run import StepSizes, build_robot, robot_step

    if asked.visual is not None or asked.text is not None or asked.tokens is not None:
        raise UserError("--visual, --text, --tokens: leave them out: a robot policy's own configuration says them")
    task = registry.make_task(config)
    task.close()
    if not isinstance(task, RobotTask):
        raise UserError(f"task: {config.task.name} has no horizon, which says how many chunks an episode has")
    train, policy = config.train, build_robot(model.kind, model.folder, CAMERAS)
    turns, scenes = -(-task.horizon // policy.model.config.n_action_steps), -(-train.prompts_per_step // asked.gpus)
    micro = min(train.micro_size or scenes, -(-scenes // train.num_minibatches))
    rows = micro * train.group_size * turns
    sizes = StepSizes(
        scenes, rows, train.group_size, 0, reference=_asks_reference(config), states=STATES[train.optimizer]
    )
    episodes = f"{turns} chunks an episode of {task.horizon} ticks, {rows} in one forward pass"
    size = PromptSize(0, policy.model.config.tokenizer_max_length, 0, episodes)
    return _plan_of(config, model, size, asked, robot_step(policy, sizes, bool(train.micro_size)))


def _on_gpu(asked: PlanOptions) -> bool:
    return asked.device is None or asked.device.name != "cpu"


def _plan_of(
    config: Config, model: Model | UnknownModel | RobotModel, prompt: PromptSize, asked: PlanOptions, cost: StepCost
) -> MemoryPlan:
    timed = asked.device if cost.flops else None
    times = seconds(cost, timed, asked.mfu, config.policy.cuda_graphs) if timed else None
    return MemoryPlan(config, model, prompt, asked, cost, times)


# A plan as a terminal shows it.

MODES = {
    "naive": "a prompt forwarded once per completion",
    "shared": "a prompt forwarded once per group",
    "kept": "a prompt forwarded once per group, its prefill kept for the update",
}


def text(plan: MemoryPlan) -> str:
    """The whole table; what to turn where the run does not fit."""
    lines = [*_head(plan), "", *_memory(plan)]
    if plan.cost.flops:  # a robot policy's are not counted
        lines += ["", *_seconds(plan)]
    if plan.fits is False:
        lines += ["", *_helps(plan)]
    return "\n".join(lines)


def _head(plan: MemoryPlan) -> Iterator[str]:
    train, policy, cost, options = plan.config.train, plan.config.policy, plan.cost, plan.asked
    yield f"model   {policy.model}: {cost.parameters / 1e6:,.1f} M parameters ({plan.model.source})"
    adapter, width = ", LoRA" if policy.lora else "", "float32" if cost.width == FULL else "bfloat16"
    yield f"        {cost.trained / 1e6:,.1f} M trained{adapter}, products in {width}"
    prompt = plan.prompt
    if isinstance(plan.model, RobotModel):
        yield f"step    {train.prompts_per_step} scenes x {train.group_size} episodes; {prompt.source}"
        yield from _device(options)
        return
    yield f"prompt  {prompt.tokens:.0f} tokens, {prompt.visual:.0f} of them visual ({prompt.source})"
    if not prompt.visual:
        yield "        the samples show no image; where an environment does, give --visual"
    limit = "as told" if options.tokens else "policy.max_tokens, the most"
    length = f"{options.tokens or policy.max_tokens} tokens ({limit})"
    yield f"step    {train.prompts_per_step} prompts x {train.group_size} completions of {length}"
    kept = {True: ", checkpointed", "offload": ", checkpointed in the host's memory"}
    yield f"        {MODES[cost.mode]}{kept.get(policy.gradient_checkpointing, '')}"
    yield from _device(options)
    if options.gpus > 1:
        held = "in parts (FSDP2)" if isinstance(plan.model, Model) else "whole on each"
        yield f"        prompts shared out; weights, gradients, optimizer {held}; traffic not counted"
        if options.slices > 1:
            yield f"        each sequence in {options.slices} slices (parallelism_config_sp_size)"
        if stays_in_parts(policy):
            yield "        an engine elsewhere writes: weights stay in parts, its own memory is not counted"


def _device(options: PlanOptions) -> Iterator[str]:
    if device := options.device:
        peak = f", {device.tflops:g} TFLOPs a second" if device.tflops else ""
        spread = f"{options.gpus} x " if options.gpus > 1 else ""
        yield f"device  {spread}{device.name}: {device.memory:g} GB{peak}"


def _memory(plan: MemoryPlan) -> Iterator[str]:
    unit, size = _unit(sum(plan.memory.values()), {"TB": 1e12, "GB": 1e9, "MB": 1e6})
    yield f"MEMORY, {unit}, at the peak: {plan.cost.phase}"
    yield from _rows({name: part / size for name, part in plan.memory.items()})
    if plan.asked.gpus > 1:
        yield "  sources, parts divided by the GPUs:"
        yield from (f"    {name}: {SOURCES[name]}" for name, part in plan.memory.items() if part)
    if plan.fits is not None and plan.asked.device:
        yield f"  it {'fits' if plan.fits else 'does not fit'} into {ROOM:.0%} of {plan.asked.device.memory:g} GB"


def _seconds(plan: MemoryPlan) -> Iterator[str]:
    if plan.times is not None:
        yield f"SECONDS a step at an MFU of {plan.asked.mfu:g} (assumed), decoding bound by memory and starts too"
        yield from _rows(plan.times)
        yield "  rewards, environments and preprocessing come on top"
        return
    parts = plan.cost.flops
    unit, size = _unit(sum(parts.values()), {"PFLOPs": 1e15, "TFLOPs": 1e12, "GFLOPs": 1e9})
    yield f"{unit} a step" + ("" if plan.asked.device is None else " (seconds need the peak: --tflops)")
    yield from _rows({name: part / size for name, part in parts.items()})


def _helps(plan: MemoryPlan) -> Iterator[str]:
    """Each knob alone; where none is enough, several."""
    alone = singles(plan)
    yield "WHAT WOULD HELP, each alone"
    yield from _turns(alone)
    if not any(turn.plan.fits for turn in alone):
        enough = together(plan)
        yield "ENOUGH TOGETHER"
        yield from _turns([enough]) if enough else ["  nothing here is: a smaller model, or more GPUs"]


def _turns(found: list[PlanChange]) -> Iterator[str]:
    width = max(len(turn.change) for turn in found)
    for turn in found:
        step = "" if turn.plan.step is None else f"  {_digits(turn.plan.step):>6} s a step"
        yield f"  {turn.change:{width}}  {_digits(turn.plan.gigabytes):>6} GB{step}{'  fits' if turn.plan.fits else ''}"


def _unit(number: float, units: dict[str, float]) -> tuple[str, float]:
    """The largest unit of which there is at least one; else the smallest."""
    return next((item for item in units.items() if number >= item[1]), list(units.items())[-1])


def _rows(parts: dict[str, float]) -> Iterator[str]:
    """Parts that are there, and their sum."""
    there = {name: part for name, part in parts.items() if part} | {"together": sum(parts.values())}
    width = max(map(len, there))
    return (f"  {name:{width}}  {_digits(part):>6}" for name, part in there.items())


def _digits(number: float) -> str:
    """Three digits that count."""
    places = 0 if number >= 100 else 1 if number >= 10 else 2 if number >= 1 else 3
    return f"{number:,.{places}f}"


def described(plan: MemoryPlan) -> dict:
    """The plan as plain data: bytes, seconds (null where not known), FLOPs, tokens."""
    return {
        "model": plan.config.policy.model, "parameters": plan.cost.parameters, "trained": plan.cost.trained,
        "prompt": {"visual": plan.prompt.visual, "text": plan.prompt.text}, "mode": plan.cost.mode,
        "peak": plan.cost.phase, "memory": plan.memory, "fits": plan.fits, "seconds": plan.times,
        "flops": plan.cost.flops,
    }  # fmt: skip
