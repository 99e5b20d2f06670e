"""Functions that decide about tool calls are typed by the question they get."""

from amplifier import ApprovalQuestion, agent, tool


@tool(read_only=True)
def look(place: str) -> str:
    return place


def is_large(amount: int) -> bool:
    return amount > 50


@tool(approve=is_large)
def transfer(amount: int) -> str:
    return f"{look('account')} {amount}"


async def decide(question: ApprovalQuestion) -> bool:
    return question.tool == "transfer" and question.seconds > 1 and bool(question.arguments)


def refuse(question: ApprovalQuestion) -> bool:
    return "Oslo" not in str(question)


agent("offline", tools=[look, transfer], approve=decide, approval_timeout=60)
agent("offline", tools=[look, transfer], approve=refuse)
