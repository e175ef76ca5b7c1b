"""How smooth the controls of an episode were, each number in halves of its limits' width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robot.controls import Controls


def smoothness(sent: Sequence[np.ndarray], controls: Controls) -> dict[str, float]:
    """Of the controls u, float32 [A] each, that were sent in T ticks, with half widths h of the limits, float32 [A]:

        action_rate   mean over ticks and numbers of |u[t] - u[t-1]| / h: 0 for a constant control, at most 2
        action_jerk   mean of |u[t] - 2 u[t-1] + u[t-2]| / h, at most 4

    The first and second differences that smooth policies are trained for (CAPS, arXiv 2012.06644, temporal smoothness;
    Lee et al., arXiv 2010.11251, target smoothness). Means, so that episodes of any length compare. Each is left out
    where there are too few ticks.
    """
    if len(sent) < 2:
        return {}
    half = (controls.high - controls.low) / 2
    steps = np.diff(np.concatenate(sent).reshape(len(sent), -1) / half, axis=0)
    found = {"action_rate": steps, "action_jerk": np.diff(steps, axis=0)}
    return {name: float(np.abs(each).mean(dtype=np.float64)) for name, each in found.items() if len(each)}
