"""What can be named in a YAML or on the command line, and what each field and option of it means.

`explain` prints the meanings above each key, `listing` counts the names and groups them, `search` finds them by words.
A test refuses a field or an option without a sentence.
"""

from __future__ import annotations

import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel

from vlrl import registry
from vlrl.config import RENAMED, TRL, VERL, Component, Config, Section, described, find_section
from vlrl.policies import FAMILIES
from vlrl.types import SYNONYMS, UserError, meant

# section -> field -> sentence; a section is named by its class, with its module where two share the name
FIELDS: dict[str, dict[str, str]] = {
    "*": {
        "out": "The folder that is written.",
        "seed": "Seed of every random choice.",
        "task": "The task: a name of `vlrl list tasks` or `my_module:MyTask`, with its options.",
        "data": "Files that the task reads instead of drawing samples.",
        "steps": "Optimizer steps.",
        "updates": "Optimizer steps.",
        "batch": "Examples in a batch.",
        "batch_size": "Examples in a batch.",
        "on_bad": "What a bad row does: stop the run, or be skipped and counted.",
        "on_bad_row": "What a bad row does: stop the run, or be skipped and counted.",
        "rollouts": "How a step's episodes are generated.",
        "rollout_strategy": "How a step's episodes are generated.",
        "lr": "Learning rate.",
        "warmup": "Steps of linear learning-rate warm-up.",
        "warmup_steps": "Steps of linear learning-rate warm-up.",
        "threads": "CPU threads of the process.",
        "hidden": "Width of the hidden layers.",
        "layers": "Number of hidden layers.",
        "episodes": "Number of episodes.",
        "seconds": "Seconds that it may take.",
        "tau": "Step of the target network towards the trained one after each update.",
        "expectile": "Expectile that the value function regresses to; 0.5 is the mean.",
        "files": "Recipes laid over the config, in order.",
        "changes": "Overrides `key.path=value`, applied last.",
        "name": "Its name.",
        "run": "Kind of the stage.",
        "eval": "Held-out evaluation.",
        "log": "What is logged and kept.",
    },
    "Config": {
        "policy": "The model and how it samples.",
        "placement": "Where simulators, browsers, judges and rewards run: `local`, or `ray` with its options.",
        "train": "Sizes and optimisation.",
        "sampler": "Which prompts a step draws.",
        "advantages": "Advantage estimators, applied in order.",
        "losses": "Loss terms, added after multiplication by their coefficients.",
        "loss_aggregation": "How token losses are averaged.",
    },
    "DataSection": {
        "train": "Training file, folder or `hf://` data set; default: the task draws its own samples.",
        "test": "Held-out file, folder or `hf://` data set.",
        "format": "Format of the rows; `auto` detects it by their keys.",
        "images": "Folder that image and video names are relative to; default: the file's own.",
        "max_pixels": "Largest image that is decoded, in pixels.",
    },
    "PolicySection": {
        "temperature": "Sampling temperature.",
        "top_k": "Sample from the k likeliest tokens only; default: all.",
        "max_pixels": "Largest image as shown to the model, in pixels; default: the processor's.",
        "lora": "Train LoRA adapters instead of all weights.",
        "freeze": "Parts of the model that are not trained.",
        "gradient_checkpointing": "Recompute activations in the backward pass: less memory, more time.",
    },
    "Lora": {
        "rank": "Rank of the adapters.",
        "alpha": "Scale of the adapters; their output is multiplied by alpha / rank.",
        "targets": "Modules that get adapters, as in PEFT's `target_modules`.",
    },
    "TrainSection": {
        "steps": "Training steps of the run.",
        "lr": "Learning rate.",
        "weight_decay": "Decoupled weight decay.",
        "betas": "AdamW's decay rates of the two moments.",
        "max_grad_norm": "Gradients are clipped to this norm.",
    },
    "Deploy": {
        "robot": "The robot: `lerobot`, `simulated`, `replay` or your own driver, with its options.",
        "policy": "The policy and how its actions are executed.",
        "task": "The instruction; empty: the scene's own.",
        "seconds": "Time limit of an episode, in seconds.",
        "home": "Pose that the robot moves to before each episode.",
        "safety": "Limits and reactions of the safety governor.",
        "record": "Recording of episodes as a LeRobotDataset; none: nothing is recorded.",
        "teleop": "A teleoperator with which a person can take over.",
        "view": "The live page.",
        "practice": "Resets and recovery without a person.",
    },
    "PolicySource": {
        "token_file": "File with the server's token.",
        "mode": "When chunks are requested and how they are joined: sync, async, blend or rtc.",
    },
    "Home": {"seconds": "Duration of the motion, in seconds."},
    "Safety": {
        "default": "Limits of every channel that sets none itself.",
        "channels": "Limits by channel name.",
        "workspace": "A box that the arm's parts must not leave.",
        "stale": "What happens to late actions.",
        "range": "What happens to implausible chunks.",
        "sensor": "When readings count as wrong.",
        "dead_man": "A switch that a person must hold for the robot to move.",
        "estop": "Emergency stops.",
        "at_fault": "How the robot is left after a fault: hold or torque off; none: as its driver says.",
    },
    "ChannelLimits": {
        "low": "Lowest position, or speed of a speed channel.",
        "high": "Highest position, or speed of a speed channel.",
        "speed": "Largest change per second.",
        "acceleration": "Largest change of speed per second.",
    },
    "Workspace": {
        "high": "Upper corner of the box, in metres from the base.",
        "sites": "Parts of the model that are checked.",
    },
    "Sensor": {"disagree_ticks": "Ticks of disagreement before the stage `disagree` reacts."},
    "Health": {"low": "A lower reading is a fault.", "high": "A higher reading is a fault."},
    "EStop": {"keys": "Keys of the terminal that stop the robot.", "signals": "Signals that stop the robot."},
    "RecordSection": {"out": "The LeRobotDataset that episodes are added to."},
    "Teleop": {"type": "Type of lerobot's teleoperator.", "options": "Its options."},
    "Practice": {
        "hours": "Hours after which the practice ends; none: after `episodes`.",
        "reset": "How the scene is reset between episodes.",
        "stuck": "When a robot counts as stuck and how it backs out.",
    },
    "Stuck": {"seconds": "Seconds without motion after which the robot is stuck."},
    "Served": {
        "url": "Address of the classifier's server.",
        "token_file": "File with the server's token.",
        "ca": "Certificate that `wss://` is checked against.",
    },
    "Trial": {"policies": "The policies to compare, by name.", "out": "A new folder for plan, verdicts and report."},
    "TrialArm": {"url": "Address of a policy server.", "dir": "Folder of a policy."},
    "Comparison": {
        "recipes": "The recipes to compare.",
        "budget": "What every recipe may spend.",
        "seeds": "Seeds per recipe, and how often results are tested.",
        "pairs": "Pairs to test; `all`, or a list.",
        "pass_at": "Sampled answers for pass@k.",
        "reach": "Accuracies whose cost is reported; a recipe's name means its final accuracy.",
    },
    "Seeds": {
        "each": "Seeds per recipe between two looks.",
        "looks": "How often results are tested at most.",
        "level": "Chance of any false claim over all pairs and looks.",
    },
    "PassAt": {"samples": "Answers per held-out sample.", "k": "Numbers of tries that are reported."},
    "Stages": {"stages": "The stages, in order."},
    "Rounds": {"times": "How often the stages are repeated.", "stages": "The stages of a round, in order."},
    "OffPolicyConfig": {
        "agent": "The learning algorithm.",
        "reward": "Weights of the reward's parts.",
    },
    "WarmstartConfig": {"model": "The model that is built where `start` names none.", "lessons": "What is imitated."},
    "configs.ModelSection": {
        "family": "Architecture of the model.",
        "hidden": "Width of the language model.",
        "layers": "Layers of the language model.",
        "vision_hidden": "Width of the vision tower.",
        "vision_layers": "Layers of the vision tower.",
        "patch": "Side of an image patch, in pixels.",
        "space": "Coordinate space in which the model writes points and boxes.",
    },
    "CloneConfig": {"episodes": "Demonstrations of the script.", "policy": "The network that is built."},
    "Recordings": {"path": "Folder of a LeRobotDataset v3."},
    "NetworkSection": {"kind": "`control`: discretised actions; `flow`: a flow policy; `smolvla`: lerobot's, small."},
    "LearnConfig": {
        "demonstrations": "Data sets of demonstrations.",
        "shares": "Shares of a batch.",
        "poll_s": "Seconds between looks for new episodes.",
    },
    "Shares": {
        "demonstrations": "Share of demonstrations.",
        "corrections": "Share of a person's corrections.",
    },
    "RewardConfig": {
        "unsure_s": "Seconds before a success that are labelled neither way.",
        "hard_s": "Last seconds of failures that are drawn more often.",
    },
    "PreferencesConfig": {
        "judge": "Who says in which of two moments the goal is nearer.",
        "model": "The reward model.",
    },
    "labelling.RewardModelSection": {"members": "Networks in the ensemble."},
}

# option of any plug-in, or `kind.name` -> option -> sentence
OPTIONS: dict[str, dict[str, str]] = {
    "*": {
        "coef": "Coefficient of the loss term.",
        "weights": "Weights of the reward's parts, over the task's defaults.",
        "seed": "Seed of the drawn samples.",
        "held_out": "Number of held-out samples that are drawn.",
        "thinking": "Ask for thoughts inside `<think>` before the answer.",
        "template": "Wording of the prompt; `guided` states the answer's form for models that were not trained on it.",
        "pool": "Number of distinct training samples that are drawn.",
        "size": "Width and height of drawn images, in pixels.",
        "hidden": "Width of the hidden layers.",
        "layers": "Number of hidden layers.",
        "lr": "Learning rate.",
        "critics": "Number of critics.",
        "gamma": "Discount factor.",
        "eps": "Added to the denominator for numerical stability.",
        "low": "Clip range below: ratios stay at or above 1 - low.",
        "high": "Clip range above: ratios stay at or below 1 + high.",
        "sequence_low": "Clip range of the completion's ratio below.",
        "sequence_high": "Clip range of the completion's ratio above.",
        "target_entropy": "Entropy that the temperature is adapted to, per number of the action.",
        "episodes": "Number of episodes.",
        "false_positive": "Share of wrong answers that the verifier accepts.",
        "false_negative": "Share of right answers that the verifier rejects.",
        "objects": "Number of objects in a drawn image, or its range.",
        "level": "Difficulty of the drawn samples.",
        "source": "Where images come from.",
        "side": "Range of an object's side, as a share of the image's.",
        "photo_share": "Share of images drawn over a photograph.",
        "film": "How videos are drawn.",
        "fps": "Frames per second that are shown.",
        "frames": "Most frames that are shown.",
        "total_pixels": "Most pixels of all shown frames together.",
        "text_share": "Share of widgets that carry unseen text.",
        "widget": "Range of a widget's side, as a share of the screen's.",
        "per_picture": "Consecutive samples that ask about one image.",
        "per_video": "Consecutive samples that ask about one video.",
        "form": "`reward`: what is reached is paid; `potential`: the difference that a step made.",
    },
    "advantages.beta_tracker": {
        "low": "Least forgetting rate.",
        "high": "Largest forgetting rate.",
        "target_kl": "Drift of the policy at which the forgetting rate is least.",
    },
    "advantages.spo_tracker": {"low": "Least forgetting rate.", "high": "Largest forgetting rate."},
    "advantages.dgpo": {
        "fill": "Rescale by the tokens of groups that do not agree, so that silent groups do not shrink the step."
    },
    "advantages.grpo": {"std": "Divide by the deviation of the group, of the batch, or not (`none`, Dr. GRPO)."},
    "advantages.ngrpo": {"virtual": "Imaginary completions of the best reward that join each group's statistics."},
    "advantages.middling": {"sigma": "Factor at a success rate of one half."},
    "advantages.kl_return": {"beta": "Coefficient of the per-token KL penalty."},
    "advantages.batch_norm": {
        "ddof": "Degrees of freedom subtracted in the variance.",
        "var_floor": "Least variance that is divided by.",
    },
    "advantages.sigma_filter": {
        "threshold": "Standard deviations beyond which an advantage becomes 0.",
        "bounds": "`paper`: |z| against the threshold; `released`: as the published code computes it.",
    },
    "advantages.entropy_shaping": {
        "alpha": "Weight of the token's entropy.",
        "kappa": "The bonus is at most |A| / kappa.",
    },
    "advantages.truncated_weights": {"most": "Largest importance weight."},
    "advantages.gae": {"bins": "Bins of a categorical critic (HL-Gauss)."},
    "losses.cispo": {
        "low": "The importance weight stays at or above 1 - low.",
        "high": "The importance weight stays at or below 1 + high.",
    },
    "losses.ppo_clip": {"dual": "Bound of the ratio for negative advantages (dual clip); none: no bound."},
    "losses.copg": {"beta": "Coefficient of the KL to the reference."},
    "losses.gepo": {"beta": "Scale of the log-ratio to the reference."},
    "losses.disco": {
        "score": "A completion's score: mean log-probability, or mean ratio.",
        "tau": "Temperature over wrong completions; none: all weigh the same.",
    },
    "losses.trust_region": {"delta": "KL up to which nothing is paid.", "beta": "Steepness of the penalty beyond it."},
    "losses.a_lol": {"clip": "The ratio to the reference stays within 1 - clip and 1 + clip."},
    "losses.reg_grpo": {"scale": "Scale of the standardised log-ratio that is regressed onto the advantage."},
    "losses.rover": {"scale": "Scale of the log-ratio that is regressed onto the reward."},
    "losses.stable_clip": {"least": "Smallest ratio.", "most": "Largest ratio."},
    "losses.clip_cov": {"share": "Share of the tokens that are left out."},
    "losses.kl_cov": {"share": "Share of the tokens that are penalised.", "beta": "Coefficient of the penalty."},
    "losses.distill": {"kind": "Estimator of the KL: k1 or k2."},
    "losses.generalized_jsd": {
        "beta": "0: KL(teacher || policy); 1: KL(policy || teacher); between: of both to their mixture.",
        "top_k": "The policy's likeliest tokens that are compared one by one; all others count as one.",
    },
    "losses.kl": {"kind": "Estimator of the KL: k1, k2 or k3."},
    "losses.rl_plus": {"gamma": "Exponent of (1 - p) at demonstrations: likely tokens count less."},
    "rollout_strategy.window": {"tokens": "New tokens of a completion in a step."},
    "rollout_strategy.augment": {"window": "Latest samples whose mean reward is the reference."},
    "rollout_strategy.guide": {"share": "Share of the completions that start from a guide's prefix."},
    "rollout_strategy.guide_turns": {"share": "Share of the episodes that the script starts."},
    "rollout_strategy.snapshots": {"share": "Share of the groups that start inside an earlier success."},
    "rollout_strategy.rethink": {
        "share": "Share of the finished responses that are continued.",
        "cut": "Share of those that first lose their answer.",
        "shortest": "Least new tokens.",
        "longest": "Most new tokens.",
        "most": "Most continued responses kept per prompt.",
        "waits": "Most waits and alternatives in a kept continuation.",
        "trigger": "What continues the response: learned triggers or fixed ones.",
    },
    "rollout_strategy.latr": {
        "least": "Least probability of the second likeliest token at a branch.",
        "gap": "Largest difference of the two likeliest tokens' probabilities at a branch.",
    },
    "process_rewards.arena": {"topology": "Kind of tournament: single_elimination, swiss or round_robin."},
    "process_rewards.srpo": {
        "form": "`outcome`: failures are rewarded by their nearness; `potential`: steps by their progress."
    },
    "process_rewards.milestones": {
        "window": "Moments up to a milestone that count as being there.",
        "successes": "Successes needed before anything is paid.",
    },
    "reward_shaping.shortest_bonus": {
        "bonus": "Added to the shortest right completion of a group.",
        "longer_than": "Tokens up to which brevity is not paid.",
    },
    "reward_shaping.trust": {"amount": "Weight of the judged thoughts."},
    "reward_shaping.flipped": {"errs": "Misjudge the same `answer` always or never, or each `completion` anew."},
    "reward_shaping.laser": {
        "bonus": "Added to right completions within the target.",
        "wrong": "Added to wrong completions.",
    },
    "reward_shaping.laser_d": {
        "bonus": "Added to right completions within the target.",
        "wrong": "Added to wrong completions.",
    },
    "reward_shaping.laser_de": {
        "bonus": "Added to right completions within the target, and to wrong ones beyond it.",
        "wrong": "Added to other wrong completions.",
        "ladder": "Target lengths to choose from, in tokens.",
        "every": "Steps between new choices of the targets.",
        "window": "Latest steps that the choice looks at.",
    },
    "reward_shaping.dast": {
        "slope": "Change of the reward with relative length.",
        "offset": "Reward at the mean length.",
    },
    "reward_shaping.kimi_length": {"weight": "Weight of the length reward.", "begin": "Step from which it is added."},
    "reward_shaping.overlong": {"factor": "Largest penalty."},
    "reward_shaping.kl_in_reward": {"kind": "Estimator of the KL: k1, k2 or k3."},
    "callbacks.schedule": {
        "start": "First value of the option.",
        "end": "Last value of the option.",
        "steps": "Steps from the first to the last value.",
        "shape": "`linear` or `cosine`.",
    },
    "agent.moorl": {"rate": "Step of actor and critics towards what the inner updates reached."},
    "source.scripted": {
        "expert": "Share of episodes that the script plays well.",
        "poor": "Share with noise and lapses.",
    },
    "source.labelled": {
        "source": "The source whose transitions are relabelled.",
        "low": "Reward of the lowest value in the data.",
        "high": "Reward of the highest value in the data.",
    },
    "task.classification": {
        "shots": "Training images per class; 0: all.",
        "classes": "Classes that are asked for: all, base or new.",
    },
    "task.detection": {
        "negatives": "Share of questions about objects that are not there.",
        "names": "Other names for the drawn labels.",
        "reward": "The reward of a list of boxes.",
        "thresholds": "IoU at which credit begins and at which it is full.",
        "schedule": "Training step -> thresholds.",
    },
    "task.gui_actions": {
        "system": "The paper whose prompt and reward are used.",
        "level": "`high` names two steps at once.",
    },
    "task.gui_agent": {
        "environment": "Pages in a browser, or applications on a desktop.",
        "pages": "Pages of MiniWoB++, or tasks of the desktop; default: all with scripted solutions.",
        "turns": "Turns after which an episode is truncated.",
        "browsers": "Browsers or desktops that run in parallel.",
        "context": "Earlier turns that are shown: one_screen (none), or a conversation: full, last_images, summary.",
        "actions": "Actions as `text` in answer tags, or as calls of `tools`.",
    },
    "task.gui_grounding": {
        "per_screen": "Consecutive samples that ask about one screen.",
        "themes": "Colour themes of the drawn screens.",
    },
    "task.grounded_video_qa": {"kinds": "Kinds of questions; default: all."},
    "task.video_qa": {
        "kinds": "Kinds of questions; default: all.",
        "options": "Options in shuffled or alphabetical order, or none.",
        "judge": "The rule that grades answers.",
    },
    "task.temporal_grounding": {"notation": "How strictly spans are read."},
    "task.imitation": {"episodes": "Scripted episodes whose decisions become questions."},
    "task.jigsaw": {
        "rows": "Rows of the puzzle.",
        "columns": "Columns of the puzzle.",
        "turned": "Transpose half of the puzzles.",
        "curriculum": "Training step -> size.",
        "kind": "`full`: the whole order; `pair`: one piece relative to another.",
        "backward": "Ask for the inverse order.",
        "places": "Write places as numbers or as words.",
        "source": "Images: photos, landscapes or noise.",
        "drawn": "Share of landscapes among training photographs.",
        "mask": "Width of black seams, as a share of a piece's side.",
        "scale": "Range of the crop's side, as a share of the photograph's.",
        "recolour": "Change colours of training photographs at random.",
        "reward": "`permutation` or `published`.",
    },
    "task.judge_training": {"most": "Most things in a group."},
    "task.manipulation": {"scenes": "Training scenes."},
    "task.open_answer": {"most": "Most things in a group.", "modality": "Ask for the kind of image first (MediX-R1)."},
    "task.referring": {
        "patterns": "Patterns of the drawn shapes.",
        "places_share": "Share of phrases by place and size.",
        "per_scene": "Consecutive samples that ask about one scene.",
    },
    "task.table_to_latex": {
        "measure": "How cells' contents are compared: teds or cells.",
        "renderer": "What draws tables for the visual reward: drawn or latex.",
    },
    "task.visual_reasoning": {
        "topics": "Topics that are asked about; default: all.",
        "medium": "Show a picture, or say the same in text.",
        "options": "Show a choice's options by letters, or not.",
        "observe": "Ask for `<observe>` before the thoughts (Observe-R1).",
        "measure": "How texts are graded.",
        "relative": "Relative error that numbers of a file may have.",
    },
    "task.vlm_r1": {"method": "Reward of rows that name none."},
}


WIDTH = 120  # characters of a line


def explain(config: BaseModel) -> str:
    """Every key of a config with its value and what it means, as YAML with a comment above each key."""
    return "\n".join(_section_lines(config))


@cache
def field_help(section: type[BaseModel]) -> Mapping[str, str]:
    """Fields of a config section -> what they mean; '' where nothing says it.

    It stands in the section's docstring (`Args:`), behind or above the field's line, or in `option_help.FIELDS`.
    """
    known = {**FIELDS["*"]}
    for base in reversed(section.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            known |= FIELDS.get(base.__name__, {}) | FIELDS.get(
                f"{base.__module__.rpartition('.')[2]}.{base.__name__}", {}
            )
            known |= _comments(base) | _arguments(base)
    return {name: known.get(name, "") for name in section.model_fields}


def section_keys(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a config section and of those within as a dotted path, and what it means."""
    for name, text in field_help(section).items():
        inner = find_section(section.model_fields[name].annotation)
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from section_keys(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}", text


def option_help(kind: str, name: str, target: Any) -> Mapping[str, str]:
    """Options of a plug-in -> what they mean; '' where nothing says it.

    It stands in the docstring of the plug-in or its `__init__` (`Args:`), or in `option_help.OPTIONS`.
    """
    known = OPTIONS["*"] | OPTIONS.get(f"{kind}.{name}", {})
    for base in reversed(target.__mro__ if inspect.isclass(target) else [target]):
        known |= _arguments(base)
        if inspect.isclass(base) and "__init__" in vars(base):
            known |= _arguments(base.__init__)
    return {option: known.get(option, "") for option in registry.options_of(target)}


def _arguments(target: Any) -> dict[str, str]:
    """The `Args:` of a docstring: name -> sentence."""
    doc = inspect.cleandoc(target.__doc__ or "")
    section = re.search(r"^Args:\n((?:(?:    .*)?\n?)+)", doc, re.MULTILINE)
    texts = {}
    for names, text in re.findall(
        r"^    (\w+(?:, \w+)*): (.*(?:\n {6,}.*)*)", section[1] if section else "", re.MULTILINE
    ):
        texts |= dict.fromkeys(names.split(", "), re.sub(r"\s+", " ", text))
    return texts


def _comments(section: type[BaseModel]) -> dict[str, str]:
    """The comment behind a field, or in the lines right above it."""
    try:
        lines = inspect.getsource(section).splitlines()
    except (OSError, TypeError):
        return {}
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in lines:
        text = line.strip()
        code, _, comment = text.partition("  # ")
        comment = re.sub(r"^noqa: \w+\s*", "", comment)
        if text.startswith("# "):
            above.append(text[2:])
            continue
        field = re.match(r"(\w+): ", code)
        sentence = comment if comment and not comment.startswith(("fmt:", "type:")) else " ".join(above)
        if field and sentence:
            comments[field[1]] = sentence
        above = []
    return comments


def _section_lines(section: BaseModel, indent: str = "") -> Iterator[str]:
    values = dict(section)
    for name, text in field_help(type(section)).items():
        value = values[name]
        yield from _comment(text, indent)
        if isinstance(value, Component):
            yield f"{indent}{name}:"
            yield from _plugin_lines(name, value, indent + "  ")
        elif isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _section_lines(value, indent + "  ")
        elif isinstance(value, list) and value and all(isinstance(each, Component) for each in value):
            yield f"{indent}{name}:"
            for each in value:
                first, *rest = _plugin_lines(name, each, indent + "  ")
                yield f"{indent}- {first.strip()}"
                yield from rest
        else:
            yield f"{indent}{name}: {_value(value)}"


def _plugin_lines(kind: str, component: Component, indent: str) -> Iterator[str]:
    yield f"{indent}name: {component.name}"
    if kind not in registry.HOMES and kind != "task":
        yield from (f"{indent}{name}: {_value(value)}" for name, value in component.options.items())
        return
    target = registry.find(kind, component.name)
    texts = option_help(kind, component.name, target)
    for option, (_, default) in registry.options_of(target).items():
        yield from _comment(texts[option], indent)
        yield f"{indent}{option}: {_value(component.options.get(option, default))}"


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, WIDTH - len(indent) - 2)]


def _value(value: Any) -> str:
    """A value on one line of YAML; what YAML has no form for as its representation."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    plain = list(plain) if isinstance(plain, tuple) else plain
    try:
        text = yaml.safe_dump(plain, default_flow_style=True, width=10**6, sort_keys=False)
    except yaml.YAMLError:
        return repr(value)
    return text.removesuffix("\n").removesuffix("\n...")


# What can be named in a YAML or on the command line: in groups of aligned lines, or found by words.

Row = tuple[str, ...]  # its group, "" for none, its name, and what is said of it
MORE = "`vlrl list KIND` or `vlrl list GROUP`: a line for each; `vlrl list --search WORD` finds TRL's and verl's words"


def listing(name: str | None = None, width: int = 100) -> str:
    """Each kind in one line; with a name, a line for each of that kind or group.

    Args:
        name: a kind (tasks, rewards, methods, ...), or a group of one (losses, recipes, boxes, ...).
        width: of the lines that name no kind, in characters.

    Raises:
        UserError: no such kind, with the nearest right one.
    """
    if name is None:
        return "\n".join([*(_summary(kind, list(rows()), width) for kind, rows in KINDS.items()), "", MORE])
    if name in KINDS:
        return _table(name, list(KINDS[name]()))
    groups = {row[0]: kind for kind, rows in KINDS.items() for row in rows()}
    if name not in groups or not name:
        raise UserError(
            f"list: unknown kind {name!r}{meant(name, [*KINDS, *groups])} (one of: {', '.join(KINDS)}); "
            f"`vlrl list --search {name}` looks in all of them"
        )
    return _table(groups[name], [row for row in KINDS[groups[name]]() if row[0] == name])


def search(words: str) -> str:
    """Everything whose name, group or text has all the words, in any spelling of theirs; synonyms are followed.

    Raises:
        UserError: nothing has, with the nearest name.
    """
    terms = _plain(words).split()
    name = words.strip().lower().replace("-", "_").replace(" ", "_")
    meant_by = {SYNONYMS.get(name), RENAMED.get(name, "").partition(" ")[0]} - {None, ""}
    matches: dict[str, list[Row]] = {}
    for kind, rows in KINDS.items():
        for row in rows():
            if row[1] in meant_by or all(word in _plain(" ".join(row)) for word in terms):
                matches.setdefault(kind, []).append(row)
    if not matches or not terms:
        hint = meant(words, [row[1] for rows in KINDS.values() for row in rows()])
        raise UserError(f"list: nothing has {words!r} in its name or description{hint}")
    return "\n\n".join(_table(kind, rows) for kind, rows in matches.items())


def _plain(text: str) -> str:
    return text.lower().replace("_", " ").replace("-", " ")


def _summary(kind: str, rows: Sequence[Row], width: int) -> str:
    """`methods  152  advantages 28, losses 40, ...`; the names of a kind without groups."""
    groups = [(group, len(list(each))) for group, each in itertools.groupby(row[0] for row in rows)]
    parts = [f"{group or 'top'} {count}" for group, count in groups] if len(groups) > 1 else [row[1] for row in rows]
    first = f"{kind:10}{len(rows):4}  "
    return first + textwrap.shorten(", ".join(parts), width - len(first), placeholder=" ...")


def _table(kind: str, rows: Sequence[Row]) -> str:
    """A title, and below each group's name its rows as columns."""
    lines = [f"{kind.upper()} ({len(rows)})"]
    for group, each in itertools.groupby(rows, key=lambda row: row[0]):
        lines += [f" {group}"] if group else []
        lines += _aligned([row[1:] for row in each])
    return "\n".join(lines)


def _tasks() -> Iterator[Row]:
    for name in (*registry.task_names(), *registry.NEED_OPTIONS):
        target = registry.find("task", name)
        module = inspect.getmodule(target)
        yield "", name, _first_line(module)


def _rewards() -> Iterator[Row]:
    for name, function in sorted(registry.rewards().items()):
        parameters = ", ".join(inspect.signature(function).parameters)
        yield name.partition(".")[0], f"{name}({parameters})", _first_line(function)


def _methods() -> Iterator[Row]:
    for kind in registry.HOMES:
        for name, target in registry.names(kind).items():
            about = registry.describe(target)
            needs = f"needs {about['needs']}" if about["needs"] else ""
            yield kind, name, needs, about["summary"], f"[{_status(about['source'])}{about['source']}]"


def _status(source: str) -> str:
    """What stands before a method's source: whether it is as its paper has it, in part ours, or no paper's."""
    if not re.search(r"\d{4}\.\d{4,5}|github\.com|TRL|verl", source):
        return ""
    ours = re.search(r"reconstruct|\bours?\b|\bour own\b|not known|left out$", source)
    return "partly ours: " if ours else "published: "


def _policies() -> Iterator[Row]:
    yield from (("", name, text) for name, text in FAMILIES.items())


def _robots() -> Iterator[Row]:
    for name, entry in registry.robots().items():
        yield "", name, f"needs {entry.needs}", entry.summary


def _configs() -> Iterator[Row]:
    yield from sorted((name.rpartition("/")[0], name, text) for name, text in described())


def _keys() -> Iterator[Row]:
    peers = {"TRL": TRL, "verl": VERL}
    for path, text in sorted(section_keys(Config), key=lambda each: each[0].rpartition(".")[0]):
        old = {peer: [name for name, new in table.items() if new.split()[0] == path] for peer, table in peers.items()}
        names = "; ".join(f"{peer}: {', '.join(each)}" for peer, each in old.items() if each)
        yield path.rpartition(".")[0], path, text, f"[{names}]" if names else ""


KINDS: dict[str, Callable[[], Iterator[Row]]] = {
    "tasks": _tasks, "rewards": _rewards, "methods": _methods, "policies": _policies, "robots": _robots,
    "configs": _configs, "keys": _keys,
}  # fmt: skip


def _first_line(target: object) -> str:
    return (inspect.getdoc(target) or "").partition("\n")[0]


def _aligned(rows: Sequence[Row]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart; the last is left as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
