"""The switch platform's mesh: where ranks stand (`grid`), what is planned (`menu`), and what it writes (`phases`).

`algorithms` composes a plan. Build and compose are two passes over one table: the first plans the neighbour groups of
every event, the second asserts the event's type and reads the groups it finds.
"""
