"""Robots: demonstrations, imitation, simulation."""

from __future__ import annotations

import argparse
import json
from functools import partial
from importlib import import_module
from pathlib import Path

from vlrl.api import quiet
from vlrl.cli.help import Commands, read_config, run_learner, takes_changes, takes_run
from vlrl.config import load_as
from vlrl.system.hub import reach_model
from vlrl.types import RobotTask, UserError


def add(commands: Commands) -> None:
    demos = commands.add_parser("demos", help="record demonstrations of a robot's script, for lerobot")
    demos.add_argument("config", help="one whose task is `manipulation`")
    takes_changes(demos)
    demos.add_argument("--episodes", type=int, required=True, metavar="N", help="to keep")
    demos.add_argument("--out", required=True, metavar="DIR", help="a new folder: a LeRobotDataset v3")
    demos.add_argument("--noise", type=float, default=0.0, metavar="X", help="on controls, in halves of the limits' "
                       "width, default 0")  # fmt: skip
    demos.add_argument("--part", choices=("train", "validation", "test"), default="train", help="default %(default)s")
    demos.add_argument("--keep", choices=("success", "all"), default="success", help="default %(default)s")
    demos.add_argument("--seed", type=int, default=0, help="of the noise")
    demos.set_defaults(run=_demos)

    clone = commands.add_parser("clone", help="make a small robot policy that imitates a task's script")
    takes_run(clone, "for example configs/models/embedded_push.yaml")
    clone.set_defaults(run=_clone)

    simulate = commands.add_parser("simulate", help="play a robot policy beside control arms on the same scenes")
    simulate.add_argument("config", help="one whose task is `manipulation`")
    takes_changes(simulate)
    simulate.add_argument("--policy", metavar="DIR", help="a folder, a run folder or a bundled name; default: the "
                          "config's policy.model")  # fmt: skip
    simulate.add_argument("--against", nargs="+", default=[], metavar="ARM", help="expert (the robot's script), "
                          "random, start (the config's policy.model) or another policy's folder")  # fmt: skip
    simulate.add_argument("--episodes", type=int, metavar="N", help="held-out scenes, from the first; default: all")
    simulate.add_argument("--video", metavar="DIR", help="write MP4s of each arm's first episodes there")
    simulate.add_argument("--videos", type=int, metavar="M", help="how many, default 4")
    simulate.add_argument("--out", metavar="DIR", help="for result.json and report.html, default runs/simulate_CONFIG")
    simulate.add_argument("--json", action="store_true", help="print one JSON object, without the episodes")
    simulate.set_defaults(run=_simulate)


def _demos(options: argparse.Namespace) -> int:
    from importlib import import_module

    from vlrl import registry
    from vlrl.recipe_checks import load_config

    config = load_config(options.config, options.changes)
    task = registry.make_task(config)
    if not isinstance(task, RobotTask) or not task.robot:
        raise UserError(f"task.name: {config.task.name!r} has no robot: demonstrations are of the task `manipulation`")
    recorded = import_module("robot.demos").record(
        task.robot, task.options, ticks=task.horizon, episodes=options.episodes, out=options.out, part=options.part,
        noise=options.noise, keep=options.keep, seed=options.seed,
    )  # fmt: skip
    print(f"{recorded}; {options.out}")
    return 0


def _clone(options: argparse.Namespace) -> int:
    from vlrl.imitation.configs import CloneConfig

    config = read_config(options, partial(load_as, CloneConfig), "configs/models/embedded_push.yaml")
    reach_model(config.start or "")
    quiet()
    from vlrl.imitation.behaviour_cloning import CloneLearner, summary_text

    print(f"{summary_text(run_learner(options, CloneLearner(config)))}; {config.out}")
    return 0


def _simulate(options: argparse.Namespace) -> int:
    from vlrl.recipe_checks import load_config

    config = load_config(options.config, options.changes)
    for name in (options.policy or config.policy.model, *options.against):
        reach_model(name)
    quiet()
    from vlrl.evaluation.simulate import SimulationPlan, simulate, table_text

    out = Path(options.out or f"runs/simulate_{Path(options.config).stem}")
    video = Path(options.video) if options.video else None
    plan = SimulationPlan(
        out, policy=options.policy, against=options.against, episodes=options.episodes, video=video,
        videos=options.videos,
    )  # fmt: skip
    result = simulate(config, plan)
    if options.json:
        print(json.dumps({name: value for name, value in result.items() if name != "episodes"}, allow_nan=False))
    else:
        print(f"{table_text(result)}\n\n{out / 'report.html'}, {out / 'result.json'}")
    return 0


# Robots that are deployed: the server, the loop, the emulator, trials, and learning from what was recorded.

EXITS = """exit codes; the robot is left safe on all of them:
  0    done
  2    a mistake that you can mend, named in one line
  3    the governor stopped the robot
  4    the robot or its bus was lost
  5    the policy server was lost
  6    emergency stop
  7    the motion process died
  129, 130, 143   SIGHUP, Ctrl-C, SIGTERM: the run ends in order, with its report. Ctrl-C makes the data set first;
       after the others the next run does. A signal while the data set is made ends that; recordings are kept.
       A second signal during the run ends it at once, with the first one's code and without a report
"""


def bridge_add(commands: Commands) -> None:
    for subject in (_add_serve, _add_deploy, _add_emulate, _add_trial, _add_learning):
        subject(commands)


def _add_serve(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="put a robot policy behind a port")
    serve.add_argument("--policy", metavar="DIR", help="a folder, a run folder, a bundled name or a hub name")
    serve.add_argument("--config", metavar="YAML", help="what the policy was trained with; default: its run folder's")
    serve.add_argument("--hz", type=float, metavar="HZ", help="actions a second; default: as the policy's folder says")
    serve.add_argument("--host", default="127.0.0.1", help="default %(default)s; others need a token")
    serve.add_argument("--port", type=int, default=8765, help="default %(default)s; 0: any that is free")
    serve.add_argument("--token-file", metavar="FILE", help="the token that clients must show")
    serve.add_argument("--new-token", metavar="FILE", help="write a new token there, and end")
    serve.add_argument("--tls-cert", metavar="FILE")
    serve.add_argument("--tls-key", metavar="FILE")
    serve.add_argument("--watch", action="store_true", help="load newer weights of the folder when they appear")
    serve.add_argument("--max-clients", type=int, metavar="N")
    serve.add_argument("--max-batch", type=int, metavar="N", help="observations of one inference")
    serve.add_argument("--openpi-key", action="append", metavar="PART=KEY", help="what openpi's clients call it")
    serve.set_defaults(run=_bridge_serve)


def _add_deploy(commands: Commands) -> None:
    deploy = commands.add_parser("deploy", help="run a served policy on a robot", epilog=EXITS,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    deploy.add_argument("config", help="for example configs/deploy/so101.yaml")
    takes_changes(deploy)
    deploy.add_argument("--dry-run", action="store_true", help="open and check everything, send nothing")
    deploy.add_argument("--out", metavar="DIR", help="for result.json and report.html, default runs/deploy_CONFIG")
    deploy.set_defaults(run=_robot("deploy.main"))

    replay = commands.add_parser("replay", help="play a recorded episode's actions on a robot")
    replay.add_argument("dataset", help="a LeRobotDataset v3, as `vlrl deploy` records")
    replay.add_argument("config", help="as for `vlrl deploy`")
    takes_changes(replay)
    replay.add_argument("--episode", type=int, default=0, metavar="N", help="from 0, default %(default)s")
    replay.add_argument("--json", action="store_true", help="print one JSON object")
    replay.set_defaults(run=_robot("deploy.main", "replay_main"))


def _add_emulate(commands: Commands) -> None:
    emulate = commands.add_parser("emulate", help="an emulated arm that lerobot's own driver talks to")
    emulate.add_argument("robot", choices=("so101",))
    emulate.add_argument("--camera", action="append", default=[], metavar="NAME=WxH[:PORT]",
                         help="a camera, front or top, for example front=640x480:5555; may be given again")  # fmt: skip
    emulate.add_argument("--fps", type=float, default=30.0, help="pictures a second of each camera")
    emulate.add_argument("--job", default="touch", help="what the scene is for, default %(default)s")
    emulate.add_argument("--seed", type=int, default=0, help="of the first scene")
    emulate.add_argument("--link", type=Path, metavar="DIR", help="a folder for links to both ports")
    emulate.add_argument("--calibration", type=Path, metavar="DIR", help="a folder for lerobot's calibration files")
    emulate.add_argument("--id", default="emulated", help="their name: ID.json, and ID_leader.json")
    emulate.add_argument("--uncalibrated", action="store_true", help="servos as they left the factory")
    emulate.set_defaults(run=_robot("emulator.control"))


def _add_trial(commands: Commands) -> None:
    trial = commands.add_parser("trial", help="compare policies on a robot: random order, blind, sequential test")
    trial.add_argument("config", nargs="?", help="see docs/trial.md")
    takes_changes(trial)
    trial.add_argument("--manual", action="store_true", help="only say which policy's turn it is, under blind names")
    trial.add_argument("--resume", metavar="DIR", help="go on with a trial")
    trial.set_defaults(run=_robot("trial.run"))


def _add_learning(commands: Commands) -> None:
    learn = commands.add_parser("learn", help="go on learning from episodes and corrections as they are recorded")
    takes_run(learn, "see docs/hil.md; the same command goes on after a stop")
    learn.set_defaults(run=_learn)

    reward = commands.add_parser("reward-model", help="make a success classifier from recorded episodes")
    takes_run(reward, "for example configs/reward_so101.yaml")
    reward.set_defaults(run=_reward_model)


def _robot(module: str, function: str = "main"):
    """A command that the package `robot` has itself: it loads neither the trainer nor torch."""
    return lambda options: getattr(import_module(f"robot.{module}"), function)(options)


def _bridge_serve(options: argparse.Namespace) -> int:
    quiet()
    reach_model(options.policy or "")
    return import_module("vlrl.serving.policies").main(options)


def _learn(options: argparse.Namespace) -> int:
    from vlrl.imitation.configs import LearnConfig

    config = read_config(options, partial(load_as, LearnConfig), "configs/learn_so101.yaml")
    reach_model(config.start)
    quiet()
    from vlrl.imitation.dagger import DaggerLearner
    from vlrl.runner import Runner

    Runner(config, DaggerLearner(config), resume=True, allow_changes=options.allow_changes).run()
    return 0


def _reward_model(options: argparse.Namespace) -> int:
    quiet()
    from vlrl.imitation.reward_classifier import RewardClassifierLearner, RewardConfig, summary_text

    config = read_config(options, partial(load_as, RewardConfig), "configs/reward_so101.yaml")
    learner = RewardClassifierLearner(config)
    seconds = run_learner(options, learner)["wall_s"]
    print(f"{summary_text(learner.reported)}; {seconds:.0f} s; {config.out}")
    return 0


# Put a vision-language model behind a port, to write completions for a run or for anybody.


def engines_add(commands: Commands) -> None:
    serve = commands.add_parser("serve-model", help="put a vision-language model behind OpenAI's API, for rollouts")
    serve.add_argument("model", help="as policy.model: embedded, a folder, a run folder or a hub name")
    serve.add_argument("--host", default="127.0.0.1", help="default %(default)s; others need a token")
    serve.add_argument("--port", type=int, default=8000, help="default %(default)s; 0: any that is free")
    serve.add_argument("--name", metavar="TEXT", help="what clients call the model, default: MODEL")
    serve.add_argument("--token-env", metavar="NAME", help="the environment variable with the token that clients show")
    serve.add_argument("--weights-folder", metavar="DIR", help="where paths of new weights may lie; default: nowhere")
    serve.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="of a completion, default %(default)s")
    serve.add_argument("--max-batch", type=int, default=256, metavar="N", help="completions at once, default "
                       "%(default)s")  # fmt: skip
    serve.add_argument("--min-pixels", type=int, metavar="N", help="of an image as shown; give what the run gives")
    serve.add_argument("--max-pixels", type=int, metavar="N")
    serve.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="default %(default)s")
    serve.set_defaults(run=_engines_serve)

    environment = commands.add_parser("serve-task", help="put a task's episodes behind a port, as an OpenEnv server")
    environment.add_argument("config", help="a YAML of ours, whose task it is, or a task's name: its YAML, else the "
                             "task with its defaults")  # fmt: skip
    takes_changes(environment)
    environment.add_argument("--split", choices=("train", "test"), default="train", help="unless a reset names one, "
                             "default %(default)s")  # fmt: skip
    environment.add_argument("--host", default="127.0.0.1", help="default %(default)s")
    environment.add_argument("--port", type=int, default=8000, help="default %(default)s")
    environment.add_argument("--sessions", type=int, default=64, metavar="N", help="at a time, default %(default)s")
    environment.set_defaults(run=_serve_task)


def _serve_task(options: argparse.Namespace) -> int:
    from vlrl import registry
    from vlrl.config import Config, config_file, make_as
    from vlrl.recipe_checks import load_config
    from vlrl.tools.trl_verl import serve_task

    name = options.config
    if name in registry.task_names() and not config_file(Path(name)).is_file():
        config = make_as(Config, {"task": {"name": name}, "out": "runs/served"}, options.changes, name)
        registry.check_component("task", config.task, "task")
    else:
        config = load_config(name, options.changes)
    task = registry.make_task(config)
    try:
        serve_task(task, options.split, options.host, options.port, options.sessions)
    finally:
        task.close()
    return 0


def _engines_serve(options: argparse.Namespace) -> int:
    quiet()
    reach_model(options.model)
    return import_module("vlrl.engines.model_server").main(options)
