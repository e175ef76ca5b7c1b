"""Questions about simulated robot videos: the right option is what the simulator did, and text does not tell which."""

import json
import re
from collections import Counter, defaultdict

import av
import numpy as np
import pytest
from PIL import Image

from tasks.base import generator
from tasks.rendering import robot_videos
from tasks.rendering.robot_videos import Story, write_robot_dataset
from vlrl.types import Video

CHANCE = 1 / robot_videos.OPTIONS


@pytest.fixture(scope="module")
def episodes():
    levels = ("L1", "L1", "L3")  # L2 has L1's words but for the colours
    return [robot_videos.simulate(np.random.default_rng(seed), "test", levels[seed % 3]) for seed in range(50)]


def blind(episode, now):
    """A story of which nothing can be seen."""
    video = Video(np.zeros((1, 1, 1, 3), np.uint8), (now,), 1.0, episode.record.duration)
    return Story(video, episode.events, episode.facts)


def traits(question, option):
    """What a guesser can go by in the text: the kind of action, and at which place the goal names the object."""
    verb, goal = option.split()[0], question.text.removesuffix(robot_videos.NEXT)
    name = re.search(r"(?<=the )\w+ (cube|ball|can)", option)[0]
    return verb, goal.count(",", 0, goal.index(name)) if name in goal else None


def test_the_right_option_is_the_next_event():
    """One wrong truth in the reward is learned as right."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        story = robot_videos.progress(rng, "test", frames=3, size=(32, 32), level=f"L{1 + seed % 3}")
        asked = robot_videos.planning(rng, story)
        now = story.video.times[-1]
        following = min((event for event in story.events if event.span[0] >= now), key=lambda event: event.span)
        assert asked.options[asked.answer] == following.bare
        assert len(set(asked.options)) == robot_videos.OPTIONS
        assert set(asked.options) <= {event.bare for event in story.events}
        assert asked.text.startswith(f"Goal: {story.facts['goal']} ")
        assert np.array_equal(np.asarray(asked.image), story.video.frames[-1])
        assert (asked.video is None) == (following is story.events[0])  # nothing has been done yet


def test_a_whole_episode_has_no_next_event(episodes):
    """A question without a right option must not be asked."""
    with pytest.raises(ValueError, match="nothing comes after"):
        robot_videos.planning(np.random.default_rng(0), blind(episodes[0], episodes[0].record.duration))


def test_perception_is_about_what_happened(episodes):
    """Order and object must be the simulator's."""
    for seed, episode in enumerate(episodes):
        rng, story = np.random.default_rng(seed), blind(episode, 0.0)
        lifted = [e.action.removeprefix("lifts the ") for e in story.events if e.action.startswith("lifts")]
        first, order, when = (robot_videos.perception(rng, story, [kind]) for kind in robot_videos.PERCEPTION)
        assert first.options[first.answer] == f"reach for the {lifted[0]}"
        place = robot_videos.ORDINALS.index(order.text.rstrip("?").split()[-1])
        assert order.options[order.answer] == lifted[place]
        assert len(set(first.options)) == len(set(order.options)) == robot_videos.OPTIONS
        assert next(e.span for e in story.events if e.bare in when.text) in when.spans and not when.letter


def test_text_alone_does_not_plan(episodes):
    """A model that answers without looking would be rewarded for it. 300 questions, rates fitted on 150 others."""
    asked = []
    for seed, episode in enumerate(episodes * 6):
        rng = np.random.default_rng(seed)
        asked.append(robot_videos.planning(rng, blind(episode, robot_videos.moment(rng, episode))))
    fitted, tested = asked[:150], asked[150:]
    right, seen = defaultdict(int), defaultdict(int)
    for question in fitted:
        for place, option in enumerate(question.options):
            right[traits(question, option)] += place == question.answer
            seen[traits(question, option)] += 1

    def rate(question, option):
        kind = traits(question, option)
        return (right[kind] + 1) / (seen[kind] + 1 / CHANCE)

    hits = [max(q.options, key=lambda option, q=q: rate(q, option)) == q.options[q.answer] for q in tested]
    letter = Counter(q.letter for q in fitted).most_common(1)[0][0]
    error = 3 * (CHANCE * (1 - CHANCE) / len(tested)) ** 0.5
    assert np.mean(hits) < CHANCE + error
    assert np.mean([q.letter == letter for q in tested]) < CHANCE + error


def test_written_videos_show_the_events_that_their_rows_tell(tmp_path):
    """Files that a reader of SEED-Bench-R1 takes must hold the frames at which something happens, where they say."""
    (file,) = write_robot_dataset(tmp_path, 3, "test", 5, ["L3"], size=(64, 64))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({row["sample_id"] for row in rows}) == 3 and file.name == "test_L3.jsonl"
    for index, row in enumerate(rows):
        rng = generator(3 * 5 + 2, "test", index)
        episode = robot_videos.simulate(rng, "test", "L3")
        now = robot_videos.moment(rng, episode)
        with av.open(str(tmp_path / "videos" / row["video_source"] / row["video_basename"])) as film:
            assert film.streams.video[0].codec_context.name == "h264" and film.streams.video[0].average_rate == 10
            frames = np.stack([frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]).astype(int)
        assert len(frames) == np.ceil(now * 10)
        done = [event for event in episode.events if event.span[0] < now]
        for told, event in zip(row["task_progress_metadata"], done, strict=True):
            assert told["narration_text"] == event.bare
            assert np.allclose([told["start_frame"] / 10, told["stop_frame"] / 10], event.span, atol=0.051)
            at = min(told["stop_frame"], len(frames) - 1)
            true = robot_videos.render(episode, [at / 10], (64, 64)).astype(int)
            assert np.abs(frames - true).mean((1, 2, 3)).argmin() in (at - 1, at, at + 1)
        image = Image.open(tmp_path / "images" / row["video_source"] / row["current_observation_basename"])
        assert np.array_equal(np.asarray(image), robot_videos.render(episode, [now], (64, 64))[0])
        assert row[f"choice_{row['golden_choice_idx'].lower()}"] == row["answer"]
        assert row["answer"] == episode.events[len(done)].bare
