"""The published form of our models: what pydantic gives the published ones, attached while compat is installed.

    methods       the members, and the classes that get them
    dump          model_dump and model_dump_json
    subclasses    classes that inherit from a model with nothing but annotations
    errors        pydantic's ValidationError where third-party code builds a model
    fields        model_fields

Without `attach` our classes have none of it. pydantic itself is not needed; where it is installed, its errors are used.
"""

from .methods import attach, detach

__all__ = ["attach", "detach"]
