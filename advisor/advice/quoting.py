"""Printing a command so that pasting it runs exactly those arguments, whatever a file name contains.

File and repository names come from other people. Quoted here they stay one argument: no quote, variable, newline or
escape sequence inside a name can end the argument, start another command, or move the cursor of the terminal that
shows it.
"""

from __future__ import annotations

import re
import shlex
import sys
import unicodedata
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from advisor.errors import InputError

Shell = Literal["posix", "powershell", "cmd"]

_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
# No comma: PowerShell would make an array of it.
_POWERSHELL_PLAIN = re.compile(r"[A-Za-z0-9_./:\\=+-]+\Z")
_CMD_PLAIN = re.compile(r"[A-Za-z0-9_./:\\+-]+\Z")


def default_shell(platform: str = sys.platform) -> Shell:
    """The shell most users of ``platform`` (as in ``sys.platform``) paste into."""
    return "powershell" if platform == "win32" else "posix"


def invisible(character: str) -> bool:
    """Whether a character is unprintable: control, format, surrogate, unassigned, line or paragraph separator."""
    return unicodedata.category(character) in _INVISIBLE


def quote(argument: str, shell: Shell) -> str:
    """One argument, quoted for ``shell``, made of printable characters only.

    Raises:
        InputError: the shell has no way to write this argument (NUL anywhere; quotes, ``%`` or unprintable characters
            in cmd.exe; quotes in PowerShell, which mangles them on the way to a program).
    """
    if "\0" in argument:
        raise InputError("No command line can hold a NUL character.", "Rename the file.")
    if shell == "posix":
        return _posix(argument)
    if shell == "powershell":
        return _powershell(argument)
    return _cmd(argument)


def join(argv: Sequence[str], shell: Shell) -> str:
    """The whole command on one line.

    Raises:
        InputError: see :func:`quote`.
    """
    parts = [quote(a, shell) for a in argv]
    if shell == "powershell" and parts and parts[0] != argv[0]:
        parts.insert(0, "&")  # a quoted string is a value in PowerShell; the call operator runs it
    return " ".join(parts)


def pretty(argv: Sequence[str], shell: Shell, width: int = 78) -> str:
    """The command over several lines, a flag and its value kept together, still ready to paste.

    Lines are at most ``width`` characters long unless one argument alone is longer.

    Raises:
        InputError: see :func:`quote`.
    """
    mark = {"posix": " \\", "powershell": " `", "cmd": " ^"}[shell]
    groups: list[list[str]] = []
    for argument in argv:
        if groups and groups[-1][0].startswith("-") and len(groups[-1]) == 1 and not argument.startswith("-"):
            groups[-1].append(argument)
        else:
            groups.append([argument])
    lines: list[str] = []
    for i, group in enumerate(groups):
        text = join(group, shell) if i == 0 else " ".join(quote(a, shell) for a in group)
        if lines and len(lines[-1]) + 1 + len(text) + len(mark) <= width:
            lines[-1] += " " + text
        else:
            lines.append(("  " if lines else "") + text)
    return (mark + "\n").join(lines)


def _posix(argument: str) -> str:
    if not any(invisible(c) for c in argument):
        return shlex.quote(argument)
    # $'...' (bash, zsh, ksh, POSIX 2024) writes any byte visibly; names are bytes, so UTF-8 bytes are what is meant.
    out = []
    for c in argument:
        if c in "\\'":
            out.append("\\" + c)
        elif invisible(c):
            out.extend(f"\\{b:03o}" for b in c.encode("utf-8", "surrogateescape"))
        else:
            out.append(c)
    # Three octal digits are the longest such escape, so a digit that follows is never swallowed.
    return "$'" + "".join(out) + "'"


def _powershell(argument: str) -> str:
    if '"' in argument:
        # Windows PowerShell 5.1 drops double quotes inside arguments of native programs; no quoting survives both 5.1
        # and 7. Windows file names cannot contain them.
        raise InputError("PowerShell cannot pass a double quote to a program.", "Rename the file.")
    if _POWERSHELL_PLAIN.match(argument) and not argument.startswith("-"):
        return argument
    if re.match(r"--?[A-Za-z][A-Za-z0-9-]*\Z", argument):
        return argument
    if not any(invisible(c) for c in argument):
        return _powershell_string(argument)
    pieces: list[str] = []
    for hidden, run in groupby(argument, invisible):
        if not hidden:
            pieces.append(_powershell_string("".join(run)))
            continue
        for c in run:
            if 0xD800 <= ord(c) < 0xE000:
                raise InputError("That name holds half a character.", "Rename the file.")
            pieces.append(f"[char]::ConvertFromUtf32({ord(c)})")
    return "('' + " + " + ".join(pieces) + ")"


# PowerShell takes typographic single quotes for the plain one, also as the end of a string.
_SINGLE = "'‘’‚‛"


def _powershell_string(text: str) -> str:
    return "'" + re.sub(f"([{_SINGLE}])", r"\1\1", text) + "'"


def _cmd(argument: str) -> str:
    if any(invisible(c) or c in '"%' for c in argument):
        # cmd.exe expands %NAME% even inside quotes, and inside them nothing escapes a percent sign.
        raise InputError("cmd.exe cannot pass this name literally.", "Use PowerShell, or rename the file.")
    if _CMD_PLAIN.match(argument):
        return argument
    # Backslashes before the closing quote would escape it in the C runtime's parser: double them.
    tail = len(argument) - len(argument.rstrip("\\"))
    return '"' + argument + "\\" * tail + '"'
