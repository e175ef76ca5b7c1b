"""One run in many processes, which `accelerate launch` or `torchrun` starts (docs/scale_out.md).

Every process has the same weights and goes through the same steps. Episodes are played where they are asked for
(`vlrl.rollout.collect`): each process plays its part of the groups, and all get the scored episodes of all, in one
order. So what samples, estimates and counts reads the same everywhere and needs to know nothing of this. Gradients are
summed once an optimizer step (`vlrl.parallel.gradients`): between two sums no process waits for another.
"""

from vlrl.parallel.world import World, by_main, here

__all__ = ["World", "by_main", "here"]
