"""Policies: models that act and can say how likely their actions were."""
