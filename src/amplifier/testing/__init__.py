"""Tools for testing agents, modules and concurrent code, for any test framework.

    cancel_everywhere        cancel a scenario at every suspension point, on trio and asyncio
    cancel_at                cancel one call at one suspension, inside a running loop
    script                   a model that plays texts and tool calls
    MockTool, MockProvider, MockContextManager,
    ScriptedOrchestrator, MockApprovalSystem, MockDisplaySystem
                             fakes that keep the contracts
    TestCoordinator, create_test_coordinator
                             a real coordinator without a session, bare or with doubles
    EventRecorder            record events
    Cassette                 a file with recorded answers of a model
    replay_session           replay a session that `amplifier session to-test` has recorded
    wait_for                 poll until a condition is true

Virtual time is in `amplifier.testing.virtual_time`. This package imports neither pytest nor
Hypothesis nor trio.
"""

from amplifier.testing._cassettes import Cassette, CassetteMode
from amplifier.testing.cancel_sweep.injection import CancelledAt, cancel_at
from amplifier.testing.cancel_sweep.report import SweepReport, Violation
from amplifier.testing.cancel_sweep.sweep import LOOP_END_MODES, MODES, World, cancel_everywhere
from amplifier.testing.doubles.recording import (
    EventRecorder,
    MockContextManager,
    MockCoordinator,
    MockDisplaySystem,
    MockTool,
    TestCoordinator,
    create_test_coordinator,
    wait_for,
)
from amplifier.testing.doubles.scripted import (
    Delayed,
    MockApprovalSystem,
    MockProvider,
    ScriptedOrchestrator,
    script,
)
from amplifier.testing.sessions import replay_session

__all__ = [
    "LOOP_END_MODES",
    "MODES",
    "CancelledAt",
    "Cassette",
    "CassetteMode",
    "Delayed",
    "EventRecorder",
    "MockApprovalSystem",
    "MockContextManager",
    "MockCoordinator",
    "MockDisplaySystem",
    "MockProvider",
    "MockTool",
    "ScriptedOrchestrator",
    "SweepReport",
    "TestCoordinator",
    "Violation",
    "World",
    "cancel_at",
    "cancel_everywhere",
    "create_test_coordinator",
    "replay_session",
    "script",
    "wait_for",
]
