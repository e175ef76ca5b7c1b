"""What every task promises, for each built-in task with and without thinking."""

import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.check import compute_maximum
from tasks.classification import Classification
from tasks.counting import Counting
from tasks.detection import Detection
from tasks.grounded_video_qa import GroundedVideoQa
from tasks.gui_actions import GuiActions
from tasks.gui_grounding import GuiGrounding
from tasks.jigsaw import Jigsaw
from tasks.judge_training import JudgeTraining
from tasks.open_answer import OpenAnswer
from tasks.referring import Referring
from tasks.rendering.videos import VideoOptions
from tasks.table_to_latex import TableToLatex
from tasks.temporal_grounding import TemporalGrounding
from tasks.video_qa import VideoQa
from tasks.visual_reasoning import VisualReasoning
from tasks.visual_search import VisualSearch
from vlrl.types import Decision, Episode, Frame, Turn, UserError

MAKERS = {
    "gui_grounding": GuiGrounding,
    "gui_grounding guided": lambda **options: GuiGrounding(template="guided", size=(128, 96), objects=6, **options),
    "gui_actions": lambda thinking=False, **options: GuiActions(system="ui_r1" if thinking else "plain", **options),
    "detection": Detection,
    "detection guided": lambda **options: Detection(template="guided", source="digits", size=(128, 96), **options),
    "detection vision_r1": lambda **options: Detection(reward="vision_r1", template="vision_r1", **options),
    "referring": Referring,
    "referring vlm_r1": lambda **options: Referring(template="vlm_r1", objects=(2, 6), size=(160, 96), **options),
    "counting": Counting,
    "classification": Classification,
    "classification few shots": lambda **options: Classification(shots=4, classes="base", **options),
    "temporal_grounding": TemporalGrounding,
    "temporal_grounding temporal_r1": lambda **options: TemporalGrounding(template="temporal_r1", **options),
    "temporal_grounding guided": lambda **options: TemporalGrounding(template="guided", per_video=2, **options),
    "video_qa": VideoQa,
    "temporal_grounding robot": lambda **options: TemporalGrounding(
        film=VideoOptions(source="robot", frames=4), **options
    ),
    "video_qa guided": lambda **options: VideoQa(template="guided", per_video=2, **options),
    "grounded_video_qa": GroundedVideoQa,
    "grounded_video_qa guided": lambda **options: GroundedVideoQa(template="guided", **options),
    "visual_reasoning": VisualReasoning,
    "visual_reasoning guided": lambda **options: VisualReasoning(
        template="guided", level=3, size=(128, 128), options="none", **options
    ),
    "visual_search": lambda **options: VisualSearch(size=(192, 128), **options),
    "open_answer": OpenAnswer,
    "open_answer guided": lambda **options: OpenAnswer(template="guided", modality=True, size=(96, 64), **options),
    "judge_training": JudgeTraining,
    "judge_training r1_reward": lambda **options: JudgeTraining(template="r1_reward", level=2, **options),
    "table_to_latex": TableToLatex,
    "table_to_latex guided": lambda **options: TableToLatex(
        template="guided", level=3, size=(192, 192), measure="cells", **options
    ),
    "jigsaw full": Jigsaw,
    "jigsaw pair": lambda **options: Jigsaw(kind="pair", rows=1, columns=2, template="jigsaw_r1", **options),
    "jigsaw words": lambda **options: Jigsaw(places="words", backward=True, source="landscapes", **options),
    "jigsaw turned": lambda **options: Jigsaw(rows=3, columns=1, turned=True, drawn=0.5, **options),
    "jigsaw masked": lambda **options: Jigsaw(rows=3, columns=2, mask=0.2, **options),
}
EACH = pytest.mark.parametrize(
    "task",
    [pytest.param(make(thinking=t), id=f"{name}{' thinking' * t}") for name, make in MAKERS.items() for t in (0, 1)],
)
SPLITS = pytest.mark.parametrize("split", ["train", "test"])


def scored(task, sample, text, space="original_px"):
    size = size_of(sample)
    decision = Decision(text, logprobs=None, entropy=None, truncated=False, frames=(Frame(space, size, size),))
    environment = task.environment(sample)
    shown = environment.reset()
    turn = Turn(shown, decision, environment.step(text))
    environment.close()
    assert turn.step.terminated
    return task.score(Episode(sample, 0, [turn]))


def size_of(sample):
    return (sample.prompt.images or sample.prompt.videos)[0].size


def pixels(sample):
    videos = sample.prompt.videos
    return videos[0].frames if videos else np.asarray(sample.prompt.images[0])


@EACH
@SPLITS
def test_gold_earns_the_maximum(task, split):
    """Warm starts imitate `gold`: were it not the best answer, they would teach a mistake."""
    most = compute_maximum(task)
    for sample in task.samples(split)[:40]:
        size = size_of(sample)
        score = scored(task, sample, task.gold(sample, [Frame("original_px", size, size)]))
        assert (task.reward(score), score.correct, score.reason) == (most, 1.0, None)
        assert set(task.weights) <= {*score.parts, "malformed", "baseline"}


@EACH
def test_other_answers_earn_less(task):
    """A reward that pays for nothing, or pays everybody, teaches nothing."""
    samples = task.samples("test")[:40]
    golds = [task.gold(s, [Frame("original_px", size_of(s), size_of(s))]) for s in samples]
    least = task.weights.get("malformed", 0.0) + task.weights.get("baseline", 0.0)
    for sample in samples[:5]:
        assert task.reward(scored(task, sample, "")) == least
        assert scored(task, sample, "").reason in ("no_answer", "no_glue")
    swapped = [scored(task, sample, gold) for sample, gold in zip(samples, golds[1:] + golds[:1], strict=True)]
    assert sum(score.correct for score in swapped) < 0.75 * len(samples)
    assert all(score.parts["format"] == 1.0 for score in swapped)


@EACH
@settings(max_examples=25)
@given(text=st.one_of(st.text(), st.from_regex(r"<answer>[-\[\], 0-9A-Z.e]*</answer>", fullmatch=True)))
def test_no_completion_breaks_scoring(task, text):
    """Every part stays in [0, 1] and a failure always has a reason."""
    score = scored(task, task.samples("test")[0], text)
    assert all(0.0 <= part <= 1.0 for part in score.parts.values())
    assert 0.0 <= score.correct <= 1.0
    assert (score.answer is None) == (score.reason is not None)


@EACH
@SPLITS
def test_samples_are_the_same_every_time(task, split):
    """Resuming a run and comparing two runs need the same question behind the same id."""
    first, again = task.samples(split)[:20], task.samples(split)[:20]
    assert [s.id for s in first] == [s.id for s in again]
    assert len({s.id for s in first}) == 20
    assert f"/{split}/" in first[7].id
    for one, other in zip(first, again, strict=True):
        assert one.answer == other.answer
        assert one.prompt.text == other.prompt.text
        assert np.array_equal(pixels(one), pixels(other))


@EACH
def test_train_and_test_do_not_meet(task):
    """Otherwise the reported accuracy is memory."""
    train, test = (task.samples(split)[:60] for split in ("train", "test"))
    assert not {s.id for s in train} & {s.id for s in test}
    assert not {pixels(s).tobytes() for s in train} & {pixels(s).tobytes() for s in test}


@EACH
def test_prompts_are_an_image_or_video_and_a_text(task):
    """What a policy is shown: RGB, then the question, which asks for thoughts only where they are wanted."""
    for sample in task.samples("train")[:5]:
        assert [type(part).__name__ for part in sample.prompt.content] in (["Image", "str"], ["Video", "str"])
        assert all(image.mode == "RGB" for image in sample.prompt.images)
        assert sample.prompt.text.strip()
        assert not re.search(r"\{\w*\}", sample.prompt.text)  # a placeholder
        assert ("<think>" in sample.prompt.text) == task.thinking


@EACH
def test_samples_are_a_sequence_that_worker_processes_can_take(task):
    """Data loaders index from the end, slice, and send datasets to other processes."""
    samples = task.samples("test")
    assert len(samples) >= 300
    assert samples[-1].id == samples[len(samples) - 1].id
    with pytest.raises(IndexError):
        samples[len(samples)]
    assert pickle.loads(pickle.dumps(samples))[3].id == samples[3].id


@EACH
def test_environments_are_single_use(task):
    """A reused environment would mix two episodes."""
    environment = task.environment(task.samples("train")[0])
    with pytest.raises(RuntimeError):
        environment.step("x")
    environment.reset()
    environment.step("x")
    for again in (environment.reset, lambda: environment.step("x")):
        with pytest.raises(RuntimeError):
            again()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_weights_weigh_and_wrong_names_stop(make):
    """A misspelt part would silently switch a reward off."""
    task = make(weights={"format": 2.0})
    sample = task.samples("train")[0]
    size = size_of(sample)
    assert task.reward(scored(task, sample, task.gold(sample, [Frame("original_px", size, size)]))) == 2.0
    with pytest.raises(UserError, match=r"weights\.acuracy: no such part"):
        make(weights={"acuracy": 1.0})
