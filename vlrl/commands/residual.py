"""Put a small learned correction on a frozen robot policy."""

from __future__ import annotations

import argparse
from pathlib import Path

from vlrl.commands.base import Commands, quiet
from vlrl.types import UserError


def add(commands: Commands) -> None:
    residual = commands.add_parser("residual", help="put a small correction on a frozen robot policy, to be trained")
    residual.add_argument(
        "base", help="a folder, a run folder or a bundled name, of a policy as `vlrl clone` makes them"
    )
    residual.add_argument("--out", required=True, metavar="DIR", help="for `policy.model`")
    residual.add_argument("--scale", type=float, default=0.1, help="of a correction of 1, in halves of the limits' "
                          "width, default %(default)s")  # fmt: skip
    residual.add_argument("--log-std", type=float, default=-1.0, help="of corrections, before the scale, default "
                          "%(default)s")  # fmt: skip
    residual.add_argument("--ticks", type=int, default=1, help="that a correction is held, default %(default)s")
    residual.add_argument("--hidden", type=int, default=256, help="width of a layer, default %(default)s")
    residual.add_argument("--layers", type=int, default=2, help="default %(default)s")
    residual.add_argument("--seed", type=int, default=0)
    residual.set_defaults(run=_residual)


def _residual(options: argparse.Namespace) -> int:
    quiet()
    import torch

    from vlrl.config import PolicySection
    from vlrl.locks import hold_folder
    from vlrl.policies.control import ControlPolicy
    from vlrl.policies.load import load
    from vlrl.policies.residual import ResidualPolicy
    from vlrl.policies.residual_network import Size

    out = Path(options.out)
    with hold_folder(out):
        base = load(PolicySection(model=options.base), device="cpu")
        if not isinstance(base, ControlPolicy):
            raise UserError(f"{options.base}: is no policy of the kind that `vlrl clone` makes")
        torch.manual_seed(options.seed)
        try:
            size = Size(options.scale, options.log_std, options.ticks, options.hidden, options.layers)
        except ValueError as error:
            raise UserError(f"residual: {error}") from None
        policy = ResidualPolicy(base, size)
        policy.save(out)
    count = sum(weight.numel() for weight in policy.model.parameters())
    print(f"{count:,} weights that correct {options.base} by {size.scale:g} every {size.ticks} ticks; {out}")
    return 0
