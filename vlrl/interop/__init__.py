"""Bridges to what others use: their trainers' rewards and data, the hub, folders that other programs load.

`vlrl.interop.trl` and `vlrl.interop.verl` let our tasks ask and score in TRL, verl and EasyR1; `columns` calls TRL's
reward functions here (`process: trl`); `export`, `card` and `push` carry a model elsewhere (docs/interop.md).
"""
