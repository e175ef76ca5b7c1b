"""A vision-language model as a judge: it describes two pictures, then says in which of them the goal is nearer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from vlrl.methods import method
from vlrl.preferences.judge import Answer, Pair
from vlrl.strict import Count
from vlrl.types import Episode, Observation, Sample, UserError

LOOK = """\
Say what picture 0 shows, as far as it matters for the goal. Then say the same of picture 1. Then compare them: in \
which of the two is the goal nearer to being reached, and what is it that you see this by?"""
ANSWER = """\
Somebody compared two pictures of a robot at work, picture 0 and picture 1, and wrote:

{said}

The robot's goal: {goal}
According to this text, in which picture is the goal nearer to being reached? Answer with one line that holds nothing \
but a number: 0 for picture 0, 1 for picture 1, or -1 if they are equally near or the text does not tell."""
NUMBER = re.compile(r"(?:answer\s*[:=]?\s*)?[\"'`(\[*]*(-1|0|1)[\"'`)\]*.]*", re.IGNORECASE)
SPECIAL = re.compile(r"<\|[^<>|]*\|>")  # chat templates' own words, which a model may write and none may be shown


@method(source="RL-VLM-F: arXiv 2402.03681, two stages; other wording")
class VLM:
    """Asks twice: to describe and compare two pictures, then to answer 0, 1 or -1 by what was written.

    The second question shows no pictures. It answers greedily. -1, and whatever is no such answer, counts as none.

    Args:
        model: as `policy.model`: a folder, or a name on the hub.
        image: which of the pictures of a moment.
        max_tokens: of the description.
        dtype, max_pixels: as in `policy`.

    Raises:
        UserError: there is no such model, it is no vision-language model, or a moment shows no such picture.
    """

    def __init__(
        self, task: Any, seed: int, *, model: str, image: Annotated[int, Field(ge=0)] = 0, max_tokens: Count = 256,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto", max_pixels: Count | None = None,
    ):  # fmt: skip
        from vlrl.config import PolicySection
        from vlrl.policies.load import load

        section = PolicySection(model=model, max_tokens=max_tokens, dtype=dtype, max_pixels=max_pixels)
        self._policy: Any = load(section, seed=seed)
        self._image = image
        if not hasattr(self._policy, "codec"):
            raise UserError(f"judge.model: {model} is no vision-language model")
        self.said: list[str] = []

    def prefer(self, pairs: Sequence[Pair], goal: str) -> list[Answer]:
        looked = self._ask([(f"{pair.key}/look", self._looking(pair, goal)) for pair in pairs])
        asked = [Observation((ANSWER.format(said=harmless(said), goal=goal),)) for said in looked]
        answers = self._ask([(f"{pair.key}/answer", shown) for pair, shown in zip(pairs, asked, strict=True)])
        self.said = [f"{said}\n=> {answer}" for said, answer in zip(looked, answers, strict=True)]
        return [answer_in(answer) for answer in answers]

    def _looking(self, pair: Pair, goal: str) -> Observation:
        try:
            first, second = (shown.images[self._image].convert("RGB") for shown in (pair.first, pair.second))
        except IndexError:
            raise UserError(
                f"judge: vlm: the data shows no picture {self._image} (its option `image`): give the robot a camera"
            ) from None
        opening = f"Two pictures of a robot at work, taken at different times. Its goal: {goal}"
        return Observation((f"{opening}\nPicture 0:", first, "Picture 1:", second, LOOK))

    def _ask(self, asked: Sequence[tuple[str, Observation]]) -> list[str]:
        episodes = [Episode(Sample(key, shown), number) for number, (key, shown) in enumerate(asked)]
        decisions = self._policy.act(episodes, [shown for _, shown in asked], greedy=True)
        return [str(decision.action) for decision in decisions]


vlm = VLM


def harmless(text: str) -> str:
    """A model's text as it can be shown to a model: nothing in it stands for a picture or ends the question."""
    while (clean := SPECIAL.sub(" ", text)) != text:
        text = clean
    return "".join(c for c in text if (c.isprintable() or c == "\n") and c != "\ufffd").strip()


def answer_in(text: str) -> Answer:
    """The answer on the last line that is not empty, which may hold nothing else; None of -1 and of anything else."""
    lines = [line.strip() for line in text.replace("\u2212", "-").splitlines() if line.strip()]
    found = NUMBER.fullmatch(lines[-1]) if lines else None
    number = int(found[1]) if found else -1
    return number if number >= 0 else None
