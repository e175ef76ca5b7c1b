"""The commands of `vlrl`, by subject: each module adds its own to the parser. Imports nothing heavy until one runs."""
