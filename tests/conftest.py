"""Settings of all tests: no deadlines, since a machine under load is no defect."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rota", deadline=None)
settings.load_profile("rota")
