"""An import-linter contract: modules outside a package import only the names that its `__init__.py` exports.

The `__all__` of a package is its door. An entry is a name that `__init__.py` defines or re-exports, or a submodule.
A module outside the package may import the package itself and the submodules in `__all__`, nothing below.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import grimp
from importlinter import Contract, ContractCheck, output


class DoorsContract(Contract):
    """Every import from outside a package is in the `__all__` of that package."""

    type_name = "doors"

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Compare each import with the doors that it passes."""
        violations = [
            f"{importer} imports {imported}: {package}/__init__.py does not export {name!r}"
            for importer in sorted(graph.modules)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            for package, name in closed_doors(importer, imported)
        ]
        return ContractCheck(kept=not violations, metadata={"violations": violations})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each import that passes no door."""
        for violation in check.metadata["violations"]:
            output.print_error(violation)


def closed_doors(importer: str, imported: str) -> list[tuple[str, str]]:
    """The packages that `importer` is outside of and that do not export their part of `imported`."""
    engine = imported.split(".")
    closed: list[tuple[str, str]] = []
    for depth in range(2, len(engine)):
        package, name = ".".join(engine[:depth]), engine[depth]
        is_inside = importer == package or importer.startswith(f"{package}.")
        if not is_inside and name not in exports(package):
            closed.append((package, name))
    return closed


@cache
def exports(package: str) -> frozenset[str]:
    """The entries of a package's `__all__`, read without importing the package."""
    spec = find_spec(package.partition(".")[0])
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]).joinpath(*package.split(".")[1:])
    for node in ast.parse((folder / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return frozenset(ast.literal_eval(node.value))
    return frozenset()
