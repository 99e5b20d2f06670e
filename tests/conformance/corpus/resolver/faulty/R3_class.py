"""A resolver that answers with a class instead of an instance."""

from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Resolver:
    def resolve(self, module_id, profile_hint=None):
        folder = Path("modules") / module_id
        if not folder.is_dir():
            raise ModuleNotFoundError(f"no {module_id} in modules; create it")

        class Source:
            def resolve(self):
                return folder

        return Source


async def mount(coordinator, config):
    coordinator.mount("module-source-resolver", Resolver())
