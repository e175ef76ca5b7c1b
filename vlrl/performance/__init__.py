"""What a step costs on a device: operations, bytes, seconds, and what is done when memory does not suffice.

Imports only `vlrl.types`.
"""
