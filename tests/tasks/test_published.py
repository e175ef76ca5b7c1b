"""configs/published: the papers' runs. Each resolves, fits each of the cards by `vlrl plan`, and trains two steps."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from PIL import Image
from pyarrow import Table, parquet

import vlrl
from vlrl.cli import main
from vlrl.config import Config
from vlrl.performance import profiling
from vlrl.policies import tiny
from vlrl.recipe_checks import load_config
from vlrl.tools.memory_planner import PlanOptions, plan_plan
from vlrl.tools.published import CARDS

_spec = importlib.util.spec_from_file_location("videos", Path(__file__).with_name("test_readers_video.py"))
videos = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(videos)
folder = videos.folder  # the fixture

FOLDER = Path(__file__).parents[2] / "configs" / "published"
NAMES = sorted(file.stem for file in FOLDER.glob("*.yaml"))
SMALL = (
    "train.steps=2", "train.prompts_per_step=2", "train.group_size=2", "train.num_minibatches=1", "policy.max_tokens=8",
    "policy.min_pixels=3136", "policy.max_pixels=12544", "eval.num_samples=2", "log.trackers=[]",
    "eval.every_steps=null",
)  # fmt: skip
FILES = {  # train and test, in the formats that the config reads, of the fixture's folder
    "ui_r1": ("gui", "ui_r1.json", "screenspot_hf.parquet"), "gui_r1": ("gui", "gui_r1.parquet", "gui_r1.parquet"),
    "gui_g1": ("gui", "gui_g1.json", "screenspot_hf.parquet"),
    "vlm_r1_rec": ("objects", "vlm_r1_rec.jsonl", "vlm_r1_rec.json"),
    "vlm_r1_od": ("objects", "vlm_r1_od.jsonl", "ovdeval.json"),
    "vision_r1": ("objects", "vision_r1.parquet", "coco.json"),
    "cls_rl": ("objects", "cls_rl.parquet", "classes.jsonl"),
    "temporal_r1": ("videos", "charades_sta_test.txt", "charades_sta_test.txt"),
    "video_r1": ("videos", "video_r1.json", "video_mme.parquet"),
    "seed_bench_r1": ("videos", "seed_train.jsonl", "seed_validation.jsonl"),
    "jigsaw_r1": ("puzzles", "photos", "others"),
    "mssr": ("puzzles", "virl.jsonl", "vista.parquet"), "vl_rethinker": ("puzzles", "virl.jsonl", "vista.parquet"),
}  # fmt: skip
MORE = {"vl_rethinker": ["rollout_strategy.shortest=1"], "mssr": ["train.group_size=1", "sampler.limit=2"]}


@pytest.fixture(scope="session")
def puzzles(tmp_path_factory) -> Path:
    """Photographs in two folders, and questions as ViRL39K and MathVista have them."""
    place = tmp_path_factory.mktemp("puzzles")
    for i, name in enumerate(("photos/a", "photos/b", "photos/c", "others/d", "others/e")):
        (place / name).parent.mkdir(exist_ok=True)
        Image.effect_noise((96, 96), 40 + i).convert("RGB").save(place / f"{name}.png")
    rows = [{"qid": str(i), "question": "<image>How many?", "image": ["photos/a.png"], "category": "count",
             "answer": rf"\boxed{{{i}}}"} for i in range(4)]  # fmt: skip
    (place / "virl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    picture = {"bytes": (place / "photos" / "b.png").read_bytes(), "path": None}
    asked = {"question": "How long?", "image": "b.png", "decoded_image": picture, "unit": None, "choices": None,
             "precision": 0.0, "question_type": "free_form", "answer_type": "integer"}  # fmt: skip
    parquet.write_table(
        Table.from_pylist([{**asked, "pid": str(i), "answer": str(i)} for i in range(3)]), place / "vista.parquet"
    )
    return place


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, str]:
    """A tiny model of each family that the configs train."""
    place = tmp_path_factory.mktemp("models")
    made = {
        "Qwen2.5-VL": tiny.build(tiny.tokenizer_from(["Click [1, 2]."]), family="qwen2_5_vl", patch=14, space=None),
        "Qwen2-VL": tiny.build_family("qwen2_vl"),
    }
    for name, (model, processor) in made.items():
        model.save_pretrained(place / name)
        processor.save_pretrained(place / name)
    return {name: str(place / name) for name in made}


def published(name: str, *changes: str) -> Config:
    return load_config(FOLDER / f"{name}.yaml", changes)


def test_what_a_user_must_know_first_is_there():
    """A download without a licence, a target without a table: nobody could judge the run."""
    assert len(NAMES) == 13 and set(FILES) == set(NAMES)
    for name in NAMES:
        config = published(name)
        about = config.published
        assert config.out == f"runs/published/{name}" and about.table and about.code and about.unverified, name
        assert all(source.licence and (source.repo or source.note) for source in about.sources), name
        for path in (config.data.train, config.data.test):
            assert path.startswith((f"data/{name}/", "hf://")), name
        assert about.base is None or about.base < about.target, name


@pytest.mark.parametrize("layer", CARDS)
@pytest.mark.parametrize("name", NAMES)
def test_each_fits_its_card(name, layer):
    """The first GPU hour would end out of memory."""
    gpu, count = CARDS[layer]
    config = published(name, str(FOLDER / "memory" / f"{layer}.yaml"))
    plan = plan_plan(config, PlanOptions(profiling.find_device(gpu), count))
    assert plan.fits, f"{plan.gigabytes:.1f} GB: {plan.memory}"
    assert bool(config.policy.lora) == (layer != "8x80gb")  # all weights train where eight cards are


@pytest.mark.parametrize(
    "name", [name if name == "ui_r1" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_two_steps_on_files_of_the_same_format(name, models, gui_files, object_files, folder, puzzles, tmp_path):
    """A format that is not read, or a setting that goes with no other, would be found on a rented machine."""
    kind, train, test = FILES[name]
    place = {"gui": gui_files, "objects": object_files, "videos": folder, "puzzles": puzzles}[kind]
    family = published(name).policy.model.split("/")[-1].rpartition("-VL")[0] + "-VL"
    changes = [f"policy.model={models[family]}", f"data.train={place / train}", f"data.test={place / test}",
               f"data.images={place}", "data.on_bad_row=skip", f"out={tmp_path / 'run'}"]  # fmt: skip
    run = vlrl.train(published(name, *SMALL, *MORE.get(name, ()), *changes))
    assert run.summary["steps"] == 2
    metric = published(name).published.metric
    assert f"eval/{metric}" in run.metrics[-1], sorted(run.metrics[-1])


def test_a_run_is_reproduced_resumed_and_judged(models, gui_files, tmp_path, capsys):
    """The command would end before a verdict, train twice, or call another run the published one."""
    out = tmp_path / "run"
    local = ["--model", models["Qwen2.5-VL"], "--data", str(gui_files), "--out", str(out)]
    changes = [*SMALL, f"data.train={gui_files / 'ui_r1.json'}", f"data.test={gui_files / 'screenspot_hf.parquet'}",
               f"data.images={gui_files}"]  # fmt: skip
    assert main(["reproduce", "ui_r1", *changes, *local, "--dry-run"]) == 0 and not out.exists()
    shown = capsys.readouterr().out
    assert "licence: not stated" in shown and "0.555 -> 0.833" in shown and "uncertain" in shown
    assert main(["reproduce", "ui_r1", *changes, *local]) == 0
    said = capsys.readouterr().out
    assert "published 0.833: not reached; not as published:" in said and "train.steps" in said
    verdict = json.loads((out / "reproduction.json").read_text())
    assert verdict["samples"] == 2 and len(verdict["after"]) == 3 and "policy.model" not in verdict["differences"]
    before = (out / "metrics.jsonl").read_bytes()
    assert main(["reproduce", "ui_r1", *changes, *local]) == 0
    assert (out / "metrics.jsonl").read_bytes() == before  # it has ended, and is only judged


def test_what_is_to_be_fetched_by_hand_is_said(models, tmp_path, capsys):
    """A user would look for a file that no download brings."""
    local = ["--model", models["Qwen2.5-VL"], "--data", str(tmp_path / "none"), "--out", str(tmp_path / "run")]
    assert main(["reproduce", "temporal_r1", *local]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "charades_sta_train.txt is not there" in line and "Charades_v1_480.zip" in line and "--data" in line
