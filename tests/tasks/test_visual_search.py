"""Visual search: the detail is lost without the tool, gold conversations find it, published files are read."""

import json

import numpy as np
import pytest
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

from rewards import parse
from rewards.text import TextTruth
from tasks import check
from tasks.context import LastImages, SummaryContext, write_call
from tasks.image_tools import zoom
from tasks.visual_search import MARGIN, STRIPES, VisualSearch
from vlrl.types import Data, Decision, Episode, Frame, Turn, UserError

SEEN = (64, 64)  # of what a model of `policy.max_pixels: 4096` sees


def frames_of(images, space="rel1000"):
    return tuple(Frame(space, image.size, image.size) for image in images)


def play(task, sample, replies=None, space="rel1000"):
    """A scored episode of these replies, or of gold ones."""
    environment, episode, images = task.environment(sample), Episode(sample, 0), []
    shown = environment.reset()
    while not episode.turns or not (episode.turns[-1].step.terminated or episode.turns[-1].step.truncated):
        images = [*([] if shown.restart else images), *shown.images]
        frames = frames_of(images, space)
        text = environment.gold(frames) if replies is None else replies[len(episode.turns)]
        step = environment.step(text, frames)
        episode.turns.append(Turn(shown, Decision(text, None, None, False, frames), step))
        shown = step.observation
    environment.close()
    episode.score = task.score(episode)
    return episode


def patch(image, centre, radius):
    (x, y), grey = centre, image.convert("L")
    part = np.asarray(grey.resize((16, 16), box=(x - radius, y - radius, x + radius, y + radius)), float)
    part = np.abs(part - np.median(part))
    return (part / (part.max() + 1e-6)).ravel()


def views(samples):
    """The digit as a model sees it in the whole image, and after a zoom on its shape."""
    for sample in samples:
        image, (x1, y1, x2, y2) = sample.prompt.images[0], sample.answer.boxes[0]
        scale, margin = SEEN[0] / image.width, MARGIN * max(x2 - x1, y2 - y1)
        middle = ((x1 + x2) / 2 * scale, (y1 + y2) / 2 * scale)
        box = (max(0, x1 - margin), max(0, y1 - margin), min(512, x2 + margin), min(512, y2 + margin))
        yield patch(image.resize(SEEN), middle, 2.5), patch(zoom(image, box).resize(SEEN), (32, 32), 6)


@pytest.mark.slow
def test_the_detail_is_lost_without_the_tool():
    """Otherwise the tool is of no use: who knows where to look reads a fifth as it is shown, and nearly all closer."""
    task = VisualSearch()
    train, test = task.samples("train")[:400], task.samples("test")[:150]
    (far, near), (far_test, near_test) = (zip(*views(samples), strict=True) for samples in (train, test))
    truths, wanted = ([sample.answer.text.answer for sample in samples] for samples in (train, test))
    assert KNeighborsClassifier(5).fit(far, truths).score(far_test, wanted) < 0.35
    assert KNeighborsClassifier(5).fit(near, truths).score(near_test, wanted) > 0.8


def spectrum(image, centre, radius):
    """How strong the waves of each direction are, whatever their phase."""
    (x, y), side = centre, 2 * int(radius)
    part = np.asarray(
        image.convert("L").resize((side,) * 2, box=(x - radius, y - radius, x + radius, y + radius)), float
    )
    waves = abs(np.fft.fft2((part - part.mean()) * np.outer(np.hanning(side), np.hanning(side))))
    return (waves / (waves.max() + 1e-6)).ravel()


@pytest.mark.slow
def test_stripes_are_lost_without_the_tool():
    """Who knows where to look tells the four directions hardly apart as they are shown, and always in a ninth."""
    task = VisualSearch(mark="stripes", detail=0.12, objects=(3, 3), side=(0.13, 0.16))
    far, near, truths = [], [], []
    for sample in task.samples("train")[:300]:
        image, (x1, y1, x2, y2) = sample.prompt.images[0], sample.answer.boxes[0]
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        far.append(spectrum(image.resize(SEEN), (x / 8, y / 8), 3))
        near.append(spectrum(zoom(image, (x - 85, y - 85, x + 85, y + 85)).resize(SEEN), (32, 32), 12))
        truths.append(sample.answer.text.answer)
    assert set(truths) == set(STRIPES)
    seen = [KNeighborsClassifier(5).fit(x[:200], truths[:200]).score(x[200:], truths[200:]) for x in (far, near)]
    assert seen[0] < 0.55 and seen[1] > 0.9


@pytest.mark.parametrize("space", ["original_px", "rel1000", "rel1", "grid10"])
def test_a_gold_conversation_looks_and_answers(space):
    """Demonstrations show the shape enlarged, in every family's coordinates."""
    task = VisualSearch(weights={"accuracy": 1.0, "tool": 0.5})
    for sample in task.samples("test")[:20]:
        episode = play(task, sample, space=space)
        assert [len(turn.step.observation.images) for turn in episode.turns] == [1, 1]
        assert episode.turns[0].step.info == {"tool_calls": 1.0, "malformed_calls": 0.0}
        assert (episode.score.correct, task.reward(episode.score)) == (1.0, 1.5)


def test_a_gold_look_shows_a_share_of_the_image():
    """Not the target alone: a start that imitates it reads everything in one size, and looks need no precision."""
    task = VisualSearch(look=0.3, lesson="call")
    for sample in task.samples("train")[:100]:
        frames = frames_of(sample.prompt.images, "grid10")
        x1, y1, x2, y2 = parse.tool_calls(task.gold(sample, frames))[0].value[1]["box"]
        assert {x2 - x1, y2 - y1} <= {2, 3} and min(x1, y1) >= 0 and max(x2, y2) <= 9
        x, y = (sum(sample.answer.boxes[0][i::2]) / 2 * 10 / 512 - 0.5 for i in (0, 1))
        assert x1 < x < x2 and y1 < y < y2
    assert task.environment(sample).gold(frames).startswith("<tool_call>")


def test_shapes_may_lie_on_photographs():
    """Real images of the split's own; a plain ground has one grey."""
    plain, photo = (VisualSearch(photo_share=share).samples("test")[0].prompt.images[0] for share in (0.0, 1.0))
    assert len(set(plain.convert("L").crop((0, 0, 512, 60)).tobytes())) < 100
    assert np.asarray(photo).std((0, 1)).min() > 5
    assert len(np.unique(np.asarray(photo).reshape(-1, 3), axis=0)) > 1000


def test_calls_and_answers_are_paid_apart():
    """An answer without a look earns no more than its answer; a malformed call costs its share of the form."""
    task = VisualSearch(turns=3)
    sample = task.samples("train")[0]
    right = f"<answer>{sample.answer.text.answer}</answer>"
    look = write_call("zoom", {"box": [0, 0, 500, 500]})
    scores = {
        "guess": play(task, sample, [right]).score,
        "look": play(task, sample, [look, right]).score,
        "malformed": play(task, sample, ["<tool_call>zoom</tool_call>", right]).score,
        "never": play(task, sample, [look, look, look]).score,
        "both": play(task, sample, [look + right, "<answer>none</answer>"]).score,
    }
    parts = {name: tuple(score.parts.values()) for name, score in scores.items()}
    assert parts == {
        "guess": (1.0, 0.0, 1.0), "look": (1.0, 1.0, 1.0), "malformed": (1.0, 0.0, 0.5), "never": (0.0, 0.0, 0.0),
        "both": (0.0, 0.0, 1.0),
    }  # fmt: skip
    assert scores["never"].reason == "no_answer"


def test_metrics_say_how_tools_are_used():
    """Whether RL taught the policy to look is read from them."""
    task = VisualSearch()
    samples = task.samples("test")[:2]
    looked, guessed = play(task, samples[0]), play(task, samples[1], ["<answer>x</answer>"])
    metrics = task.metrics([looked, guessed])
    assert (metrics["called_tools"], metrics["tool_calls"], metrics["turns"]) == (0.5, 0.5, 1.5)
    assert (metrics["accuracy_with_tools"], metrics["accuracy_without_tools"]) == (1.0, 0.0)
    assert (metrics["malformed_calls"], metrics["truncated"], metrics["parse_fail"]) == (0.0, 0.0, 0.5)


@pytest.mark.parametrize("context", [LastImages(images=1), SummaryContext(every=1)])
def test_every_context_can_be_trained_on(context):
    """Gold conversations go through the strategies, and score what they score."""
    task = VisualSearch(context=context)
    assert [finding for finding in check.prove(task, 4) if finding.problem] == []


@pytest.fixture
def pictures(tmp_path):
    Image.effect_noise((400, 300), 60).convert("RGB").save(tmp_path / "sea.jpg")
    return tmp_path


def read(pictures, rows):
    file = pictures / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return VisualSearch(data=Data(train=str(file)))


VSTAR = {
    "image": "sea.jpg",
    "text": "What is the material of the glove?\n(A) rubber\n(B) cotton\n(C) kevlar\n(D) leather\n"
    "Answer with the option's letter from the given choices directly.",
    "category": "direct_attributes",
    "label": "A",
    "question_id": "0",
}
BOXES = {
    "image": "sea.jpg", "target_object": ["glove"], "bbox": [[100, 50, 40, 20]], "question": "Of what is the glove?",
    "options": ["rubber", "cotton"],
}  # fmt: skip
DEEPEYES = {
    "data_source": "vstar", "images": ["sea.jpg"], "reward_model": {"ground_truth": "red", "style": "model"},
    "prompt": [{"role": "system", "content": "You may zoom."}, {"role": "user", "content": "<image>\nWhich colour?"}],
    "extra_info": {"question": "What is the colour of the boat?"},
}  # fmt: skip
PLAIN = {"image": "sea.jpg", "question": "How many gulls?", "answer": "3", "boxes": [[10, 10, 60, 60]]}


@pytest.mark.parametrize(
    ("row", "question", "truth", "boxes"),
    [
        (VSTAR, "What is the material of the glove?\n(A) rubber\n(B) cotton\n(C) kevlar\n(D) leather",
         TextTruth("choice", "A", ("rubber", "cotton", "kevlar", "leather")), ()),
        (BOXES, "Of what is the glove?\n(A) cotton\n(B) rubber", TextTruth("choice", "B", ("cotton", "rubber")),
         ((100.0, 50.0, 140.0, 70.0),)),
        (DEEPEYES, "What is the colour of the boat?", TextTruth("text", "red"), ()),
        ({**DEEPEYES, "extra_info": {"index": 1}}, "Which colour?", TextTruth("text", "red"), ()),
        (PLAIN, "How many gulls?", TextTruth("number", "3"), ((10.0, 10.0, 60.0, 60.0),)),
    ],
)  # fmt: skip
def test_published_files_are_read(pictures, row, question, truth, boxes):
    """As their benchmarks write them, and a gold conversation about each earns the maximum."""
    task = read(pictures, [row])
    sample = task.samples("train")[0]
    assert sample.prompt.text.startswith(question)
    assert (sample.answer.text.kind, sample.answer.text.options, sample.answer.boxes) == (
        truth.kind, truth.options, boxes
    )  # fmt: skip
    assert play(task, sample).score.correct == 1.0


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({**VSTAR, "label": "E"}, "row 1: answer"),
        ({**VSTAR, "text": ""}, "row 1: text: must be"),
        ({**BOXES, "bbox": []}, "row 1: bbox: must be a list of boxes"),
        ({**BOXES, "bbox": [[390, 50, 40, 20]]}, "row 1: bbox: .* outside the image"),
        ({**BOXES, "options": ["one"]}, "row 1: options"),
        ({**DEEPEYES, "reward_model": {}}, "row 1: answer"),
        ({**DEEPEYES, "prompt": [], "extra_info": None}, "row 1: question: must be"),
        ({**PLAIN, "boxes": [[1, 2, 3]]}, "row 1: boxes"),
    ],
)
def test_bad_rows_are_named(pictures, row, problem):
    """In one line, before the run."""
    with pytest.raises(UserError, match=problem) as caught:
        read(pictures, [row])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": ("zooom",)}, "task.tools.0: unknown tool"),
        ({"digits": "7"}, "task.digits: '7': must be"),
        ({"detail": 0.9}, "task.detail: 0.9: must be"),
        ({"turns": 0}, "task.turns: 0: must be"),
        ({"objects": (3, 99)}, "task.objects"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    """In one line that names the option."""
    with pytest.raises(UserError, match=message):
        VisualSearch(**options)
