"""SELECT: from a request to the algorithm the runtime would take, with reasons."""

from rota.select.choose import Plan, select
from rota.select.settings import Settings

__all__ = ["Plan", "Settings", "select"]
