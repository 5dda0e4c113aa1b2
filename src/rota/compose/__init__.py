"""COMPOSE: from a chosen algorithm to a schedule. No composer knows who reads the schedule.

`table` has the composers, `board` what they are written with, `support` what they do (and loads no numpy).
"""
