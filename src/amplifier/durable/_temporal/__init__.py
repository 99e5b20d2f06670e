"""The parts of the engine on Temporal: `_workflows` has what is recorded, `_hosting` the worker, `_client` what applications ask."""
