"""Who may hand over code with the password that everybody knows.

`headrace up --dev` has the root user iggy/iggy, as Iggy's examples expect. That password says
nothing about who asks, and a pipeline's code runs as the user of the server. So whoever logs in
with it proves by a token that they may read the server's files: it is made once, readable by its
owner alone, and shown by the terminal of `headrace up --dev`.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from headrace.errors import UnauthorizedError
from headrace.web.server.sessions import Credentials

HEADER = "x-headrace-token"
WELL_KNOWN = Credentials("iggy", "iggy")


class TokenNeededError(UnauthorizedError):
    """`path` is the token's file: who can read it needs nobody to tell them what is in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            "the password iggy is known to everybody, so it takes a token to run code with it: "
            f"the one in {path or 'the data directory'}, which `headrace up --dev` shows, as the "
            f"header {HEADER} (HEADRACE_HTTP_TOKEN for the command line); or log in as another user"
        )


@dataclass(frozen=True, slots=True)
class CodeToken:
    """An empty value is the token of nobody."""

    value: str = field(default="", repr=False)
    path: str = ""

    def check(self, credentials: Credentials, given: str) -> None:
        if credentials != WELL_KNOWN:
            return
        right = hmac.compare_digest(given.encode(), self.value.encode())
        if not self.value or not right:
            raise TokenNeededError(self.path)


NOBODYS = CodeToken()
