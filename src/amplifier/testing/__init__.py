"""Test tools of product quality, for this project and for authors of modules.

    cancel_everywhere    cancel a scenario at every one of its suspension points, on trio and asyncio
    cancel_at            cancel one call at one suspension, inside a running loop
    TestCoordinator      a real coordinator without a session; create_test_coordinator() mounts doubles on one
    script               a model that plays texts and tool calls, for tests of your own programs
    MockTool · MockProvider · MockContextManager · ScriptedOrchestrator · MockApprovalSystem · MockDisplaySystem
                         fakes that keep the contracts; those with a script fail on steps too many and on steps unused
    EventRecorder        remembers events
    Cassette             a file with recorded answers of a model; the pytest fixture amplifier_cassette makes one for a test
    replay_session       plays a session that `amplifier session to-test` has recorded
    wait_for             looks until something is true

Virtual time is in `amplifier.testing.virtual_time`. Importing this package imports neither pytest nor
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
