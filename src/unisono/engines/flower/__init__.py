"""Clients on Flower: simulated on Ray, or real ones behind a SuperLink. Only this package imports flwr.

Importing it sets the environment variables that keep Flower quiet, before anything imports flwr.
"""

from unisono.engines.flower.environment import keep_quiet

keep_quiet()
