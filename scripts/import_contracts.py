"""A contract for import-linter that lists what a part of the code may import, not what it may not.

A list of forbidden modules is out of date the day a module is added; a list of allowed ones is the
rule of the design itself ("core imports hashing, units and errors").
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.domain.helpers import module_expressions_to_modules


def covers(allowed: Iterable[str], module: str) -> bool:
    """True if module is one of allowed or lies inside one."""
    return any(module == each or module.startswith(each + ".") for each in allowed)


class AllowlistContract(Contract):
    """Modules (with what is inside them) import only what is listed. Direct imports count.

    - modules: expressions such as services.*.core.
    - project: allowed packages of this project. A module may always import its own package.
    - third_party: allowed top-level names; without the option, all are.
    - not_stdlib: names of the standard library that are not allowed.
    """

    type_name = "allowlist"

    # Any: a field declares an option here and holds its value on an instance.
    modules: Any = fields.SetField(subfield=fields.ModuleExpressionField())
    project: Any = fields.SetField(subfield=fields.StringField(), required=False, default=set())
    third_party: Any = fields.SetField(subfield=fields.StringField(), required=False)
    not_stdlib: Any = fields.SetField(subfield=fields.StringField(), required=False, default=set())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        del verbose  # everything is said anyway
        broken = []
        for package in module_expressions_to_modules(graph, self.modules):
            for module in {package.name, *graph.find_descendants(package.name)}:
                for imported in graph.find_modules_directly_imported_by(module):
                    if not self._is_allowed(package.name, imported):
                        details = graph.get_import_details(importer=module, imported=imported)
                        broken.append((module, imported, details[0]["line_number"]))
        return ContractCheck(kept=not broken, metadata={"broken": sorted(broken)})

    def _is_allowed(self, package: str, imported: str) -> bool:
        root = imported.split(".")[0]
        if root in sys.stdlib_module_names:
            return root not in self.not_stdlib
        if root in self.session_options["root_packages"]:
            return covers([package, *self.project], imported)
        return self.third_party is None or root in self.third_party

    def render_broken_contract(self, check: ContractCheck) -> None:
        for module, imported, line in check.metadata["broken"]:
            output.print_error(f"{module} must not import {imported} (line {line})")
