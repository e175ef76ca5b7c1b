"""Reward shaping: functions `(rollouts, *, options) -> reward [N]`, in the YAML's order, before `advantages`.

Pure, or classes where they keep a state.

What a reward alone cannot see, because it hangs on the other completions of the prompt. The log keeps the reward as the
task gave it; only the estimators see the shaped one.
"""
