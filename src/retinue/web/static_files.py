"""The files of the page: as a server sends them, and all in one for an exported file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec

SCRIPTS = (
    "dom.js", "api.js", "format.js", "virtual.js", "markdown.js", "diff.js", "charts.js", "transcript.js",
    "timeline.js", "records.js", "run.js", "runs.js", "compare.js", "approvals.js", "app.js",
)  # fmt: skip
"""The modules of the page; each imports from earlier ones alone."""

TYPES: Mapping[str, str] = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(SCRIPTS, "text/javascript; charset=utf-8"),
}
"""The files that a server sends, and their types."""

_UNSAFE = re.compile("[<>&\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""What could end an element, or hide or turn round a text where the file is read as text."""

_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function (\w+)|const (\w+))", re.MULTILINE)


@cache
def static_file(name: str) -> bytes:
    """The content of a file of the page."""
    return (files("retinue.web") / "static" / name).read_bytes()


@cache
def script() -> str:
    """All modules as one classic script: each is a function that returns what it exports."""
    parts = ['"use strict";', "const modules = {};"]
    for name in SCRIPTS:
        text = static_file(name).decode()
        exported = [one or other for one, other in _EXPORT.findall(text)]
        text = _IMPORT.sub(r'const { \1 } = modules["\2"];', text)
        text = _EXPORT.sub("", text)
        parts.append(f'modules["{name}"] = (() => {{\n{text}\nreturn {{ {", ".join(exported)} }};\n}})();')
    return "\n".join(parts)


def exported_page(root: str, paths: Mapping[str, object], title: str) -> str:
    """The page with its data as one file. `paths` are answers of the API by their paths below `/api/v1`.

    The file makes no connection, and runs no script but that of the page: its policy names the hashes of both.
    """
    code, style = script(), static_file("style.css").decode()
    policy = (
        f"default-src 'none'; script-src '{_hash(code)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = static_file("index.html").decode()
    page = re.sub(r'<link rel="(?:icon|stylesheet)"[^>]*>\n', "", page)
    page = re.sub(r"<script[^>]*></script>\n", "", page)
    page = re.sub(r"<nav.*?</nav>", "", page, flags=re.DOTALL)
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{_html(title)}</title>\n<style>{style}</style>\n"
    )
    page = page.replace("<title>Retinue</title>\n", head, 1)
    data = f'<script type="application/json" id="data">{_data({"root": root, "paths": paths})}</script>'
    before, after = page.split("</body>")
    return f"{before}{data}\n<script>{code}</script>\n</body>{after}"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(value: object) -> str:
    """JSON in which no text of a model can end the element or begin another one."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(value).decode())


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
