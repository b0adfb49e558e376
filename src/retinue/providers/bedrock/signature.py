"""AWS credentials, and signatures of requests with them (Signature Version 4)."""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from hmac import digest
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, quote

from msgspec import Struct
from yarl import URL

from retinue.core.errors import ProviderError
from retinue.core.text import clean_line
from retinue.local.programs import folder_of_agents, why_not_looked_up

SERVICE = "bedrock"

KEY_ID_ENV, SECRET_ENV, SESSION_ENV = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"

_ALGORITHM = "AWS4-HMAC-SHA256"


class Credentials(Struct, frozen=True):
    """An access key, and the session token of a temporary one."""

    key_id: str
    secret: str
    token: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.key_id[:4]}...)"


def environment_credentials(environ: Mapping[str, str] | None = None) -> Credentials | None:
    """The credentials in the environment; None if a key or its secret is missing."""
    found = os.environ if environ is None else environ
    key_id, secret = found.get(KEY_ID_ENV, "").strip(), found.get(SECRET_ENV, "").strip()
    return Credentials(key_id, secret, found.get(SESSION_ENV, "").strip()) if key_id and secret else None


class FoundCredentials:
    """The credentials that `botocore` finds, such as those of a profile, a login or a role; `load` imports a module.

    `agents_write` gives the folders in which agents may write, besides the current one.
    """

    def __init__(
        self, load: Callable[[str], Any] = import_module, *, agents_write: Callable[[], Sequence[str]] = tuple
    ) -> None:
        self._load = load
        self._agents_write = agents_write
        self._session: Any = None
        self._found: Any = None
        self._looking = threading.Lock()

    async def valid(self) -> Credentials:
        """Credentials that are valid now; raises `ProviderError` if there are none."""
        # botocore reads files, starts programs and calls servers, all of it blocking.
        found = await asyncio.to_thread(self._look)
        if isinstance(found, str):
            raise ProviderError(found, fault="auth")
        return found

    def _look(self) -> Credentials | str:
        advice = (
            f"set AWS_BEARER_TOKEN_BEDROCK, or {KEY_ID_ENV} and {SECRET_ENV} "
            "(aws configure export-credentials --format env prints them)"
        )
        try:
            session, exceptions = self._load("botocore.session"), self._load("botocore.exceptions")
        except ImportError:
            return f"no AWS credentials: {advice}, or install botocore, which reads profiles"
        with self._looking:
            try:
                if self._session is None:
                    self._session = session.get_session()
                if refusal := _refused_program(
                    self._session, (os.getcwd(), *self._agents_write())
                ):  # also before it is started again, for new credentials
                    return f"no AWS credentials: {refusal}; {advice}"
                if self._found is None:
                    self._found = self._session.get_credentials()
                if self._found is None:
                    return f"no AWS credentials: {advice}, or log in with aws"
                frozen = self._found.get_frozen_credentials()
            except (exceptions.BotoCoreError, OSError, ValueError) as error:
                return f"no AWS credentials: {clean_line(str(error))[:500]}; {advice}"
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "")


def _refused_program(session: Any, agents_write: Sequence[str]) -> str:
    """Why the program of a profile (`credential_process`) is not started, if agents could have written it."""
    profiles = session.full_config.get("profiles", {})
    name, seen = session.profile or "default", set[str]()
    while name in profiles and name not in seen:
        seen.add(name)
        words = shlex.split(profiles[name].get("credential_process") or "")
        if words and (reason := _refusal(words, agents_write)):
            return f"{clean_line(words[0])}, which the profile {clean_line(name)} names, is not started: {reason}"
        name = profiles[name].get("source_profile")
    return ""


def _refusal(words: Sequence[str], agents_write: Sequence[str]) -> str:
    if reason := why_not_looked_up(words[0], agents_write=agents_write):
        return reason
    for word in words[1:]:  # a script, for example; it starts in the current folder
        if (root := folder_of_agents(word, agents_write=agents_write)) and os.path.lexists(word):
            return f"agents may write in {root}, where {clean_line(word)[:200]} is"
    return ""


def sign(
    credentials: Credentials,
    *,
    method: str,
    url: URL,
    body: bytes,
    region: str,
    headers: Mapping[str, str] | None = None,
    service: str = SERVICE,
    now: datetime | None = None,
) -> dict[str, str]:
    """The headers that sign a request: `Authorization`, the time, and the session token of temporary credentials.

    `headers` are signed too, and have to be sent as they are; so is the host of the address.
    """
    moment = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    added = {"X-Amz-Date": moment}
    if credentials.token:
        added["X-Amz-Security-Token"] = credentials.token
    signed = {name.lower(): " ".join(value.split()) for name, value in {**(headers or {}), **added}.items()}
    signed["host"] = url.host_port_subcomponent or ""
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        (
            method,
            quote(url.raw_path, safe="/-_.~"),
            _canonical_query(url.raw_query_string),
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            names,
            sha256(body).hexdigest(),
        )
    )
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    text = f"{_ALGORITHM}\n{moment}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret}".encode()
    for part in scope.split("/"):
        key = digest(key, part.encode(), "sha256")
    signature = digest(key, text.encode(), "sha256").hex()
    added["Authorization"] = (
        f"{_ALGORITHM} Credential={credentials.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return added


def _canonical_query(query: str) -> str:
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parse_qsl(query, True))
    return "&".join(f"{name}={value}" for name, value in pairs)
