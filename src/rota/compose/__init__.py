"""COMPOSE: from a chosen algorithm to a schedule. No composer knows who reads the schedule."""

from rota.compose.ring import compose_ring
from rota.compose.table import COMPOSERS, compose, composed

__all__ = ["COMPOSERS", "compose", "compose_ring", "composed"]
