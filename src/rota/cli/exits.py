"""Exit codes of every command."""

from typing import Final

OK: Final = 0
"""All is well."""
WRONG: Final = 1
"""A schedule, a result, a listing or a group is wrong, or a part was refused."""
USAGE: Final = 2
"""The command is wrong, or nothing could be done."""
INTERRUPTED: Final = 130
"""The user pressed Ctrl-C; 128 and the signal's number, as shells count."""
