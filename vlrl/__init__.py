"""vlrl: reinforcement learning with rule-based rewards for vision-language models and robot policies."""

__version__ = "0.1.0"
