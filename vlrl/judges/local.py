"""A judge in this process: a vision-language model that vlrl can load."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from vlrl.judges import reply
from vlrl.judges.base import Question, Verdict
from vlrl.judges.framing import framed
from vlrl.strict import Count
from vlrl.types import Episode, Observation, Sample, UserError


class Local:
    """Asks a model of Hugging Face's, or a folder's, on the machine that trains, beside what is trained.

    Args:
        model: as `policy.model`.
        temperature: 0 writes the likeliest reply; above it, for several votes (`grm`), replies are sampled, the same
            for the same questions asked together.
        max_tokens: of a reply. batch: questions at a time.
        dtype, max_pixels: as in `policy`.
        most: characters of an answer that are shown. frames: pictures of a video.

    Raises:
        UserError: there is no such model, or it is no vision-language model.
    """

    def __init__(
        self, seed: int, *, model: str, temperature: Annotated[float, Field(ge=0)] = 0.0, max_tokens: Count = 512,
        batch: Count = 16, dtype: Literal["auto", "float32", "bfloat16"] = "auto", max_pixels: Count | None = None,
        most: Count = 16_000, frames: Count = 8,
    ):  # fmt: skip
        from vlrl.config import PolicySection
        from vlrl.policies.load import load

        section = PolicySection(
            model=model, max_tokens=max_tokens, temperature=temperature or 1.0, dtype=dtype, max_pixels=max_pixels
        )
        self._policy: Any = load(section, seed=seed)
        if not hasattr(self._policy, "codec"):
            raise UserError(f"judge.model: {model} is no vision-language model")
        self._seed, self._greedy, self._batch = seed, temperature == 0, batch
        self._most, self._frames = most, frames

    def ask(self, questions: Sequence[Question]) -> list[Verdict]:
        return [
            verdict
            for start in range(0, len(questions), self._batch)
            for verdict in self._ask(questions[start : start + self._batch])
        ]

    def _ask(self, questions: Sequence[Question]) -> list[Verdict]:
        keys = "".join(question.key for question in questions)
        self._policy.generator.manual_seed(
            int(hashlib.sha256(f"{self._seed}/{keys}".encode()).hexdigest()[:15], 16)
        )  # not where earlier questions left it: a run that is resumed asks none of them
        shown = []
        for question in questions:
            rules, parts = framed(question, self._most, self._frames)
            shown.append(Observation((rules, *parts)))
        episodes = [Episode(Sample(f"judged/{i}", each), i) for i, each in enumerate(shown)]
        try:
            decisions = self._policy.act(episodes, shown, greedy=self._greedy)
        except UserError as error:  # a question that is longer than the model takes
            return [Verdict(fault=str(error))] * len(questions)
        return [_verdict(str(d.action), d.cut, len(q.answers)) for d, q in zip(decisions, questions, strict=True)]


def _verdict(text: str, cut: bool, count: int) -> Verdict:
    if cut:
        return Verdict(fault="a reply that was cut off")
    try:
        return Verdict(*reply.read(text, count))
    except ValueError as error:
        return Verdict(fault=str(error))
