"""The settings of another program in retinue's layout, built key by key; each value keeps its place in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast
from urllib.parse import urlsplit

from retinue.core.errors import BadInput
from retinue.core.key_paths import KeyPath, origin_of
from retinue.providers.catalog import provider_config

SettingsTable: TypeAlias = dict[str, object]


class SettingsTranslation:
    """The values of a file in retinue's layout, at first those that have the same place in both.

    >>> translation = SettingsTranslation({"provider": {"ollama": {"model": "qwen3"}}, "tools": {"network": True}})
    >>> model = translation.take(("provider", "ollama", "model"))
    >>> translation.put(("providers", "ollama", "model"), model, ("provider", "ollama", "model"))
    >>> translation.ignore(("provider",))
    >>> translation.values
    {'tools': {'network': True}, 'providers': {'ollama': {'model': 'qwen3'}}}
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values: SettingsTable = {name: _copied(value) for name, value in values.items()}
        self.origins: dict[KeyPath, KeyPath] = {}
        self.ignored: list[tuple[KeyPath, str]] = []
        self.errors: list[tuple[KeyPath, str]] = []

    def find(self, path: KeyPath) -> object:
        """The value at a path of `values`; None if there is none."""
        value: object = self.values
        for name in path:
            table = as_table(value)
            if table is None or name not in table:
                return None
            value = table[str(name)]
        return value

    def table(self, path: KeyPath) -> SettingsTable:
        """The table at a path of `values`; empty if there is none."""
        return as_table(self.find(path)) or {}

    def take(self, path: KeyPath) -> object:
        """Remove a value and return it; None if there is none. Tables that are empty then are removed, too."""
        value = self.find(path)
        for end in range(len(path), 0, -1):
            above = self.table(path[: end - 1]) if end > 1 else self.values
            if end == len(path) or above.get(str(path[end - 1])) == {}:
                above.pop(str(path[end - 1]), None)
        return value

    def put(self, target: KeyPath, value: object, origin: KeyPath) -> None:
        """Set a value that comes from `origin`; None sets nothing. A value that is there already stays."""
        if value is None or self.find(target) is not None:
            return
        table = self.values
        for name in target[:-1]:
            below = as_table(table.setdefault(str(name), {}))
            if below is None:
                return  # the file has a value where a table belongs; the validation reports it
            table = below
        table[str(target[-1])] = value
        self.origins[target] = origin_of(origin, self.origins)

    def move(self, source: KeyPath, target: KeyPath) -> None:
        """Put a value in another place; it is ignored if that place has a value already."""
        if self.find(target) is not None:
            self.ignore(source)
        else:
            self.put(target, self.take(source), source)

    def ignore(self, path: KeyPath, reason: str = "") -> None:
        """Remove a value that has no counterpart; nothing happens if there is none."""
        if self.find(path) is not None:
            self.take(path)
            self.ignored.append((origin_of(path, self.origins), reason))

    def ignore_rest(self, path: KeyPath) -> None:
        """Ignore what is left in a table, key by key."""
        for name in list(self.table(path)):
            self.ignore((*path, name))

    def refuse(self, path: KeyPath, message: str) -> None:
        """Add an error about a value."""
        self.errors.append((origin_of(path, self.origins), message))

    def require_table(self, path: KeyPath) -> bool:
        """Whether there is a table at a path; any other value is an error, and removed."""
        value = self.find(path)
        if value is not None and as_table(value) is None:
            self.take(path)
            self.refuse(path, "expected a table")
        return as_table(value) is not None

    def key_variable(self, path: KeyPath, *, own: str, variable: str, environ: Mapping[str, str]) -> str | None:
        """The environment variable of a provider's key; None if it needs none. The key in the file is ignored.

        `own` is the vendor's variable, empty where it does not apply. `variable` is where the other program looks. It
        is used if it is set, or if the file has a key and there is no other variable: a run then says which it needs.
        """
        has_key = bool(self.find(path))
        used = variable if environ.get(variable) else own or (variable if has_key else None)
        if has_key:
            self.ignore(path, f"keys are not read from files: set {used}")
        else:
            self.take(path)
        return used


def vendor_variable(wire: str, base_url: object) -> str:
    """The variable of the vendor's key, if the address is the vendor's; empty otherwise.

    >>> vendor_variable("anthropic", None), vendor_variable("openai-chat", "http://localhost:8000/v1")
    ('ANTHROPIC_API_KEY', '')
    """
    try:
        return provider_config(wire, base_url=base_url if isinstance(base_url, str) else None).api_key_env
    except BadInput:  # an address that the validation reports
        return ""


def as_table(value: object) -> SettingsTable | None:
    return cast("SettingsTable", value) if isinstance(value, dict) else None


def with_version(address: object, version: str = "/v1") -> object:
    """An address with the path that OpenAI's format needs, where it has none; other values are returned unchanged.

    >>> with_version("http://localhost:11434"), with_version("https://host/api"), with_version(5)
    ('http://localhost:11434/v1', 'https://host/api', 5)
    """
    if not isinstance(address, str) or not address.startswith(("http://", "https://")):
        return address
    try:
        has_path = bool(urlsplit(address).path.strip("/"))
    except ValueError:  # the validation reports it
        return address
    return address if has_path else address.rstrip("/") + version


def _copied(value: object) -> object:
    """A copy of a value and everything below it, because a translation removes parts."""
    table = as_table(value)
    if table is not None:
        return {name: _copied(below) for name, below in table.items()}
    return [_copied(each) for each in cast("Sequence[object]", value)] if isinstance(value, list) else value
