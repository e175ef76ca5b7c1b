"""When memory does not suffice: once with less at a time, then a stop that says what to turn. Imports no torch."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from vlrl.types import Decision, Episode, Observation, Policy, UserError, first_line

# what torch says on a CPU, of a GPU, and of a GPU's library, where the error has no type of its own
PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
SMALLER = "lower train.group_size, policy.max_tokens or policy.max_pixels"
UPDATE = f"{SMALLER}, or set policy.gradient_checkpointing or policy.lora"


def is_it(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in PHRASES)


def make_room(policy: Policy) -> None:
    """Gives back what can be made anew. To be called outside of `except`: an error holds on to all that it went
    through.
    """
    policy.forget()
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def act(
    policy: Policy, episodes: Sequence[Episode], observations: Sequence[Observation], **options: Any
) -> list[Decision]:
    """`policy.act`, from the first time on that memory does not suffice for half as many episodes at a time.

    What is sampled hangs on an episode's place alone, so it is the same.

    Raises:
        UserError: it does not suffice for those either.
    """
    while True:
        most = policy.acts_at_most
        try:
            return _in_parts(policy, episodes, observations, most or len(episodes), options)
        except Exception as error:
            if not is_it(error):
                raise
        if most is not None or len(episodes) == 1:
            raise UserError(
                f"out of memory in the rollout with {min(most or 1, len(episodes))} episodes at a time: set "
                f"policy.max_num_seqs lower, or {SMALLER}; `vlrl plan` says what each takes"
            )
        policy.acts_at_most = (len(episodes) + 1) // 2
        make_room(policy)
        print(
            f"\nvlrl: out of memory in the rollout with {len(episodes)} episodes at a time: on with "
            f"{policy.acts_at_most}; policy.max_num_seqs={policy.acts_at_most} takes less from the start",
            file=sys.stderr,
        )


def _in_parts(
    policy: Policy, episodes: Sequence[Episode], observations: Sequence[Observation], size: int, options: dict[str, Any]
) -> list[Decision]:
    if len(episodes) <= size:
        return policy.act(episodes, observations, **options)
    made: list[Decision] = []
    for start in range(0, len(episodes), size):
        part = slice(start, start + size)
        own = {name: value[part] if name == "begun" and value else value for name, value in options.items()}
        own |= {"keep": False} if "keep" in own else {}  # a prefill is of all episodes
        made += policy.act(episodes[part], observations[part], **own)
    return made


def fewer(size: int, again: bool, whole: bool) -> int:
    """Prompts in one forward of the update, where memory does not suffice for `size`.

    Args:
        again: there are fewer already. whole: the losses compare all of them.

    Raises:
        UserError: there cannot be fewer.
    """
    if again or whole or size < 2:
        why = "; its losses compare all of them" if whole and size > 1 else ""
        raise UserError(
            f"out of memory in the update with {size} prompts in one forward{why}: {UPDATE}; "
            "`vlrl plan` says what each takes. The newest checkpoint is good"
        )
    print(
        f"\nvlrl: out of memory in the update with {size} prompts in one forward: on with {(size + 1) // 2}; "
        f"train.micro_batch_size={(size + 1) // 2} takes less from the start",
        file=sys.stderr,
    )
    return (size + 1) // 2


@contextlib.contextmanager
def report_oom() -> Iterator[None]:
    """What is nowhere done with less at a time ends in one line."""
    try:
        yield
    except Exception as error:
        if not is_it(error):
            raise
        reason = first_line(error)
        raise UserError(
            f"out of memory ({reason}): {UPDATE}, or lower eval.batch_size; `vlrl plan` says what each takes. "
            "The newest checkpoint, if there is one, is good"
        ) from None
