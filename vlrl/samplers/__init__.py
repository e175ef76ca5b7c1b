"""Samplers: which samples a step asks. `draw(n)` gives their positions; state makes a run resume exactly.

Before anything is written the trainer calls, where there are, `check(samples)` and `follow(samples, estimators)`: the
latter for those that draw by what an estimator knows of each prompt (`value(key)`, `weight(key)`).
"""
