"""The faults this kernel must survive, by id; `tests/faults` has at least one test for each, on both backends."""

from __future__ import annotations

from typing import Final

FAULTS: Final[dict[str, str]] = {
    # hooks
    "F01": "a handler never returns",
    "F02": "the emitter is cancelled while a handler hangs",
    "F03": "a handler swallows its cancellation",
    "F04": "a gate raises",
    "F05": "a handler raises a cancellation that was not requested",
    "F05b": "a handler raises KeyboardInterrupt or SystemExit",
    "F06": "handlers come and go during a dispatch",
    "F07": "two handlers share a name",
    "F08": "a handler changes what it was given",
    "F09": "a gate denies with data that is no JSON",
    "F10": "a payload holds values that are not JSON",
    "F11": "ten thousand handlers listen to one event",
    "F12": "a handler emits the event it handles",
    "F13": "two thousand emits run at once",
    "F13b": "the same concurrent emits run again",
    "F14": "a sync handler blocks",
    "F15": "a sync handler touches its module's state",
    "F16": "a module forges another session's identity",
    "F17": "two modules claim one name",
    "F18": "a module reaches for what is not its own",
    "F19": "a deadline is negative, infinite or no number",
    # opening
    "F20": "on_session_ready never returns",
    "F21": "mount never returns",
    "F22": "opening is cancelled half-way",
    "F23": "a required module fails after others were mounted",
    "F24": "a mount raises a cancellation or an exit of its own",
    # closing
    "F25": "a cleanup never returns",
    "F26": "cleanups raise, each in its own way",
    "F27": "a session is closed twice, and twice at once",
    "F28": "the caller is cancelled while the session closes",
    "F29": "two turns are started at once",
    "F30": "a session is opened twice at once",
    "F31": "calls come in the wrong order",
    # cancellation
    "F32": "a parent is stopped while its child works",
    "F33": "an immediate stop meets a waiting turn",
    "F34": "execute() is cancelled from outside",
    "F34b": "a session is closed right after its turn was cancelled",
    "F35": "the orchestrator raises a typed error",
    "F36": "the orchestrator raises an exception group",
    "F37": "the orchestrator returns no text",
    # contributions, display, data
    "F40": "a contributor never returns",
    "F41": "a collection is cancelled",
    "F42": "a contributor raises",
    "F43": "the display reads the coordinator while it shows a message",
    "F44": "the plan holds values that are not JSON",
    "F45": "a tool returns NaN",
    "F46": "a tool returns values without a JSON form",
    # approvals
    "F50": "an approval is never answered",
    "F51": "the approval system fails",
    "F52": "the approval system answers garbage",
    "F53": "there is no approval system",
    "F54": "two gates ask about one event",
    "F55": "one hook redacts, another one asks",
    # injections
    "F60": "an injection is as long as allowed, or one character longer",
    "F61": "injections come as a list, over budget, or huge",
    "F62": "two injections together exceed what one may have",
    # loading
    "F70": "a module id is a path, an option, a sentence",
    "F71": "a module brings a file named like a standard library module",
    "F72": "a module runs code while it is loaded",
    "F73": "an untrusted module is looked at",
    "F74": "a module exits or fails at import",
    "F75": "two sessions name two sources for one module",
    "F76": "two sessions use one module",
    "F77": "two distributions claim one module id",
    "F78": "a session id is a path, a sentence, a terminal escape",
    # secrets
    "F80": "secrets are in all kinds of places",
    "F81": "a provider fails with a secret in its error",
    # load and process
    "F90": "three hundred sessions live and die",
    "F91": "five thousand events are emitted",
    "F92": "a payload is very large",
    "F95": "the application runs on trio",
    "F96": "a session is used from another event loop",
    "F97": "the process ends while a handler hangs",
    "F98": "SIGINT arrives during a turn",
    "F99": "SIGTERM or SIGHUP arrives during a turn",
}
