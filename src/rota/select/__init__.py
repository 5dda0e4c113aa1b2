"""SELECT: from a request to the algorithm the runtime would take, with reasons."""

from rota.select.choose import Plan, Selector, select
from rota.select.settings import Settings

__all__ = ["Plan", "Selector", "Settings", "select"]
